//! Format and destination of a result.

use std::io::Write;
use std::path::Path;

use clap::ValueEnum;
use memprof_report::OutlinePage;
use serde::Serialize;

use crate::exit::{USAGE, with_exit_code};
use crate::{browser, output};

/// Output format of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResultFormat {
    /// Table
    Text,
    /// JSON for scripts
    Json,
    /// One offline page: tables to sort, search and expand
    Html,
}

/// Help of the option `--json` of a command with results of several formats.
pub(crate) const JSON_HELP: &str = "Print JSON; same as --format json";

/// Largest number of rows of a page.
pub(crate) const MAX_ROWS: usize = 20_000;

/// Explanation of pools for the pages of `leaks --prove` and `holders`.
pub(crate) const POOLS_NOTE: &str = "All objects in a pool that the program makes from the allocator's memory count as \
                                one: the arenas of Perl and PHP, small objects of a Python other than CPython 3.8 to 3.14.";

/// Format and destination of a result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResultOutput<'a> {
    format: ResultFormat,
    /// Output file; standard output if `None`.
    output: Option<&'a Path>,
    /// Whether the page is opened in a browser.
    open: bool,
}

impl<'a> ResultOutput<'a> {
    /// Chooses the format. If `format` is `None`, it is text by default, JSON with `json`, HTML with `open`. Standard
    /// output is written to if `output` is `None` or `-`.
    ///
    /// # Errors
    /// Another format than HTML is to be opened.
    pub(crate) fn new(
        format: Option<ResultFormat>,
        json: bool,
        output: Option<&'a Path>,
        open: bool,
    ) -> anyhow::Result<Self> {
        let format = match (format, json) {
            (None, false) if open => ResultFormat::Html,
            (None, true) => ResultFormat::Json,
            (format, _) => format.unwrap_or(ResultFormat::Text),
        };
        if open && format != ResultFormat::Html {
            return Err(with_exit_code(USAGE, "--open shows html, no other format"));
        }
        Ok(Self {
            format,
            output: output.filter(|path| *path != Path::new("-")),
            open,
        })
    }

    /// Returns the number of rows to compute if the user requests `top`. An HTML page always has up to [`MAX_ROWS`].
    pub(crate) fn row_count(&self, top: usize) -> usize {
        match self.is_page() {
            true => MAX_ROWS,
            false => top,
        }
    }

    /// Returns whether the result is written as an HTML page.
    pub(crate) fn is_page(&self) -> bool {
        self.format == ResultFormat::Html
    }

    /// Returns whether the result is written as text to stdout, whether stdout is a terminal or not.
    pub(crate) fn is_text_on_stdout(&self) -> bool {
        self.format == ResultFormat::Text && self.output.is_none()
    }

    /// Writes the result in the chosen format: `reply` as JSON, `text`, or the page, which `page` builds only if
    /// needed.
    pub(crate) fn write(
        &self,
        reply: &impl Serialize,
        text: &str,
        page: impl FnOnce() -> OutlinePage,
    ) -> anyhow::Result<()> {
        let text = match self.format {
            ResultFormat::Text => text.to_owned(),
            ResultFormat::Json => serde_json::to_string(reply)?,
            ResultFormat::Html => return self.write_page(&page()),
        };
        match self.output {
            Some(path) => output::publish_file(path, |out| Ok(writeln!(out, "{text}")?)),
            None => {
                output::print(&text);
                Ok(())
            }
        }
    }

    /// Writes a page to the output file; without one, to a new file if the page is to be opened, else to standard
    /// output. Then opens it if it is to be opened.
    fn write_page(&self, page: &OutlinePage) -> anyhow::Result<()> {
        let write = |out: &mut dyn Write| Ok(page.write(out)?);
        match (self.output, self.open) {
            (Some(path), open) => {
                output::publish_file(path, write)?;
                if open {
                    browser::open_or_print_path(path)
                } else {
                    Ok(())
                }
            }
            (None, true) => browser::open_or_print_path(&browser::write_temporary_page(write)?.0),
            (None, false) => output::write_to_stdout(write).map(drop),
        }
    }
}
