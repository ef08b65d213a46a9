//! Standard output. A reader that goes away, as `head` does, or a full disk does not change what a command does.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::print_stderr;
use crate::printable::{Printable, printable};

/// Size of the buffer in bytes: large enough that a report takes few system calls.
const BUFFER_SIZE: usize = 256 << 10;

/// Set once text was lost other than because its reader went away.
static IS_INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// Calls `write` with a writer to standard output. A pipe or a file gets the bytes unchanged, a terminal in printable
/// form.
///
/// Returns `None` if the reader of standard output went away. The output is then cut short, without an error.
pub fn write_to_stdout<T>(
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<Option<T>> {
    let is_terminal = io::stdout().is_terminal();
    write_until_closed(io::stdout().lock(), is_terminal, write)
}

/// Prints a command's text in printable form, and a newline if the text does not end with one. If writing fails,
/// reports that on standard error, but only the first time, and [`is_stdout_complete`] returns false from then on. That
/// the reader went away is no failure.
pub fn print(text: &str) {
    let line_end = if text.ends_with('\n') { "" } else { "\n" };
    let text = printable(text);
    // Not for a terminal: `text` is printable already.
    let printed = write_until_closed(io::stdout().lock(), false, |out| {
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

/// Returns false if [`print()`] lost text, other than because the reader went away. The command must then fail: a
/// script would take an empty file for the result.
pub fn is_stdout_complete() -> bool {
    !IS_INCOMPLETE.load(Ordering::Relaxed)
}

/// Calls `write` with a buffered writer to `out`, and flushes the writer. With `is_terminal`, the writer makes the text
/// printable. Returns `None` without an error if the reader of `out` went away.
fn write_until_closed<T>(
    out: impl Write,
    is_terminal: bool,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<Option<T>> {
    let mut watcher = PipeWatcher {
        inner: out,
        is_closed: false,
    };
    let written = match is_terminal {
        true => write_and_flush(&mut BufWriter::new(Printable::new(&mut watcher)), write),
        false => write_and_flush(
            &mut BufWriter::with_capacity(BUFFER_SIZE, &mut watcher),
            write,
        ),
    };
    match written {
        Err(_) if watcher.is_closed => Ok(None),
        written => written.map(Some),
    }
}

/// Calls `write` with `out`, then flushes `out`. Fails if one of the two fails.
fn write_and_flush<T>(
    out: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let value = write(out)?;
    out.flush()?;
    Ok(value)
}

/// A writer that records whether its own reader went away: a `BrokenPipe` error may also come from a source that is
/// copied to it.
#[derive(Debug)]
struct PipeWatcher<W> {
    inner: W,
    is_closed: bool,
}

impl<W> PipeWatcher<W> {
    /// Sets `is_closed` if a result is the error that the reader went away (`BrokenPipe`). Returns the result
    /// unchanged.
    fn record_if_closed<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        self.is_closed |=
            matches!(&result, Err(error) if error.kind() == io::ErrorKind::BrokenPipe);
        result
    }
}

impl<W: Write> Write for PipeWatcher<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes);
        self.record_if_closed(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.inner.flush();
        self.record_if_closed(flushed)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn only_a_closed_reader_is_no_error() {
        let broken_pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        let text = |out: &mut dyn Write| Ok(out.write_all(b"text")?);
        let (reader, closed) = io::pipe().unwrap();
        drop(reader);
        assert_eq!(write_until_closed(&closed, false, text).unwrap(), None);
        assert_eq!(write_until_closed(&closed, true, text).unwrap(), None);

        let mut bytes = Vec::new();
        assert_eq!(
            write_until_closed(&mut bytes, false, text).unwrap(),
            Some(())
        );
        assert_eq!(bytes, b"text");

        // Reading from a socket may fail with the same error.
        let failed = write_until_closed(&mut bytes, false, |_| -> anyhow::Result<()> {
            Err(broken_pipe().into())
        });
        assert!(failed.unwrap_err().is::<io::Error>());

        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let lost = write_until_closed(&full, false, text).unwrap_err();
        assert!(lost.to_string().starts_with("No space left"), "{lost}");
    }
}
