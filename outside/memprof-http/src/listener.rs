//! Where clients connect, and the end of it.

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

/// What `accept` waits when there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// Where clients connect.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    /// Its path, which is removed in the end.
    _bound: Option<BoundPath>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// Listens at an address.
    pub fn tcp(listener: TcpListener) -> Self {
        Self {
            socket: Socket::Tcp(listener),
            _bound: None,
        }
    }

    /// Listens at a path, for this user alone. A socket that a server left there is replaced, and
    /// this one is removed in the end.
    ///
    /// # Errors
    /// Somebody listens there, something else than a socket lies there, or the path cannot be used.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let (socket, bound) = unix_socket::listen(path)?;
        Ok(Self {
            socket: Socket::Unix(UnixListener::from_std(socket)?),
            _bound: Some(bound),
        })
    }

    async fn accept(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::Tcp(tcp) => Ok(Stream::Tcp(tcp.accept().await?.0)),
            Socket::Unix(unix) => Ok(Stream::Unix(unix.accept().await?.0)),
        }
    }
}

/// Serves until `end`; connections that are open then are dropped.
pub async fn serve(listener: Listener, router: Router, end: impl Future<Output = ()>) {
    let clients = Arc::default();
    let accept = async {
        loop {
            match listener.accept().await {
                Ok(stream) => {
                    tokio::spawn(welcome(stream, Arc::clone(&clients), router.clone()));
                }
                Err(error) => {
                    log::warn!("failed to accept a connection: {error}");
                    clients.evict_one();
                    sleep(PAUSE).await;
                }
            }
            // Who is here already sends its request before the next one can push it out.
            yield_now().await;
        }
    };
    tokio::select! {
        () = accept => {}
        () = end => {}
    }
}

async fn welcome(stream: Stream, clients: Arc<Connections>, router: Router) {
    let Some(place) = clients.enter() else {
        return;
    };
    match stream {
        Stream::Tcp(stream) => {
            let peer = Peer::from_tcp(&stream).await;
            serve_connection(stream, peer, place, router).await;
        }
        Stream::Unix(stream) => {
            let peer = Peer::from_unix(&stream);
            serve_connection(stream, peer, place, router).await;
        }
    }
}
