//! Standard output. A reader that goes away, as `head` does, or a full disk changes nothing that a command decides.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use super::print_stderr;
use super::printable::Printable;

/// Large enough that a report takes few system calls.
const BUFFER: usize = 256 << 10;

/// Text was lost, and not because its reader had enough.
static IS_INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// Lets `write` fill standard output: byte for byte into a pipe or a file, printable on a terminal.
///
/// `None` if the reader went away before the end: `write` is cut short then, and that is no error.
pub(crate) fn to_stdout<T>(
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<Option<T>> {
    let is_terminal = io::stdout().is_terminal();
    fill(io::stdout().lock(), is_terminal, write)
}

/// Prints what a command has to say. Where it cannot be written, that is said on standard error, once, and
/// [`is_complete`] keeps it.
pub(crate) fn print(text: &str) {
    let line_end = if text.ends_with('\n') { "" } else { "\n" };
    let text = super::printable(text);
    let printed = fill(io::stdout().lock(), false, |out| {
        Ok(write!(out, "{text}{line_end}")?)
    });
    if let Err(error) = printed
        && !IS_INCOMPLETE.swap(true, Ordering::Relaxed)
    {
        print_stderr(&format!(
            "memprof: failed to write to standard output: {error:#}"
        ));
    }
}

/// Whether all text was written. Where some was lost, success is none: who reads an empty file would take that for the
/// answer.
pub(crate) fn is_complete() -> bool {
    !IS_INCOMPLETE.load(Ordering::Relaxed)
}

fn fill<T>(
    out: impl Write,
    is_terminal: bool,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<Option<T>> {
    let mut watched = Watched {
        inner: out,
        is_closed: false,
    };
    let written = match is_terminal {
        true => whole(&mut BufWriter::new(Printable::new(&mut watched)), write),
        false => whole(&mut BufWriter::with_capacity(BUFFER, &mut watched), write),
    };
    match written {
        Err(_) if watched.is_closed => Ok(None),
        written => written.map(Some),
    }
}

fn whole<T>(
    out: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let value = write(out)?;
    out.flush()?;
    Ok(value)
}

/// Remembers that the reader went away: the same error may come from what is read meanwhile.
#[derive(Debug)]
struct Watched<W> {
    inner: W,
    is_closed: bool,
}

impl<W> Watched<W> {
    fn watch<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        self.is_closed |=
            matches!(&result, Err(error) if error.kind() == io::ErrorKind::BrokenPipe);
        result
    }
}

impl<W: Write> Write for Watched<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes);
        self.watch(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.inner.flush();
        self.watch(flushed)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn only_a_reader_that_went_away_is_no_error() {
        let broken_pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        let text = |out: &mut dyn Write| Ok(out.write_all(b"text")?);
        let (reader, closed) = io::pipe().unwrap();
        drop(reader);
        assert_eq!(fill(&closed, false, text).unwrap(), None);
        assert_eq!(fill(&closed, true, text).unwrap(), None);

        let mut bytes = Vec::new();
        assert_eq!(fill(&mut bytes, false, text).unwrap(), Some(()));
        assert_eq!(bytes, b"text");

        // A socket that is read meanwhile breaks alike.
        let failed = fill(&mut bytes, false, |_| -> anyhow::Result<()> {
            Err(broken_pipe().into())
        });
        assert!(failed.unwrap_err().is::<io::Error>());

        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let lost = fill(&full, false, text).unwrap_err();
        assert!(lost.to_string().starts_with("No space left"), "{lost}");
    }
}
