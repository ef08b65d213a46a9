//! Everything that is written: to the terminal, to a pipe, to a file. What goes to a terminal is
//! made [`printable()`] here and nowhere else.
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

/// Writes a line to stderr. Where that is closed or full, the line is lost: the command and its exit code are not.
pub(crate) fn print_stderr(text: &str) {
    to_stderr(&format!("{}\n", printable(text)));
}

/// Writes a note to stderr.
pub(crate) fn note(text: &str) {
    print_stderr(&format!("memprof: note: {text}"));
}

/// Writes a line over the last one on the terminal, until [`clear`]; nothing where nobody looks.
pub(crate) fn progress(text: &str) {
    if io::stderr().is_terminal() {
        to_stderr(&format!("\r{}", one_line(text)));
    }
}

/// Takes the line of [`progress`] away.
pub(crate) fn clear() {
    if io::stderr().is_terminal() {
        to_stderr("\r\x1b[K");
    }
}

/// In one call, so that lines of processes that share it do not mix.
fn to_stderr(text: &str) {
    // Nothing is left to which a failure could be reported.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Copies `data` to `path`, or to stdout for `-`.
pub(crate) fn save(data: &mut dyn io::Read, path: &Path) -> anyhow::Result<()> {
    write(path, |out| Ok(io::copy(data, out)?))?;
    Ok(())
}

/// Writes a dump to `path`, or to stdout for `-`, as other tools read it. Returns the length of what is written;
/// `None` if the reader of stdout went away.
pub(crate) fn export(dump: &mut dyn io::Read, path: &Path) -> anyhow::Result<Option<u64>> {
    let mut dump = BufReader::with_capacity(256 << 10, dump);
    let limits = Limits::default();
    write(path, |out| {
        Ok(memprof_report::export(&mut dump, &limits, out)?)
    })
}

/// Lets `write` fill the file at `path`, or stdout for `-`. `None` if the reader of stdout went away.
fn write<T>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<Option<T>> {
    match path == Path::new("-") {
        true => to_stdout(write),
        false => publish(path, write).map(Some),
    }
}
