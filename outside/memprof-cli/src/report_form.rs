//! Form and destination of a report, which several commands write.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use memprof_report::{Error, Format, Granularity, Input, Options, Sources};

use crate::report_view::ViewArgs;
use crate::{browser, output};

// Form and destination of a report, of every command that shows one. No doc comment: clap would add it to the help of each.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct FormArgs {
    /// Output format [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<FormatArg>,

    /// Split functions into source lines
    #[arg(long)]
    pub(crate) lines: bool,

    /// Show this many functions, or nodes of a tree [default: all; 80 in a graph, 20 in the table of `memprof record`]
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<usize>,

    /// Write the output to this file, whole or not at all [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Open it as an HTML page in a browser; without a browser, print the page's path
    #[arg(long)]
    pub(crate) open: bool,
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
    /// Flamegraph as SVG, with zoom and search
    Flamegraph,
    /// One offline page: flamegraph, table and search
    Html,
    /// Call graph for graphviz
    Dot,
    /// Call graph as SVG, drawn by graphviz
    Svg,
    /// Gzipped profile.proto, for `go tool pprof`
    Pprof,
    /// Symbolized dump, which jeprof opens without the binary
    Jeprof,
    /// JSON for scripts: totals, mappings and functions
    Json,
}

impl FormArgs {
    /// Returns the format of the report: HTML with `--open`, text by default. Fails if `--open` comes with another
    /// format.
    pub(crate) fn format(&self) -> Result<Format, Error> {
        match (self.format, self.open) {
            (None | Some(FormatArg::Html), true) => Ok(Format::Html),
            (Some(_), true) => Err(Error::Usage("--open shows html, no other --format".into())),
            (format, false) => Ok(format.map_or(Format::Text, Into::into)),
        }
    }

    /// Returns the options of a report in this form. Fails if `--open` comes with another format than HTML.
    pub(crate) fn to_options(&self) -> Result<Options, Error> {
        Ok(Options {
            format: self.format()?,
            granularity: match self.lines {
                true => Granularity::Lines,
                false => Granularity::Functions,
            },
            top: self.top,
            ..Options::default()
        })
    }

    /// Calls `write` to write the report to `--output`, or to stdout. With `--open`, a report without an output file
    /// goes to a new file; with `--output -`, it goes to stdout too. Prints the notes that `write` returns. With
    /// `--open`, then opens the report in a browser.
    pub(crate) fn write_report_and_open(
        &self,
        write: impl FnOnce(&mut dyn Write) -> Result<Vec<String>, Error>,
    ) -> anyhow::Result<()> {
        let (page, notes) = match &self.output {
            Some(path) if path == Path::new("-") && self.open => {
                let (page, notes) = browser::write_temporary_page(|out| Ok(write(out)?))?;
                output::copy_to_output(&mut open_input(&page)?, path)?;
                print_notes(Ok(notes))?;
                return browser::open_or_print_path_to_stderr(&page);
            }
            Some(path) if path == Path::new("-") => return print_notes(write_to_stdout(write)),
            Some(path) => (
                path.clone(),
                output::publish_file(path, |out| Ok(write(out)?))?,
            ),
            None if self.open => browser::write_temporary_page(|out| Ok(write(out)?))?,
            None => return print_notes(write_to_stdout(write)),
        };
        print_notes(Ok(notes))?;
        match self.open {
            true => browser::open_or_print_path(&page),
            false => Ok(()),
        }
    }
}

/// Dump of a live process, or those of several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveDump<'a> {
    /// Files of the dump, one for each process.
    pub(crate) files: &'a [PathBuf],
    /// Name of the dump in errors and on pages.
    pub(crate) name: &'a str,
    /// The processes, in the order of their dumps.
    pub(crate) pids: &'a [u32],
    /// Notes that the report shows before its own.
    pub(crate) notes: &'a [String],
}

/// Writes the report of a live dump as a page to a new file, and prints its notes. Returns the page's path.
pub(crate) fn write_live_page(dump: LiveDump<'_>) -> anyhow::Result<PathBuf> {
    let options = Options {
        format: Format::Html,
        ..Options::default()
    };
    let mut bytes = open_dumps(dump.files)?;
    let write = live_report_writer(&mut *bytes, dump, None, options);
    let (page, notes) = browser::write_temporary_page(|out| Ok(write(out)?))?;
    print_notes(Ok(notes))?;
    Ok(page)
}

/// Writes a report of a live dump in the given form, and notes to standard error. `top` is the number of rows of a text
/// if the form sets none.
pub(crate) fn show_live_report(
    dump: LiveDump<'_>,
    form: &FormArgs,
    view: &ViewArgs,
    top: Option<usize>,
) -> anyhow::Result<()> {
    let mut options = view.add_to_options(form.to_options()?)?;
    if options.format == Format::Text {
        options.top = options.top.or(top);
    }
    let mut bytes = open_dumps(dump.files)?;
    let base = view.base.as_deref();
    form.write_report_and_open(live_report_writer(&mut *bytes, dump, base, options))
}

/// Returns a function that writes a report of a live dump, whose bytes are `bytes`, compared with the profile in `base`.
fn live_report_writer<'a>(
    bytes: &'a mut dyn BufRead,
    dump: LiveDump<'a>,
    base: Option<&'a Path>,
    options: Options,
) -> impl FnOnce(&mut dyn Write) -> Result<Vec<String>, Error> {
    move |out| {
        let options = Options {
            notes: dump.notes.to_vec(),
            ..options
        };
        let pids = dump.pids.iter();
        let sources: Vec<_> = pids.map(|pid| Sources::for_process(Some(*pid))).collect();
        let name = dump.name;
        let input = Input { name, bytes };
        let mut base_bytes = base.map(open_input).transpose()?;
        let base_name = base.map(|base| base.display().to_string());
        let base = base_bytes
            .as_mut()
            .zip(base_name.as_deref())
            .map(|(bytes, name)| Input { name, bytes });
        memprof_report::write_report(
            input,
            base,
            &sources,
            &options,
            &show_symbolizing_progress,
            out,
        )
    }
}

/// Writes a report to standard output, and returns its notes; no notes if the reader went away.
fn write_to_stdout(
    write: impl FnOnce(&mut dyn Write) -> Result<Vec<String>, Error>,
) -> anyhow::Result<Vec<String>> {
    let notes = output::write_to_stdout(|out| Ok(write(out)?))?;
    Ok(notes.unwrap_or_default())
}

/// Clears the progress line, and prints the notes of a report on stderr. Returns the error if the report failed.
fn print_notes(notes: anyhow::Result<Vec<String>>) -> anyhow::Result<()> {
    output::clear_progress();
    for note in notes? {
        output::note(&note);
    }
    Ok(())
}

/// Opens dumps to be read as one: each begins where the one before ends.
pub(crate) fn open_dumps(paths: &[PathBuf]) -> Result<Box<dyn BufRead>, Error> {
    let mut all: Box<dyn BufRead> = Box::new(io::empty());
    for path in paths {
        all = Box::new(all.chain(open_input(path)?));
    }
    Ok(all)
}

/// Opens a profile for reading; `-` is standard input. Fails for a directory.
pub(crate) fn open_input(path: &Path) -> Result<Box<dyn BufRead>, Error> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    let failed = |source| Error::Io {
        act: format!("open {}", path.display()),
        source,
    };
    // A directory can be opened too, but not read.
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    Ok(Box::new(BufReader::with_capacity(256 << 10, file)))
}

/// Shows on a terminal that `done` of `of` files are symbolized. Clears the progress line when all are.
pub(crate) fn show_symbolizing_progress(done: usize, of: usize) {
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
