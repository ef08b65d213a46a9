//! Connections: accepted, limited in number and time, and served.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// More than a person's pages and scripts have open.
const CONNECTIONS: usize = 64;
/// From the connection's start, or the last reply, to the end of a request's head.
const HEAD: Duration = Duration::from_secs(30);
/// A client that reads nothing keeps its connection no longer.
const CONNECTION: Duration = Duration::from_secs(3600);
/// What `accept` waits when there are no descriptors left.
const BREATH: Duration = Duration::from_millis(100);

/// Where clients connect.
#[derive(Debug)]
pub enum Listener {
    /// An address.
    Tcp(TcpListener),
    /// A path.
    Unix(UnixListener),
}

impl Listener {
    /// Listens at a path, for this user alone. What a server left there that ended is replaced.
    ///
    /// # Errors
    /// Somebody listens there, or the path cannot be used.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let directory = path.parent().filter(|parent| *parent != Path::new(""));
        memprof_host::socket_dir::check_parent(directory.unwrap_or(Path::new(".")))?;
        match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)?;
            }
            Err(_) => {}
        }
        UnixListener::from_std(bind_private(path)?).map(Self::Unix)
    }
}

/// A socket's mode is that of its descriptor when it is bound: never open to others, not even for
/// a moment.
fn bind_private(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(0o600))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket.into())
}

/// Serves until `end`; connections that are open then are dropped.
pub async fn serve(listener: Listener, router: Router, end: impl Future<Output = ()>) {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    let accept = async {
        loop {
            // Closed only with this loop.
            let Ok(permit) = Arc::clone(&free).acquire_owned().await else {
                return;
            };
            let router = router.clone();
            let accepted = match &listener {
                Listener::Tcp(tcp) => tcp.accept().await.map(|(stream, _)| {
                    tokio::spawn(async move {
                        talk(stream, router).await;
                        drop(permit);
                    });
                }),
                Listener::Unix(unix) => unix.accept().await.map(|(stream, _)| {
                    tokio::spawn(async move {
                        talk(stream, router).await;
                        drop(permit);
                    });
                }),
            };
            if let Err(error) = accepted {
                log::warn!("failed to accept a connection: {error}");
                sleep(BREATH).await;
            }
        }
    };
    tokio::select! {
        () = accept => {}
        () = end => {}
    }
}

async fn talk(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match timeout(CONNECTION, served).await {
        Ok(Ok(())) => {}
        // A client that leaves is no news.
        Ok(Err(error)) => log::debug!("a connection ended: {error}"),
        Err(_) => log::debug!("a connection was open too long"),
    }
}
