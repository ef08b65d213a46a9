//! Address to listen at, as people write it.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use serde::Deserialize;

/// `HOST:PORT`, `:PORT` for every interface, or `PORT` for this machine alone.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ListenAddress {
    /// Address behind the name.
    pub(crate) socket: SocketAddr,
    /// Name by which clients call the server, if it was not written as an address.
    pub(crate) host_name: Option<String>,
}

/// Reason why a text is no address.
#[derive(Debug, thiserror::Error)]
pub enum ListenAddressError {
    /// The port is missing, or above 65535.
    #[error("it has no port from 0 to 65535: valid are HOST:PORT, :PORT and PORT")]
    Port,
    /// A colon is in the name: it is an IPv6 address, whose end could also be the port.
    #[error("it has more than one colon: an IPv6 address needs brackets, such as [::1]:7070")]
    Brackets,
    /// The name is unknown to the resolver.
    #[error("failed to look up {0:?}: {1}")]
    Lookup(String, #[source] io::Error),
}

impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    /// Parses `HOST:PORT`, where HOST is a name or an address. `PORT` alone means 127.0.0.1, and `:PORT` all addresses
    /// of IPv4. Looks up a name, which blocks; its first address counts. Fails if the port is missing or invalid, an
    /// address of IPv6 has no brackets, or the lookup finds no address.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(socket) = text.parse::<SocketAddr>() {
            return Ok(socket.into());
        }
        let (host, port) = match text.rsplit_once(':') {
            None => (Some("127.0.0.1"), text),
            Some(("", port)) => (None, port),
            Some((host, port)) => (Some(host), port),
        };
        if host.is_some_and(|host| host.contains(':') && !host.starts_with('[')) {
            return Err(ListenAddressError::Brackets);
        }
        let port: u16 = port.parse().map_err(|_| ListenAddressError::Port)?;
        let Some(host) = host else {
            return Ok(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into());
        };
        let failed = |error| ListenAddressError::Lookup(host.to_owned(), error);
        let mut found = (host, port).to_socket_addrs().map_err(failed)?;
        let socket = found
            .next()
            .ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        // Only a name counts as the server's host name. An IPv6 address in brackets was parsed above.
        let host_name = host.parse::<Ipv4Addr>().is_err().then(|| host.to_owned());
        Ok(Self { socket, host_name })
    }
}

impl TryFrom<String> for ListenAddress {
    type Error = ListenAddressError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(socket: SocketAddr) -> Self {
        Self {
            socket,
            host_name: None,
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_parsed_as_people_write_it() {
        let check = |text: &str, socket: &str, host_name: Option<&str>| {
            let parsed: ListenAddress = text.parse().unwrap();
            assert_eq!(parsed.socket.to_string(), socket, "{text}");
            assert_eq!(parsed.host_name.as_deref(), host_name, "{text}");
        };
        check("127.0.0.1:7070", "127.0.0.1:7070", None);
        check("[::1]:7070", "[::1]:7070", None);
        check("7070", "127.0.0.1:7070", None);
        check(":7070", "0.0.0.0:7070", None);
        check("0", "127.0.0.1:0", None);
        let localhost: ListenAddress = "localhost:7070".parse().unwrap();
        assert!(localhost.socket.ip().is_loopback(), "{localhost}");
        assert_eq!(localhost.host_name.as_deref(), Some("localhost"));
    }

    #[test]
    fn text_that_is_no_address_is_refused_with_the_reason() {
        let check = |text: &str, expected: &str| {
            let error = text.parse::<ListenAddress>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        };
        check("", "it has no port");
        check("localhost", "it has no port");
        check("localhost:", "it has no port");
        check("127.0.0.1", "it has no port");
        check("65536", "it has no port");
        for address in ["::1:7070", ":::7070", "::1", "fe80::1%lo:7070", "a:b:7070"] {
            check(
                address,
                "it has more than one colon: an IPv6 address needs brackets",
            );
        }
        check("[::1]", "it has no port");
        check("[::1%lo]:7070", "failed to look up");
        check("no-such-host.invalid:7070", "failed to look up");
    }
}
