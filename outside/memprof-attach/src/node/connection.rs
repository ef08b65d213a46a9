//! A TCP connection whose reads and writes share one deadline, however slowly the peer sends.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A connection with a deadline for all its reads and writes.
#[derive(Debug)]
pub(super) struct InspectorConnection {
    stream: TcpStream,
    deadline: Instant,
}

impl InspectorConnection {
    /// Connects within `timeout`, which also limits the first reads and writes. Fails with `TimedOut` after that time.
    pub(super) fn connect(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + timeout;
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        Ok(Self { stream, deadline })
    }

    /// Sets the deadline of later reads and writes to `timeout` from now.
    pub(super) fn extend_deadline(&mut self, timeout: Duration) {
        self.deadline = Instant::now() + timeout;
    }

    /// Returns the time until the deadline; never 0, which is no valid timeout of a socket.
    ///
    /// # Errors
    /// `TimedOut`: the deadline has passed.
    fn remaining_time(&self) -> io::Result<Duration> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        match remaining.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(remaining),
        }
    }
}

impl Read for InspectorConnection {
    /// Reads from the peer. Fails with `TimedOut` at the deadline.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.remaining_time()?))?;
        self.stream.read(bytes).map_err(convert_timeout_error)
    }
}

impl Write for InspectorConnection {
    /// Writes to the peer. Fails with `TimedOut` at the deadline.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream
            .set_write_timeout(Some(self.remaining_time()?))?;
        self.stream.write(bytes).map_err(convert_timeout_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Converts EAGAIN, with which the kernel reports a timeout, to `TimedOut`. Returns other errors as they are.
fn convert_timeout_error(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn silent_peer_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut connection =
            InspectorConnection::connect(address, Duration::from_millis(20)).unwrap();
        let error = connection.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let error = connection.write(&[0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        connection.extend_deadline(Duration::from_secs(60));
        assert_eq!(connection.write(&[0]).unwrap(), 1);
    }
}
