//! Output: results to stdout, notes to stderr. Control characters in text from other machines are replaced.

use std::fmt;
use std::io::{self, Write};

/// Exit code: the command line or the configuration is invalid.
pub(crate) const USAGE: u8 = 2;
/// Exit code: the store or a server is unreachable.
pub(crate) const UNREACHABLE: u8 = 3;
/// Exit code: there is no data to show.
pub(crate) const NO_DATA: u8 = 5;

/// Error with an exit code of its own.
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

/// Returns an error with that exit code.
pub(crate) fn exit_error(code: u8, message: impl Into<String>) -> anyhow::Error {
    let message = message.into();
    ExitError { code, message }.into()
}

/// Exit code of an error; 1 unless it is an [`ExitError`].
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    let exit_error = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<ExitError>());
    exit_error.map_or(1, |error| error.code)
}

/// Writes lines to stdout. A closed pipe, as of `head`, is no error, and does not change the exit code.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match write_lines(&mut io::stdout().lock(), text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Writes lines to stderr. If that fails, on a full disk or a closed pipe, they are lost.
pub(crate) fn print_stderr(text: &str) {
    write_lines(&mut io::stderr().lock(), text).unwrap_or_default();
}

/// Writes printable text, with a line feed at its end, and flushes.
fn write_lines(stream: &mut impl Write, text: &str) -> io::Result<()> {
    let mut text = printable(text);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    stream.write_all(text.as_bytes())?;
    stream.flush()
}

/// Writes a note to stderr as one line: line feeds in names of hosts, objects and services are replaced.
pub(crate) fn note(text: &str) {
    print_stderr(&note_line(text));
}

/// Formats a note as one line.
fn note_line(text: &str) -> String {
    format!("memprof: note: {}", in_line(text))
}

/// Replaces characters that control a terminal or the direction of text by U+FFFD, but keeps line feeds.
fn printable(text: &str) -> String {
    let is_direction = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.replace(
        |c: char| (c.is_control() && c != '\n') || is_direction(c),
        "\u{fffd}",
    )
}

/// Replaces line breaks in a name from another process by U+FFFD, so that it stays in one line.
pub(crate) fn in_line(name: &str) -> String {
    name.replace(['\n', '\u{2028}', '\u{2029}'], "\u{fffd}")
}

/// Returns whether the reader of stdout has closed the pipe, as `head` does.
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
    fn control_characters_of_names_are_replaced() {
        let check = |name: &str, expected: &str| assert_eq!(printable(&in_line(name)), expected);
        check("cart", "cart");
        check("cart\nshop", "cart\u{fffd}shop");
        check("cart\r\u{1b}[2J", "cart\u{fffd}\u{fffd}[2J");
        check("cart\u{202e}pohs", "cart\u{fffd}pohs");
        check("cart\u{2028}shop", "cart\u{fffd}shop");
        check("cart\u{2066}shop", "cart\u{fffd}shop");
    }

    #[test]
    fn line_feed_of_name_in_note_is_replaced() {
        let line = note_line("missing: cart\nmemprof: note: all is well");
        assert_eq!(
            line,
            "memprof: note: missing: cart\u{fffd}memprof: note: all is well"
        );
    }

    #[test]
    fn write_to_full_disk_is_error() {
        let mut full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let error = write_lines(&mut full, "a line").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
