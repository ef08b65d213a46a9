//! Connections that stay open with half a request, for which a server keeps memory.

use std::io::Write;
use std::net::TcpStream;

use anyhow::Result;

/// They close when dropped.
#[derive(Debug, Default)]
pub(crate) struct HalfOpenConnections {
    _connections: Vec<TcpStream>,
}

impl HalfOpenConnections {
    /// Opens `count` connections, each of which says `beginning`.
    pub(crate) fn open(port: u16, count: usize, beginning: &[u8]) -> Result<Self> {
        let connections = (0..count).map(|_| {
            let mut connection = TcpStream::connect(("127.0.0.1", port))?;
            connection.write_all(beginning)?;
            Ok(connection)
        });
        Ok(Self {
            _connections: connections.collect::<Result<_>>()?,
        })
    }
}
