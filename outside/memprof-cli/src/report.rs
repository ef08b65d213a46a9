//! `memprof report`: renders a heap profile in a format for people or tools.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use clap::ValueEnum;
use memprof_report::{
    Error, ErrorKind, Filter, Format, Granularity, Input, Label, Limits, Options, OriginRules,
    SampleType, Sources, compile_pattern,
};

use crate::{browser, output};

/// Show who holds the memory in a heap profile, as text, graph or page
#[derive(clap::Args, Debug)]
pub(crate) struct ReportArgs {
    /// A heap dump of jemalloc or tcmalloc, or a pprof profile; may be gzipped; `-` is standard input
    file: PathBuf,

    /// Compare with this earlier profile; every value is the change since then
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,

    /// Scale the base to the same total, to see what changed in proportion
    #[arg(long, requires = "base")]
    normalize: bool,

    /// Output format [default: text]
    #[arg(long, value_enum)]
    format: Option<FormatArg>,

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

    /// Split functions into source lines
    #[arg(long)]
    lines: bool,

    /// Sort by cumulative values: a function with all it calls
    #[arg(long)]
    cum: bool,

    /// Show this many functions, or nodes of a tree [default: all; 80 in a graph]
    #[arg(long, value_name = "N")]
    top: Option<usize>,

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

    /// Write to this file, whole or not at all [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Open the HTML report in a browser, or print its path
    #[arg(long)]
    open: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FormatArg {
    /// Table of functions: flat and cumulative
    Text,
    /// Call tree
    Tree,
    /// Callers and callees of the functions in --focus
    Peek,
    /// One line per stack, for flamegraph tools
    Collapsed,
    /// Interactive SVG
    Flamegraph,
    /// One offline page: flamegraph, table, search
    Html,
    /// Call graph for graphviz
    Dot,
    /// Call graph drawn by graphviz
    Svg,
    /// Gzipped profile.proto for `go tool pprof`
    Pprof,
    /// Symbolized dump, which jeprof opens without the binary
    Jeprof,
    /// Totals, mappings and functions for scripts
    Json,
}

/// Exit code for an error of the report.
pub(crate) fn report_exit_code(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::Usage => 2,
        ErrorKind::Empty => 5,
        ErrorKind::BuildIdMismatch => 6,
        _ => 1,
    }
}

/// Writes the report to standard output or `--output`, and notes to standard error.
pub(crate) fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let options = args.to_options()?;
    let sources = (!args.no_symbols).then(|| args.sources());
    let mut profile = open_input(&args.file)?;
    let mut base = args.base.as_deref().map(open_input).transpose()?;
    let base_name = args.base.as_deref().map(|base| base.display().to_string());
    let name = args.file.display().to_string();
    let input = Input {
        name: &name,
        bytes: &mut profile,
    };
    let base = base
        .as_mut()
        .zip(base_name.as_deref())
        .map(|(bytes, name)| Input { name, bytes });
    let write = |out: &mut dyn Write| {
        memprof_report::report(input, base, sources.as_ref(), &options, &show_progress, out)
    };
    let (page, notes) = match &args.output {
        Some(path) if path == Path::new("-") && args.open => {
            let (page, notes) = browser::write_page(|out| Ok(write(out)?))?;
            output::copy_to_output(&mut open_input(&page)?, path)?;
            print_notes(Ok(notes))?;
            return browser::open_or_print_to_stderr(&page);
        }
        Some(path) if path == Path::new("-") => return print_notes(write_to_stdout(write)),
        Some(path) => (
            path.clone(),
            output::publish_file(path, |out| Ok(write(out)?))?,
        ),
        None if args.open => browser::write_page(|out| Ok(write(out)?))?,
        None => return print_notes(write_to_stdout(write)),
    };
    print_notes(Ok(notes))?;
    match args.open {
        true => browser::open_or_print(&page),
        false => Ok(()),
    }
}

/// Writes a page of a live process's dump, with `name` as the dump's name; returns the page's path.
pub(crate) fn write_live_page(file: &Path, name: &str, pid: u32) -> anyhow::Result<PathBuf> {
    let input = Input {
        name,
        bytes: &mut open_input(file)?,
    };
    let options = Options {
        format: Format::Html,
        ..Options::default()
    };
    let sources = Sources::for_process(Some(pid));
    let (page, notes) = browser::write_page(|out| {
        let report =
            memprof_report::report(input, None, Some(&sources), &options, &show_progress, out);
        Ok(report?)
    })?;
    print_notes(Ok(notes))?;
    Ok(page)
}

/// A report of a live process's dump.
#[derive(Debug)]
pub(crate) struct LiveReport<'a> {
    pub(crate) file: &'a Path,
    /// Name of the file in errors.
    pub(crate) name: &'a str,
    pub(crate) pid: u32,
    pub(crate) options: Options,
    /// Output file; standard output if `None`.
    pub(crate) output: Option<&'a Path>,
}

/// Writes the report to its output, or to standard output, and notes to standard error.
pub(crate) fn show_live_report(live: &LiveReport<'_>) -> anyhow::Result<()> {
    let input = Input {
        name: live.name,
        bytes: &mut open_input(live.file)?,
    };
    let sources = Sources::for_process(Some(live.pid));
    let write = |out: &mut dyn Write| {
        memprof_report::report(
            input,
            None,
            Some(&sources),
            &live.options,
            &show_progress,
            out,
        )
    };
    print_notes(match live.output.filter(|path| *path != Path::new("-")) {
        Some(path) => output::publish_file(path, |out| Ok(write(out)?)),
        None => write_to_stdout(write),
    })
}

/// Writes a report to standard output, and returns its notes; no notes if the reader went away.
fn write_to_stdout(
    write: impl FnOnce(&mut dyn Write) -> Result<Vec<String>, Error>,
) -> anyhow::Result<Vec<String>> {
    let notes = output::write_to_stdout(|out| Ok(write(out)?))?;
    Ok(notes.unwrap_or_default())
}

/// Clears the progress line, and prints the notes of a report on stderr. An error is passed on.
fn print_notes(notes: anyhow::Result<Vec<String>>) -> anyhow::Result<()> {
    output::clear_progress();
    for note in notes? {
        output::note(&note);
    }
    Ok(())
}

impl ReportArgs {
    /// Format of the report: HTML with `--open`, text by default.
    fn format(&self) -> Result<Format, Error> {
        match (self.format, self.open) {
            (None | Some(FormatArg::Html), true) => Ok(Format::Html),
            (Some(_), true) => Err(Error::Usage("--open shows html, no other --format".into())),
            (format, false) => Ok(format.map_or(Format::Text, Into::into)),
        }
    }

    /// Options of the report; fails for an invalid regular expression.
    fn to_options(&self) -> Result<Options, Error> {
        Ok(Options {
            format: self.format()?,
            sample_type: SampleType::InuseSpace,
            sample_type_name: Some(self.sample_type.clone()),
            granularity: if self.lines {
                Granularity::Lines
            } else {
                Granularity::Functions
            },
            filter: Filter {
                focus: self.focus.as_deref().map(compile_pattern).transpose()?,
                ignore: self.ignore.as_deref().map(compile_pattern).transpose()?,
            },
            ages: self.ages,
            older: self.older,
            label: self.label.clone(),
            by: self.by.clone(),
            by_cum: self.cum,
            top: self.top,
            normalize: self.normalize,
            force: self.force,
            origin_rules: OriginRules {
                flat: self.flat,
                own: self.own.as_deref().map(compile_pattern).transpose()?,
                plumbing: self.plumbing.as_deref().map(compile_pattern).transpose()?,
            },
            why: self.why.clone(),
            time_nanos: modification_time(&self.file),
            base_time_nanos: self.base.as_deref().map_or(0, modification_time),
            limits: Limits::default(),
        })
    }

    /// Binaries and symbols to use: those in the arguments, else those of the process.
    fn sources(&self) -> Sources {
        let found = Sources::for_process(self.pid);
        Sources {
            binary: self.binary.clone().or(found.binary),
            binary_root: self.binary_root.clone(),
            force: self.force,
            ..found
        }
    }
}

/// Modification time of a file in nanoseconds since 1970: the best guess for a dump without a time. 0, which means
/// unknown in pprof, if there is none.
fn modification_time(path: &Path) -> i64 {
    let modified = std::fs::metadata(path)
        .and_then(|metadata| metadata.modified())
        .ok();
    let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since
        .and_then(|since| i64::try_from(since.as_nanos()).ok())
        .unwrap_or(0)
}

/// Opens a profile; `-` is standard input.
fn open_input(path: &Path) -> Result<Box<dyn BufRead>, Error> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    let failed = |source| Error::Io {
        act: format!("open {}", path.display()),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    Ok(Box::new(BufReader::with_capacity(256 << 10, file)))
}

/// Shows the progress of symbolizing on a terminal.
pub(crate) fn show_progress(done: usize, of: usize) {
    if done == of {
        output::clear_progress();
    } else {
        output::show_progress(&format!("symbolizing: {done} of {of} files"));
    }
}

impl From<FormatArg> for Format {
    fn from(format: FormatArg) -> Self {
        match format {
            FormatArg::Text => Self::Text,
            FormatArg::Tree => Self::Tree,
            FormatArg::Peek => Self::Peek,
            FormatArg::Collapsed => Self::Collapsed,
            FormatArg::Flamegraph => Self::Flamegraph,
            FormatArg::Html => Self::Html,
            FormatArg::Dot => Self::Dot,
            FormatArg::Svg => Self::Svg,
            FormatArg::Pprof => Self::Pprof,
            FormatArg::Jeprof => Self::Jeprof,
            FormatArg::Json => Self::Json,
        }
    }
}
