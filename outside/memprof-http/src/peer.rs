//! Identifies the user at the other end of a connection.

mod sock_diag;
mod tcp_table;

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Permits to read tables of sockets, each on a thread of its own.
static TABLE_READS: Semaphore = Semaphore::const_new(2);

/// The user at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// User id. `None` on another machine, or if unknown.
    uid: Option<u32>,
    /// Address of a TCP client. `None` of a Unix socket's.
    pub(crate) address: Option<IpAddr>,
}

impl Peer {
    /// Identifies the user of a client at a Unix socket by the credentials that the kernel reports (`SO_PEERCRED`). The
    /// user is unknown if the kernel reports none.
    pub(crate) fn from_unix(stream: &UnixStream) -> Self {
        let credentials = stream.peer_cred();
        let uid = credentials.map(|credentials| credentials.uid());
        Self {
            uid: uid.ok(),
            address: None,
        }
    }

    /// Identifies the user of a TCP client by the socket at the client's end. The user stays unknown if the client is
    /// on another machine, has left, or its socket cannot be found; a failed search is logged.
    pub(crate) async fn from_tcp(stream: &TcpStream) -> Self {
        let (Ok(server), Ok(client)) = (stream.local_addr(), stream.peer_addr()) else {
            // The client has disconnected.
            return Self {
                uid: None,
                address: None,
            };
        };
        let uid = match client.ip().is_loopback() {
            true => find_socket_uid(client, server).await,
            false => Ok(None),
        };
        let uid = uid.unwrap_or_else(|error| {
            log::warn!("failed to find out whose a connection is: {error}");
            None
        });
        // If this connection was reset during the search, a new connection may have the same addresses, and the user
        // may be that of the new one. A reset connection has no peer address, so this check detects the case.
        let is_open = stream.peer_addr().is_ok_and(|current| current == client);
        Self {
            uid: uid.filter(|_| is_open),
            address: Some(client.ip()),
        }
    }

    /// Returns whether the client's user is root or the user of this process. False if the client's user is unknown.
    pub(crate) fn is_same_user_or_root(self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        self.uid.is_some_and(|uid| uid == own || uid == 0)
    }

    /// Describes the user for error messages, as `uid 1000` or `another machine or an unknown user`.
    pub(crate) fn describe(self) -> String {
        match self.uid {
            Some(uid) => format!("uid {uid}"),
            None => "another machine or an unknown user".to_owned(),
        }
    }
}

/// Returns the user id of the socket on this machine that is bound to `own` and connected to `other`. Queries the
/// kernel or, if that fails, searches the tables in /proc, which takes longer. `None` if there is no such socket, or it
/// is not a client's open socket.
async fn find_socket_uid(own: SocketAddr, other: SocketAddr) -> io::Result<Option<u32>> {
    match sock_diag::find_socket(own, other) {
        Ok(socket) => Ok(socket.and_then(Socket::client_uid)),
        Err(error) => {
            // Some sandboxes have no netlink, and some kernels no sock_diag.
            log::debug!("sock_diag: {error}");
            let _permit = TABLE_READS.acquire().await.map_err(io::Error::other)?;
            let read = spawn_blocking(move || tcp_table::find_socket(own, other)).await;
            Ok(read
                .map_err(io::Error::other)??
                .and_then(Socket::client_uid))
        }
    }
}

/// A TCP socket on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Socket {
    /// State as in `net/tcp_states.h`.
    state: u8,
    uid: u32,
    inode: u64,
}

impl Socket {
    /// `TCP_ESTABLISHED`, `TCP_FIN_WAIT1`, `TCP_FIN_WAIT2`: a client that may still read.
    const CLIENT_STATES: [u8; 3] = [1, 4, 5];

    /// Returns the owner of a client's socket. `None` if the state is not that of a client, or the client's program
    /// closed the socket: a closed socket has inode 0, and the kernel reports root as its owner.
    fn client_uid(self) -> Option<u32> {
        let is_client = Self::CLIENT_STATES.contains(&self.state) && self.inode != 0;
        is_client.then_some(self.uid)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[test]
    fn owner_is_known_only_of_open_client_socket() {
        let check = |state, inode, expected| {
            let socket = Socket {
                state,
                uid: 33,
                inode,
            };
            assert_eq!(socket.client_uid(), expected, "{socket:?}");
        };
        check(1, 77, Some(33));
        // The client has sent all and still reads.
        check(5, 77, Some(33));
        // The client's program closed the socket.
        check(5, 0, None);
        check(6, 0, None);
        // Connecting, closed by the server, or listening: not the client of this connection.
        check(2, 77, None);
        check(8, 77, None);
        check(10, 77, None);
    }

    /// Returns both ends of a connection to an address.
    async fn connected(address_text: &str) -> (std::net::TcpStream, TcpStream) {
        let server = tokio::net::TcpListener::bind(address_text).await.unwrap();
        let client = std::net::TcpStream::connect(server.local_addr().unwrap()).unwrap();
        (client, server.accept().await.unwrap().0)
    }

    #[test]
    fn client_is_known_until_it_closes() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        runtime.block_on(async {
            let own = rustix::process::geteuid().as_raw();
            for address_text in ["127.0.0.1:0", "[::1]:0"] {
                let (client, mut stream) = connected(address_text).await;
                let (server, address) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
                for find in [sock_diag::find_socket, tcp_table::find_socket] {
                    let socket = find(address, server).unwrap().unwrap();
                    assert_eq!((socket.client_uid(), socket.state), (Some(own), 1));
                }
                assert_eq!(Peer::from_tcp(&stream).await.uid, Some(own));
                drop(client);
                // A process that another test forks keeps the socket open until it calls execve(2).
                assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
                for find in [sock_diag::find_socket, tcp_table::find_socket] {
                    let socket = find(address, server).unwrap();
                    assert_eq!(socket.and_then(Socket::client_uid), None, "{socket:?}");
                }
                assert_eq!(Peer::from_tcp(&stream).await.uid, None);
            }
        });
    }
}
