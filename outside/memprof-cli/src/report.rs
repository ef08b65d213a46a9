//! `memprof report`: renders a heap profile in a format for people or tools.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use memprof_report::{
    Error, Filter, Format, Input, Label, Limits, Options, OriginRules, SampleType, Sources,
    StackFrames, compile_pattern,
};

use crate::live_profile::{is_file, take_profile};
use crate::report_form::{FormArgs, open_input, show_progress};

/// Show who holds the memory in a heap profile, as text, graph or page
#[derive(clap::Args, Debug)]
pub(crate) struct ReportArgs {
    /// A heap dump of jemalloc or tcmalloc, or a pprof profile; may be gzipped; `-` is standard input. Or a process that
    /// samples: a pid or a name
    #[arg(value_name = "FILE|TARGET")]
    file: PathBuf,

    /// Compare with this earlier profile; every value is the change since then
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,

    /// Scale the base to the same total, to see what changed in proportion
    #[arg(long, requires = "base")]
    normalize: bool,

    #[command(flatten)]
    form: FormArgs,

    /// Value to show: `inuse_space`, `inuse_objects`, `alloc_space` or `alloc_objects`, which need a host with
    /// `prof_accum:true`, or another type that a pprof profile has
    #[arg(long, value_name = "NAME", default_value = SampleType::InuseSpace.name())]
    sample_type: String,

    /// Only stacks with a function that matches this regular expression; for peek, the functions to show
    #[arg(long, value_name = "RE")]
    focus: Option<String>,

    /// No stack with a function that matches this regular expression
    #[arg(long, value_name = "RE")]
    ignore: Option<String>,

    /// Sort by cumulative values: a function with all it calls
    #[arg(long)]
    cum: bool,

    /// Show how old each function's memory is; needs a dump taken after `activate ages=1m`
    #[arg(long)]
    ages: bool,

    /// Only memory that was allocated at least this long before the dump, for example 10m or 1h
    #[arg(long, value_name = "DURATION", value_parser = crate::process_arg::parse_duration)]
    older: Option<Duration>,

    /// Show who holds how much by the values of this label; needs a dump taken after `activate labels=KEY`
    #[arg(long, value_name = "KEY")]
    by: Option<String>,

    /// Only what was allocated under this label; a VALUE `[none]` is for what had none
    #[arg(long, value_name = "KEY=VALUE")]
    label: Option<Label>,

    /// The main program, where it is not at the path that the dump names
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,

    /// A directory of binaries from elsewhere: found by path, file name or build id
    #[arg(long, value_name = "DIR")]
    binary_root: Option<PathBuf>,

    /// Count functions that match this regular expression as the program's own
    #[arg(long, value_name = "RE")]
    own: Option<String>,

    /// Fold functions that match this regular expression into their callers
    #[arg(long, value_name = "RE")]
    plumbing: Option<String>,

    /// Show every function as a row: fold none into its caller, leave nothing out, and shorten no name
    #[arg(long, conflicts_with_all = ["own", "plumbing"])]
    flat: bool,

    /// Keep C functions in the stacks of a Python program, for --flat and whole stacks; in a pprof file, only these
    #[arg(long)]
    native: bool,

    /// Explain why functions of this name are the program's own, plumbing or a library's, and which option changes it
    #[arg(long, value_name = "FUNCTION", conflicts_with_all = ["format", "flat", "base", "by", "ages", "open"])]
    why: Option<String>,

    /// Read binaries as this living process sees them, below /proc/PID/root
    #[arg(long, value_parser = crate::process_arg::parse_process)]
    pid: Option<u32>,

    /// Do not resolve function names; frames are file+0xoffset
    #[arg(long)]
    no_symbols: bool,

    /// Read truncated dumps, and take names from binaries with a different build id
    #[arg(long)]
    force: bool,
}

/// Writes the report to standard output or `--output`, and notes to standard error.
pub(crate) fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let mut options = args.to_options()?;
    let live = match is_file(&args.file) {
        true => None,
        false => take_profile(&args.file)?,
    };
    let (file, name, sources) = match &live {
        Some(live) => {
            options.time_nanos = modification_time(&live.file.path());
            let pid = args.pid.or(Some(live.pid));
            (live.file.path(), live.name.clone(), args.sources(pid))
        }
        None => (
            args.file.clone(),
            args.file.display().to_string(),
            args.sources(args.pid),
        ),
    };
    let sources = (!args.no_symbols).then_some(sources);
    let mut profile = open_input(&file)?;
    let mut base = args.base.as_deref().map(open_input).transpose()?;
    let base_name = args.base.as_deref().map(|base| base.display().to_string());
    let input = Input {
        name: &name,
        bytes: &mut profile,
    };
    let base = base
        .as_mut()
        .zip(base_name.as_deref())
        .map(|(bytes, name)| Input { name, bytes });
    args.form.deliver(|out| {
        memprof_report::report(input, base, sources.as_ref(), &options, &show_progress, out)
    })
}

impl ReportArgs {
    /// Returns the options of the report; fails for an invalid regular expression.
    fn to_options(&self) -> Result<Options, Error> {
        Ok(Options {
            sample_type: SampleType::InuseSpace,
            sample_type_name: Some(self.sample_type.clone()),
            filter: Filter {
                focus: self.focus.as_deref().map(compile_pattern).transpose()?,
                ignore: self.ignore.as_deref().map(compile_pattern).transpose()?,
            },
            ages: self.ages,
            older: self.older,
            label: self.label.clone(),
            by: self.by.clone(),
            by_cum: self.cum,
            normalize: self.normalize,
            force: self.force,
            stack_frames: match (self.native, self.form.format()?) {
                (false, _) => StackFrames::Program,
                (true, Format::Pprof) => StackFrames::Native,
                (true, _) => StackFrames::All,
            },
            origin_rules: OriginRules {
                flat: self.flat,
                own: self.own.as_deref().map(compile_pattern).transpose()?,
                plumbing: self.plumbing.as_deref().map(compile_pattern).transpose()?,
            },
            why: self.why.clone(),
            time_nanos: modification_time(&self.file),
            base_time_nanos: self.base.as_deref().map_or(0, modification_time),
            limits: Limits::default(),
            ..self.form.to_options()?
        })
    }

    /// Returns the binaries and symbols to use: those in the arguments, else those of the process.
    fn sources(&self, pid: Option<u32>) -> Sources {
        let found = Sources::for_process(pid);
        Sources {
            binary: self.binary.clone().or(found.binary),
            binary_root: self.binary_root.clone(),
            force: self.force,
            ..found
        }
    }
}

/// Returns the modification time of a file in nanoseconds since 1970: the best guess for a dump without a time. 0,
/// which means unknown in pprof, if there is none.
fn modification_time(path: &Path) -> i64 {
    let modified = std::fs::metadata(path)
        .and_then(|metadata| metadata.modified())
        .ok();
    let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since
        .and_then(|since| i64::try_from(since.as_nanos()).ok())
        .unwrap_or(0)
}
