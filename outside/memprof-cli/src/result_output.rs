//! In what form a result is written, and where to.

use std::path::Path;

use clap::ValueEnum;
use memprof_report::OutlinePage;
use serde::Serialize;

use crate::output;

/// What a result is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResultFormat {
    /// A table
    Text,
    /// For scripts
    Json,
    /// One offline page: tables to sort, search and expand
    Html,
}

/// Rows that a page has at the most.
pub(crate) const MOST_ROWS: usize = 20_000;

/// What the pages of both commands say of pools.
pub(crate) const POOLS: &str = "All objects in a pool that the program makes from the allocator's memory count as \
                                one: Python's small objects, the arenas of Perl and PHP.";

/// Form and place of a result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResultOutput<'a> {
    shape: ResultFormat,
    /// Standard output where there is none.
    output: Option<&'a Path>,
}

impl<'a> ResultOutput<'a> {
    pub(crate) fn new(format: Option<ResultFormat>, json: bool, output: Option<&'a Path>) -> Self {
        let usual = if json {
            ResultFormat::Json
        } else {
            ResultFormat::Text
        };
        Self {
            shape: format.unwrap_or(usual),
            output: output.filter(|path| *path != Path::new("-")),
        }
    }

    /// How many rows are shown where so many are asked for: a page has room for more.
    pub(crate) fn rows(&self, top: usize) -> usize {
        match self.shape {
            ResultFormat::Text | ResultFormat::Json => top,
            ResultFormat::Html => MOST_ROWS,
        }
    }

    /// A person reads it on the terminal.
    pub(crate) fn is_terminal_text(&self) -> bool {
        self.shape == ResultFormat::Text && self.output.is_none()
    }

    pub(crate) fn write(
        &self,
        reply: &impl Serialize,
        text: &str,
        page: impl FnOnce() -> OutlinePage,
    ) -> anyhow::Result<()> {
        let text = match self.shape {
            ResultFormat::Text => text.to_owned(),
            ResultFormat::Json => serde_json::to_string(reply)?,
            ResultFormat::Html => {
                let page = page();
                return match self.output {
                    Some(path) => output::publish(path, |out| Ok(page.write(out)?)),
                    None => output::to_stdout(|out| Ok(page.write(out)?)).map(drop),
                };
            }
        };
        match self.output {
            Some(path) => output::publish(path, |out| Ok(writeln!(out, "{text}")?)),
            None => {
                output::print(&text);
                Ok(())
            }
        }
    }
}
