//! What is printed: answers to stdout, notes to stderr. What came from other machines is made printable.

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
struct ExitError {
    code: u8,
    message: String,
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ExitError {}

pub(crate) fn coded(code: u8, message: impl Into<String>) -> anyhow::Error {
    let message = message.into();
    ExitError { code, message }.into()
}

/// The exit code of an error: 1 where it has none of its own.
pub(crate) fn code_of(error: &anyhow::Error) -> u8 {
    let coded = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<ExitError>());
    coded.map_or(1, |coded| coded.code)
}

/// Writes lines to stdout. A reader that went away, as `head` does, is no error: the command's exit status is
/// the one that it would have had.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match write_lines(&mut io::stdout().lock(), text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Writes lines to stderr. Where that fails, on a full disk or a closed pipe, they are lost and nothing else.
pub(crate) fn print_stderr(text: &str) {
    write_lines(&mut io::stderr().lock(), text).unwrap_or_default();
}

fn write_lines(to: &mut impl Write, text: &str) -> io::Result<()> {
    let mut text = printable(text);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    to.write_all(text.as_bytes())?;
    to.flush()
}

/// Writes a note to stderr: one line, whatever names of hosts, objects and services are in it.
pub(crate) fn note(text: &str) {
    print_stderr(&note_line(text));
}

fn note_line(text: &str) -> String {
    format!("memprof: note: {}", in_line(text))
}

/// Text without characters that control a terminal or the direction of writing, but for line feeds.
fn printable(text: &str) -> String {
    let is_direction = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.replace(
        |c: char| (c.is_control() && c != '\n') || is_direction(c),
        "\u{fffd}",
    )
}

/// A name that another process chose, as part of one line.
pub(crate) fn in_line(name: &str) -> String {
    name.replace(['\n', '\u{2028}', '\u{2029}'], "\u{fffd}")
}

/// True when the reader of stdout went away, as `head` does.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_elsewhere_neither_makes_a_line_nor_turns_one_around() {
        let check = |name: &str, expected: &str| assert_eq!(printable(&in_line(name)), expected);
        check("cart", "cart");
        check("cart\nshop", "cart\u{fffd}shop");
        check("cart\r\u{1b}[2J", "cart\u{fffd}\u{fffd}[2J");
        check("cart\u{202e}pohs", "cart\u{fffd}pohs");
        check("cart\u{2028}shop", "cart\u{fffd}shop");
        check("cart\u{2066}shop", "cart\u{fffd}shop");
    }

    #[test]
    fn name_in_a_note_forges_no_second_note() {
        let line = note_line("missing: cart\nmemprof: note: all is well");
        assert_eq!(
            line,
            "memprof: note: missing: cart\u{fffd}memprof: note: all is well"
        );
    }

    #[test]
    fn a_stream_that_fails_is_an_error_and_no_panic() {
        let mut full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let error = write_lines(&mut full, "a line").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
