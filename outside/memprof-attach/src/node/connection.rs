//! A connection that fails at a moment, however slowly the other side goes on.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct InspectorConnection {
    stream: TcpStream,
    until: Instant,
}

impl InspectorConnection {
    pub(super) fn new(address: SocketAddr, patience: Duration) -> io::Result<Self> {
        let until = Instant::now() + patience;
        let stream = TcpStream::connect_timeout(&address, patience)?;
        Ok(Self { stream, until })
    }

    /// Gives it another while from now on.
    pub(super) fn extend(&mut self, patience: Duration) {
        self.until = Instant::now() + patience;
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(left),
        }
    }
}

impl Read for InspectorConnection {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(bytes).map_err(late)
    }
}

impl Write for InspectorConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes).map_err(late)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// The kernel says EAGAIN where time is up.
fn late(error: io::Error) -> io::Error {
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
    fn a_peer_that_says_nothing_is_late() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut connection = InspectorConnection::new(address, Duration::from_millis(20)).unwrap();
        let late = connection.read(&mut [0]).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        let late = connection.write(&[0]).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        connection.extend(Duration::from_secs(60));
        assert_eq!(connection.write(&[0]).unwrap(), 1);
    }
}
