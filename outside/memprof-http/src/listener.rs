//! Accepts connections and serves them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::connection::serve_connection;
use crate::connections::Connections;
use crate::peer::Peer;
use crate::unix_socket::{self, BoundPath};

/// Delay after `accept` failed because no descriptors are left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Listening socket, TCP or Unix.
#[derive(Debug)]
pub struct Listener {
    socket: ListeningSocket,
    /// Path of a Unix socket, removed when dropped.
    _bound: Option<BoundPath>,
}

#[derive(Debug)]
enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum AcceptedStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// Creates a listener of a TCP socket that listens already.
    pub fn from_tcp(listener: TcpListener) -> Self {
        Self {
            socket: ListeningSocket::Tcp(listener),
            _bound: None,
        }
    }

    /// Listens at a Unix socket with this path, to which only this user can connect. Replaces a socket that an ended
    /// server left there. Dropping the listener removes the socket. Panics outside of a Tokio runtime.
    ///
    /// # Errors
    /// Another process listens there, the path is not a socket, or it cannot be used.
    pub fn bind_unix(path: &Path) -> io::Result<Self> {
        let (socket, bound) = unix_socket::listen(path)?;
        Ok(Self {
            socket: ListeningSocket::Unix(UnixListener::from_std(socket)?),
            _bound: Some(bound),
        })
    }

    /// Waits for the next connection. Fails, for example, if no descriptor is left.
    async fn accept(&self) -> io::Result<AcceptedStream> {
        match &self.socket {
            ListeningSocket::Tcp(tcp) => Ok(AcceptedStream::Tcp(tcp.accept().await?.0)),
            ListeningSocket::Unix(unix) => Ok(AcceptedStream::Unix(unix.accept().await?.0)),
        }
    }
}

/// Accepts and serves connections until the future `end` completes. Connections that are open at that time last until
/// the Tokio runtime is shut down. If a connection cannot be accepted, evicts the slowest connection, because the
/// system may have no descriptor left.
pub async fn serve(listener: Listener, router: Router, end: impl Future<Output = ()>) {
    let clients = Arc::default();
    let accept = async {
        loop {
            match listener.accept().await {
                Ok(stream) => {
                    tokio::spawn(serve_client(stream, Arc::clone(&clients), router.clone()));
                }
                Err(error) => {
                    log::warn!("failed to accept a connection: {error}");
                    clients.evict_slowest_connection();
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
            // Lets accepted connections send their request before the next one can evict them.
            yield_now().await;
        }
    };
    tokio::select! {
        () = accept => {}
        () = end => {}
    }
}

/// Serves a connection in a slot of its own. Closes it without a reply if all slots are in use, also the surplus slots,
/// in which a client only receives a 503 reply.
async fn serve_client(stream: AcceptedStream, clients: Arc<Connections>, router: Router) {
    let Some(slot) = clients.acquire_slot() else {
        return;
    };
    match stream {
        AcceptedStream::Tcp(stream) => {
            let peer = Peer::from_tcp(&stream).await;
            serve_connection(stream, peer, slot, router).await;
        }
        AcceptedStream::Unix(stream) => {
            let peer = Peer::from_unix(&stream);
            serve_connection(stream, peer, slot, router).await;
        }
    }
}
