//! Output to the terminal, to a pipe and to files. Text for a terminal is made [`printable()`] in this module only.
mod file;
mod printable;
mod stdout;

use std::io::{self, BufReader, IsTerminal, Write};
use std::path::Path;

use memprof_report::Limits;

pub(crate) use file::publish;
pub(crate) use printable::one_line;
use printable::printable;
pub(crate) use stdout::{is_complete, print, to_stdout};

/// Writes a line to stderr. If stderr is closed or full, the line is lost, without effect on the command and its
/// exit code.
pub(crate) fn print_stderr(text: &str) {
    to_stderr(&format!("{}\n", printable(text)));
}

/// Writes a note to stderr.
pub(crate) fn note(text: &str) {
    print_stderr(&format!("memprof: note: {text}"));
}

/// Whether stderr is a terminal that can replace a line.
fn has_progress_line() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// Replaces the progress line on the terminal, until [`clear_progress`]. Does nothing if stderr is not a terminal.
pub(crate) fn progress(text: &str) {
    if has_progress_line() {
        to_stderr(&format!("\r{}", one_line(text)));
    }
}

/// Clears the line of [`progress`].
pub(crate) fn clear_progress() {
    if has_progress_line() {
        to_stderr("\r\x1b[K");
    }
}

/// Writes in a single call, so that lines of processes with the same stderr do not mix.
fn to_stderr(text: &str) {
    // A failure cannot be reported.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Copies `data` to `path`, or to stdout for `-`. Succeeds if the reader of stdout goes away.
pub(crate) fn save(data: &mut dyn io::Read, path: &Path) -> anyhow::Result<()> {
    write_to(path, |out| Ok(io::copy(data, out)?))?;
    Ok(())
}

/// Writes a dump to `path`, or to stdout for `-`, in the form that other tools read. Returns the number of bytes
/// written; `None` if the reader of stdout went away.
pub(crate) fn export(dump: &mut dyn io::Read, path: &Path) -> anyhow::Result<Option<u64>> {
    let mut dump = BufReader::with_capacity(256 << 10, dump);
    let limits = Limits::default();
    write_to(path, |out| {
        Ok(memprof_report::export(&mut dump, &limits, out)?)
    })
}

/// Makes `write` fill the file at `path`, or stdout for `-`. `None` if the reader of stdout went away.
fn write_to<T>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<Option<T>> {
    match path == Path::new("-") {
        true => to_stdout(write),
        false => publish(path, write).map(Some),
    }
}
