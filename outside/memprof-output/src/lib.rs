//! Output of memprof's programs: to the terminal, to a pipe and to files, and their exit codes.
//!
//! Nothing here panics. A reader that goes away, a full disk or a closed stderr changes no verdict; only a command that
//! would succeed fails if its result was lost ([`finish_command`]). Text for a terminal is made [`printable()`] in this crate
//! only.

mod exit;
mod file;
mod printable;
mod stdout;
mod table;

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;

pub use exit::{
    ExitError, FAILED, NO_DATA, UNREACHABLE, USAGE, error_chain, error_text, exit_code_of_error,
    finish_command, print_parser_output, with_exit_code,
};
pub use file::{publish_file, without_temporary_path};
pub use printable::{one_line, printable};
pub use stdout::{is_stdout_complete, print, write_to_stdout};
pub use table::{format_table, format_table_within};
use unicode_width::UnicodeWidthChar;

/// Writes a line to stderr, with control characters escaped. If stderr is closed or full, the line is lost, without
/// effect on the command and its exit code.
pub fn print_stderr(text: &str) {
    write_to_stderr(&format!("{}\n", printable(text)));
}

thread_local! {
    /// Notes of this thread, while [`collect_notes`] keeps them.
    static COLLECTED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Writes a note to stderr, in one line: line feeds in names of other processes are escaped. Within [`collect_notes`]
/// on this thread, the note is collected instead.
pub fn note(text: &str) {
    let is_collected = COLLECTED.with_borrow_mut(|collected| {
        let collected = collected.as_mut();
        collected.map(|notes| notes.push(text.to_owned())).is_some()
    });
    if !is_collected {
        print_stderr(&format!("memprof: note: {}", one_line(text)));
    }
}

/// Calls `work`. Returns its result and the notes that this thread made meanwhile, which are not written to stderr: the
/// caller can print notes on several processes together.
pub fn collect_notes<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    let before = COLLECTED.replace(Some(Vec::new()));
    let done = work();
    let collected = COLLECTED.replace(before);
    (done, collected.unwrap_or_default())
}

/// Returns whether stderr is a terminal that can replace a line: its `TERM` is not `dumb`.
fn can_show_progress() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// Replaces the progress line on the terminal, until [`clear_progress`]. A longer text is cut at the terminal's width:
/// a second line would stay. Does nothing if stderr is no terminal, or one that cannot replace a line (`TERM=dumb`).
pub fn show_progress(text: &str) {
    if can_show_progress() {
        let columns = column_count(io::stderr()).unwrap_or(usize::MAX);
        write_to_stderr(&format!(
            "\r{}\x1b[K",
            cut_to_width(&one_line(text), columns)
        ));
    }
}

/// Writes a line about a long step to stderr, with control characters escaped. Writes nothing if stderr is a terminal,
/// where [`show_progress`] shows the step.
pub fn log_progress(text: &str) {
    if !io::stderr().is_terminal() {
        print_stderr(&format!("memprof: {}", one_line(text)));
    }
}

/// Returns the number of columns of the terminal that stdout is. `None` if stdout is no terminal, or the terminal does
/// not know its size.
pub fn terminal_columns() -> Option<usize> {
    io::stdout()
        .is_terminal()
        .then(|| column_count(io::stdout()))?
}

/// Returns the number of columns of a terminal. `None` if it is no terminal, or does not know its size and says 0.
fn column_count(terminal: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    (size.ws_col > 0).then(|| usize::from(size.ws_col))
}

/// Clears the line of [`show_progress`]. Does nothing if stderr is no terminal, or one that cannot replace a line.
pub fn clear_progress() {
    if can_show_progress() {
        write_to_stderr("\r\x1b[K");
    }
}

/// Returns the longest start of a text that is narrower than `columns`. The last column is left free, for the cursor or
/// an ellipsis.
fn cut_to_width(text: &str, columns: usize) -> &str {
    let mut width = 0;
    let end = text.char_indices().find(|(_, c)| {
        width += c.width().unwrap_or(0);
        width >= columns
    });
    end.map_or(text, |(end, _)| &text[..end])
}

/// Writes a text to stderr in a single call, so that lines of processes with the same stderr do not mix.
fn write_to_stderr(text: &str) {
    // A failure cannot be reported.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Copies `data` to `path`, or to stdout for `-`. Succeeds if the reader of stdout goes away.
///
/// # Errors
/// `data` cannot be read, or the file cannot be written.
pub fn copy_to_output(data: &mut dyn io::Read, path: &Path) -> anyhow::Result<()> {
    write_output(path, |out| Ok(io::copy(data, out)?))?;
    Ok(())
}

/// Calls `write` with a writer to the file at `path`, or to stdout for `-`. `None` if the reader of stdout went away.
///
/// # Errors
/// `write` fails, or the file cannot be written.
pub fn write_output<T>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<Option<T>> {
    match path == Path::new("-") {
        true => write_to_stdout(write),
        false => publish_file(path, write).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_cut_below_the_terminal_s_width() {
        let check = |text: &str, columns, expected: &str| {
            assert_eq!(cut_to_width(text, columns), expected, "{text}")
        };
        check("dumping", 8, "dumping");
        check("dumping", 7, "dumpin");
        check("値値値", 6, "値値");
        check("値値値", 5, "値値");
        check("e\u{301}e\u{301}", 2, "e\u{301}");
        check("x", 1, "");
        check("dumping", usize::MAX, "dumping");
    }
}
