//! Connections that stay open after half a request, for which a server keeps buffers.

use std::io::Write;
use std::net::TcpStream;

use anyhow::Result;

/// Connections to a server that wait for the rest of a request; dropping them closes them.
#[derive(Debug, Default)]
pub(crate) struct HalfOpenConnections {
    _connections: Vec<TcpStream>,
}

impl HalfOpenConnections {
    /// Opens `count` connections to a port of 127.0.0.1 and sends `beginning` on each.
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
