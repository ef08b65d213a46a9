//! Output of another process, read by lines, with limits of time and length.

use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Most bytes of a line, and of [`LineReader::read_to_end`].
const MAX_BYTES: usize = 1 << 20;

/// Reads a pipe or a socket by lines. A process that hangs gives an error of the kind `TimedOut`.
#[derive(Debug)]
pub struct LineReader<R> {
    source: R,
    /// Bytes that were read, and not returned yet.
    unread: Vec<u8>,
}

impl<R: Read + AsFd> LineReader<R> {
    /// Reads from `source`, from which nothing else may read.
    pub fn new(source: R) -> Self {
        Self {
            source,
            unread: Vec::new(),
        }
    }

    /// Reads the next line, with its newline. At the end of the output, returns what follows the last newline, and then
    /// an empty text. Bytes that are no UTF-8 are replaced.
    ///
    /// # Errors
    /// `TimedOut`: the line did not come, or not as a whole. `InvalidData`: it is longer than 1 MiB. Other kinds are
    /// those of the read.
    pub fn read_line(&mut self, timeout: Duration) -> io::Result<String> {
        self.read_line_since(Instant::now(), timeout)
    }

    /// Reads lines until `find` returns a value for one, which it gets without its newline, and returns the value.
    ///
    /// # Errors
    /// `TimedOut`: the line did not come within `timeout`, however many others came. `UnexpectedEof`: the output ended
    /// before. Else as [`read_line`](Self::read_line).
    pub fn find_line<T>(
        &mut self,
        timeout: Duration,
        mut find: impl FnMut(&str) -> Option<T>,
    ) -> io::Result<T> {
        let start = Instant::now();
        loop {
            let line = self.read_line_since(start, timeout)?;
            if line.is_empty() {
                let message = "the output ended before the expected line";
                return Err(io::Error::new(ErrorKind::UnexpectedEof, message));
            }
            if let Some(found) = find(line.trim_end_matches('\n')) {
                return Ok(found);
            }
        }
    }

    /// Reads the rest of the output. Bytes that are no UTF-8 are replaced.
    ///
    /// # Errors
    /// `TimedOut`: the output does not end. `InvalidData`: it is longer than 1 MiB. Other kinds are those of the read.
    pub fn read_to_end(&mut self, timeout: Duration) -> io::Result<String> {
        let start = Instant::now();
        while self.read_more(start, timeout)? {}
        Ok(self.take(self.unread.len()))
    }

    /// Returns a reader of the rest, which waits without a limit: for a thread that empties the pipe.
    pub fn into_inner(self) -> impl BufRead {
        Cursor::new(self.unread).chain(BufReader::new(self.source))
    }

    /// Like [`read_line`](Self::read_line), with a timeout that began at `start`.
    fn read_line_since(&mut self, start: Instant, timeout: Duration) -> io::Result<String> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                return Ok(self.take(end + 1));
            }
            if !self.read_more(start, timeout)? {
                return Ok(self.take(self.unread.len()));
            }
        }
    }

    /// Waits for more output, and reads some of it. Returns false at its end.
    fn read_more(&mut self, start: Instant, timeout: Duration) -> io::Result<bool> {
        if self.unread.len() > MAX_BYTES {
            let message =
                format!("the output has more than {MAX_BYTES} bytes without the expected end");
            return Err(io::Error::new(ErrorKind::InvalidData, message));
        }
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                let message =
                    format!("it hangs: the expected output did not come within {timeout:?}");
                return Err(io::Error::new(ErrorKind::TimedOut, message));
            }
            // poll(2) counts whole milliseconds: without the added one, the last would be a busy loop.
            let left = PollTimeout::try_from(left + Duration::from_millis(1));
            let mut polled = [PollFd::new(self.source.as_fd(), PollFlags::POLLIN)];
            match poll(&mut polled, left.unwrap_or(PollTimeout::MAX)) {
                Ok(0) | Err(Errno::EINTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            let mut piece = [0; 8192];
            match self.source.read(&mut piece) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => {
                    let count = read?;
                    self.unread.extend_from_slice(&piece[..count]);
                    return Ok(count > 0);
                }
            }
        }
    }

    /// Removes the first `count` unread bytes, and returns them as text.
    fn take(&mut self, count: usize) -> String {
        let taken: Vec<u8> = self.unread.drain(..count).collect();
        String::from_utf8_lossy(&taken).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::BorrowedFd;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);
    const SHORT: Duration = Duration::from_millis(1);

    /// Output of a process that prints empty lines without an end. Its file is always ready to be read.
    struct EndlessLines(File);

    impl Read for EndlessLines {
        fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
            piece.fill(b'\n');
            Ok(piece.len())
        }
    }

    impl AsFd for EndlessLines {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    #[test]
    fn lines_come_one_by_one_and_the_rest_at_the_end() {
        let (output, mut input) = io::pipe().unwrap();
        input.write_all(b"one\ntwo\n\xff").unwrap();
        let mut lines = LineReader::new(output);
        assert_eq!(lines.read_line(LONG).unwrap(), "one\n");
        assert_eq!(lines.read_line(LONG).unwrap(), "two\n");
        drop(input);
        assert_eq!(lines.read_line(LONG).unwrap(), "\u{fffd}");
        assert_eq!(lines.read_line(LONG).unwrap(), "");
    }

    #[test]
    fn process_that_hangs_is_an_error() {
        // The open writer is a process that writes no more.
        let (output, mut input) = io::pipe().unwrap();
        input.write_all(b"half a line").unwrap();
        let mut lines = LineReader::new(output);
        let hangs = |error: io::Error| assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        hangs(lines.read_line(SHORT).unwrap_err());
        hangs(lines.read_to_end(SHORT).unwrap_err());
        hangs(lines.find_line(SHORT, |_| Some(())).unwrap_err());
        input.write_all(b", and the other\n").unwrap();
        assert_eq!(
            lines.read_line(LONG).unwrap(),
            "half a line, and the other\n"
        );
    }

    #[test]
    fn other_lines_do_not_prolong_the_wait() {
        let endless = || File::open("/dev/zero").unwrap();
        let error = LineReader::new(endless()).read_line(LONG).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        let error = LineReader::new(EndlessLines(endless()))
            .find_line(Duration::from_millis(20), |_| None::<()>)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    }

    #[test]
    fn line_is_found_and_the_rest_is_kept() {
        let (output, mut input) = io::pipe().unwrap();
        input.write_all(b"log\nport 7\nmore\nend").unwrap();
        drop(input);
        let mut lines = LineReader::new(output);
        let port = lines.find_line(LONG, |line| line.strip_prefix("port ")?.parse::<u16>().ok());
        assert_eq!(port.unwrap(), 7);
        let error = lines
            .find_line(LONG, |line| (line == "never").then_some(()))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");

        let (output, mut input) = io::pipe().unwrap();
        input.write_all(b"one\ntwo\nthree").unwrap();
        drop(input);
        let mut lines = LineReader::new(output);
        lines.read_line(LONG).unwrap();
        let mut rest = String::new();
        lines.into_inner().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "two\nthree");
    }
}
