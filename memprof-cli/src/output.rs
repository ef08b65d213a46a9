//! Everything that is written: to the terminal, to a pipe, to a file. What goes to a terminal is
//! made [`printable()`] here and nowhere else.
#![expect(clippy::print_stderr, reason = "the one place where notes are printed")]

mod file;
mod printable;

use std::io::{self, BufReader, BufWriter, IsTerminal, Write};
use std::path::Path;

use memprof_report::Limits;

pub(crate) use file::publish;
pub(crate) use printable::one_line;
use printable::{Printable, printable};

/// Writes text to stdout; a newline is added where it lacks one.
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

/// Writes a line over the last one on the terminal, until [`clear`]; nothing where nobody looks.
pub(crate) fn progress(text: &str) {
    if io::stderr().is_terminal() {
        eprint!("\r{}", one_line(text));
    }
}

/// Takes the line of [`progress`] away.
pub(crate) fn clear() {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

/// Stdout for data: as it is for a pipe or a file, printable for a terminal.
pub(crate) fn stdout() -> Box<dyn Write> {
    let stdout = io::stdout().lock();
    if stdout.is_terminal() {
        Box::new(BufWriter::new(Printable::new(stdout)))
    } else {
        Box::new(BufWriter::with_capacity(256 << 10, stdout))
    }
}

/// Copies `data` to `path`, or to stdout for `-`. Returns its length.
pub(crate) fn save(data: &mut dyn io::Read, path: &Path) -> anyhow::Result<u64> {
    write(path, |out| Ok(io::copy(data, out)?))
}

/// Writes a dump to `path`, or to stdout for `-`, as other tools read it. Returns the length of what is written.
pub(crate) fn export(dump: &mut dyn io::Read, path: &Path) -> anyhow::Result<u64> {
    let mut dump = BufReader::with_capacity(256 << 10, dump);
    let limits = Limits::default();
    write(path, |out| {
        Ok(memprof_report::export(&mut dump, &limits, out)?)
    })
}

fn write<T>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if path == Path::new("-") {
        let mut stdout = stdout();
        let value = write(&mut stdout)?;
        stdout.flush()?;
        return Ok(value);
    }
    publish(path, write)
}

/// True when the reader of stdout went away, as `head` does.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
