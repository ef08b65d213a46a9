//! What is printed: answers to stdout, notes to stderr. What came from other machines is made printable.
#![expect(clippy::print_stderr, reason = "the one place where notes are printed")]

use std::fmt;
use std::io::{self, Write};

/// The command line is wrong.
pub(crate) const USAGE: u8 = 2;
/// The store does not answer.
pub(crate) const UNREACHABLE: u8 = 3;
/// There is nothing to show.
pub(crate) const NO_DATA: u8 = 5;

/// An error that has its own exit code.
#[derive(Debug)]
struct Coded {
    code: u8,
    message: String,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Coded {}

pub(crate) fn coded(code: u8, message: impl Into<String>) -> anyhow::Error {
    let message = message.into();
    Coded { code, message }.into()
}

/// The exit code of an error: 1 where it has none of its own.
pub(crate) fn code_of(error: &anyhow::Error) -> u8 {
    let coded = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Coded>());
    coded.map_or(1, |coded| coded.code)
}

/// Writes lines to stdout.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(printable(text).as_bytes())?;
    if !text.ends_with('\n') {
        stdout.write_all(b"\n")?;
    }
    Ok(stdout.flush()?)
}

/// Writes a line to stderr.
pub(crate) fn tell(text: &str) {
    eprintln!("{}", printable(text));
}

/// Writes a note to stderr.
pub(crate) fn note(text: &str) {
    tell(&format!("memprof: note: {text}"));
}

/// Text without what controls a terminal, but for line feeds.
fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

/// True when the reader of stdout went away, as `head` does.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
