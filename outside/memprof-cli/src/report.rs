//! `memprof report`: renders a heap profile in a format for people or tools.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use memprof_report::{
    Error, Format, Input, Limits, Options, OriginRules, SampleType, Sources, StackFrames,
    compile_pattern,
};

use crate::completion;
use crate::exit::{self, FAILED, error_chain, with_exit_code};
use crate::live_profile::{is_file_or_stdin, take_profile, take_profile_if_process};
use crate::own_heap;
use crate::process_names::pids_with_name;
use crate::report_form::{FormArgs, open_input, show_symbolizing_progress};
use crate::report_view::{ViewArgs, modification_time};
use crate::target;

/// Show who holds the memory in a heap profile, as text, graph or page
#[derive(clap::Args, Debug)]
pub(crate) struct ReportArgs {
    /// A heap dump of jemalloc or tcmalloc, or a pprof profile, also gzipped (`-`: standard input); or a host that
    /// samples: a pid, a name or container:NAME
    #[arg(value_name = "FILE|TARGET", required_unless_present = "target")]
    file: Option<PathBuf>,

    /// The host, in place of the argument FILE|TARGET, even if a file has its name
    #[arg(short, long, value_name = "TARGET", conflicts_with = "file", add = completion::target_completer())]
    target: Option<String>,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    form: FormArgs,

    /// The value to show: `inuse_space` or `inuse_objects`; of jemalloc with `prof_accum:true` also `alloc_space` or
    /// `alloc_objects`; or another type that a pprof profile has
    #[arg(long, value_name = "NAME", default_value = SampleType::InuseSpace.name())]
    sample_type: String,

    /// The main program's file, if it is not at the path that the dump names
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,

    /// A directory of binaries from elsewhere, which are found by path, file name or build id
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

    /// Keep C functions in the stacks of a Python program, for --flat and formats with stacks; in --format pprof, only
    /// these
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

/// Runs `memprof report`: writes the report to standard output or `--output`, and notes to standard error. If the file
/// in `args` does not exist, its name is taken for that of a running process, whose profile is taken now.
pub(crate) fn run(args: &ReportArgs) -> anyhow::Result<()> {
    own_heap::make_malloc_map_large_blocks();
    let mut options = args.to_options()?;
    // One of the two is given, as clap has checked.
    let file = args.file.as_deref().unwrap_or(Path::new("-"));
    let live = match &args.target {
        Some(target) => Some(take_profile(target)?),
        None if is_file_or_stdin(file) => None,
        None => take_profile_if_process(file)?,
    };
    let (file, name, sources) = match &live {
        Some(live) => {
            options.time_nanos = modification_time(&live.file.path());
            let pid = args.pid.or(Some(live.pid));
            (live.file.path(), live.name.clone(), args.sources(pid))
        }
        None => (
            file.to_owned(),
            file.display().to_string(),
            args.sources(args.pid),
        ),
    };
    let sources = (!args.no_symbols).then_some(sources);
    let add_remedy = |error: anyhow::Error| match live {
        None if exit::code_number_of_error(&error) == FAILED => add_process_hint(error, &name),
        _ => error,
    };
    let mut profile = open_input(&file).map_err(|error| add_remedy(error.into()))?;
    let mut base = args.view.base.as_deref().map(open_input).transpose()?;
    let base_name = args
        .view
        .base
        .as_deref()
        .map(|base| base.display().to_string());
    let input = Input {
        name: &name,
        bytes: &mut profile,
    };
    let base = base
        .as_mut()
        .zip(base_name.as_deref())
        .map(|(bytes, name)| Input { name, bytes });
    let progress = |done, of| {
        show_symbolizing_progress(done, of);
        if done == of {
            // The names of a large program's functions were found in many small pieces of memory, free now.
            own_heap::release_free_pages();
        }
    };
    let is_unrecognised = Cell::new(false);
    let delivered = args.form.write_report_and_open(|out| {
        let written =
            memprof_report::write_report(input, base, sources.as_slice(), &options, &progress, out);
        written.inspect_err(|error| is_unrecognised.set(error.is_unrecognised()))
    });
    delivered.map_err(|error| match is_unrecognised.get() {
        true => add_remedy(error),
        false => error,
    })
}

/// Adds a hint to the error about a file that is no profile, if `file` is also the pid or name of a process, or the
/// name of a host.
fn add_process_hint(error: anyhow::Error, file: &str) -> anyhow::Error {
    let is_pid = file.parse::<u32>().is_ok() && Path::new("/proc").join(file).exists();
    let is_host = || file != "-" && !file.contains('/') && target::connect(Some(file)).is_ok();
    match is_pid || !pids_with_name(file).is_empty() || is_host() {
        true => with_exit_code(
            FAILED,
            format!(
                "{}; a process of that name runs, too: `memprof report -t {file}`",
                error_chain(&error)
            ),
        ),
        false => error,
    }
}

impl ReportArgs {
    /// Returns the options of the report. Fails for an invalid regular expression, or if `--open` comes with another
    /// format than HTML.
    fn to_options(&self) -> Result<Options, Error> {
        Ok(Options {
            sample_type: SampleType::InuseSpace,
            sample_type_name: Some(self.sample_type.clone()),
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
            time_nanos: self.file.as_deref().map_or(0, modification_time),
            limits: Limits::default(),
            ..self.view.add_to_options(self.form.to_options()?)?
        })
    }

    /// Returns the binaries and symbols to use: those in the arguments, else those of the process. `pid` is `None` for
    /// a file whose process is not known.
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
