//! Format and destination of a result.

use std::path::Path;

use clap::ValueEnum;
use memprof_report::OutlinePage;
use serde::Serialize;

use crate::output;

/// Output format of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResultFormat {
    /// A table
    Text,
    /// For scripts
    Json,
    /// One offline page: tables to sort, search and expand
    Html,
}

/// Largest number of rows of a page.
pub(crate) const MAX_ROWS: usize = 20_000;

/// Explanation of pools for the pages of `leaks --prove` and `holders`.
pub(crate) const POOLS_NOTE: &str = "All objects in a pool that the program makes from the allocator's memory count as \
                                one: Python's small objects, the arenas of Perl and PHP.";

/// Format and destination of a result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResultOutput<'a> {
    format: ResultFormat,
    /// Output file; standard output if `None`.
    output: Option<&'a Path>,
}

impl<'a> ResultOutput<'a> {
    /// Chooses the format: text by default, JSON with `json`. `-` as output is standard output.
    pub(crate) fn new(format: Option<ResultFormat>, json: bool, output: Option<&'a Path>) -> Self {
        let default = if json {
            ResultFormat::Json
        } else {
            ResultFormat::Text
        };
        Self {
            format: format.unwrap_or(default),
            output: output.filter(|path| *path != Path::new("-")),
        }
    }

    /// Number of rows for a requested number: a page always has up to [`MAX_ROWS`].
    pub(crate) fn row_count(&self, top: usize) -> usize {
        match self.format {
            ResultFormat::Text | ResultFormat::Json => top,
            ResultFormat::Html => MAX_ROWS,
        }
    }

    /// Whether the result is text for the terminal.
    pub(crate) fn is_terminal_text(&self) -> bool {
        self.format == ResultFormat::Text && self.output.is_none()
    }

    /// Writes the reply as JSON, the text, or the page to the output. `page` is called only for the page.
    pub(crate) fn write(
        &self,
        reply: &impl Serialize,
        text: &str,
        page: impl FnOnce() -> OutlinePage,
    ) -> anyhow::Result<()> {
        let text = match self.format {
            ResultFormat::Text => text.to_owned(),
            ResultFormat::Json => serde_json::to_string(reply)?,
            ResultFormat::Html => {
                let page = page();
                return match self.output {
                    Some(path) => output::publish_file(path, |out| Ok(page.write(out)?)),
                    None => output::write_to_stdout(|out| Ok(page.write(out)?)).map(drop),
                };
            }
        };
        match self.output {
            Some(path) => output::publish_file(path, |out| Ok(writeln!(out, "{text}")?)),
            None => {
                output::print(&text);
                Ok(())
            }
        }
    }
}
