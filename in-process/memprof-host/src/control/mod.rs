//! The control socket of a host.
//!
//! One thread blocks in `accept`; each connection has a thread of its own while it is open. So no thread wakes up while
//! there are no requests, and a long dump does not delay other connections. A thread waits a second for the next
//! connection before it ends: otherwise the memory that an allocator keeps for each new thread would add up.

mod connection;
mod host_info;
mod listener;
mod service;
mod worker_pool;

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, mem, thread};

use memprof_own::{GuardedFd, Needs, Privileges, Thread};
use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde_json::Value;

use crate::protocol::{self, HostInfo};
use crate::router::Router;
use connection::{ControlConnection, serve_connection};
use listener::Listener;
use service::Service;
use worker_pool::WorkerPool;

/// Largest number of connections. A further one evicts the one for which the host has waited longest: a silent one, one
/// that sends slowly, or one that does not read.
const CONNECTION_LIMIT: usize = 32;
/// Delay before accepting again when the program has no descriptor or memory left. Without it the thread would spin.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Timeout of pending replies when the socket is closed.
#[cfg(feature = "adapters")]
const LAST_REPLIES_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two checks for pending replies.
#[cfg(feature = "adapters")]
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Options of a control socket, and the identity of its host.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// Path of the socket; by default `<pid>.sock` in the default directory.
    pub path: Option<PathBuf>,
    /// Name of the host.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Ids of the users who may connect, besides root and the host's user.
    pub allow_uids: Vec<u32>,
    /// Whether messages are handled with the capabilities of the program, as on its own threads, instead of the few
    /// that memory_profile needs.
    pub keeps_capabilities: bool,
}

/// The error of a control socket that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("control socket {}: {cause}", path.display())]
pub struct ControlError {
    /// Path of the socket or of its directory.
    pub path: PathBuf,
    /// Cause of the failure.
    pub cause: io::Error,
}

/// An open control socket. Dropping it closes the socket and removes its files.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    /// Id of the process that opened it.
    process: u32,
    shared: Arc<SocketState>,
    acceptor: Mutex<Option<Thread>>,
}

/// State that the threads of a control socket share.
#[derive(Debug)]
struct SocketState {
    /// Path in the config. `None` for the default path.
    configured_path: Option<PathBuf>,
    /// `None` if it was closed and cannot be opened again.
    listener: Mutex<Option<Arc<Listener>>>,
    service: Service,
    allow_uids: Vec<u32>,
    is_stopping: AtomicBool,
    connections: Mutex<ConnectionTable>,
    workers: WorkerPool,
}

/// The open connections.
#[derive(Debug, Default)]
struct ConnectionTable {
    next_id: u64,
    open: HashMap<u64, ControlConnection>,
}

impl ControlSocket {
    /// Opens the socket and starts the thread that accepts connections.
    ///
    /// # Errors
    /// The directory is not safe, another host has the path, or a system call fails.
    pub fn open(listen: ListenConfig, router: Arc<Router>) -> Result<Self, ControlError> {
        let listener = Listener::bind(listen.path.as_deref())?;
        let path = listener.path().to_owned();
        let needs = Needs {
            calls_plugins: true,
            keeps_capabilities: listen.keeps_capabilities,
        };
        let info = HostInfo::for_this_process(listen.name, listen.version);
        let shared = Arc::new(SocketState {
            configured_path: listen.path,
            listener: Mutex::new(Some(Arc::new(listener))),
            service: Service { router, info },
            allow_uids: listen.allow_uids,
            is_stopping: AtomicBool::new(false),
            connections: Mutex::default(),
            workers: WorkerPool::new(needs),
        });
        let acceptor = memprof_own::spawn_with_needs(c"memprof-control", needs, {
            let shared = Arc::clone(&shared);
            move |privileges| shared.accept_connections(privileges)
        })
        .map_err(|cause| ControlError {
            path: path.clone(),
            cause,
        })?;
        Ok(Self {
            path,
            process: std::process::id(),
            shared,
            acceptor: Mutex::new(Some(acceptor)),
        })
    }

    /// Returns the path at which the socket was opened, or its abstract name after an `@`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the socket's files, for a process that exits without dropping the socket. Does nothing while a thread
    /// holds the lock of the listener.
    #[cfg(feature = "adapters")]
    pub(crate) fn remove_files(&self) {
        if let Ok(listener) = self.shared.listener.try_lock()
            && let Some(listener) = &*listener
        {
            listener.remove_files();
        }
    }
}

impl ControlSocket {
    /// Closes the socket after all received requests were answered, or after [`LAST_REPLIES_TIMEOUT`].
    #[cfg(feature = "adapters")]
    pub(crate) fn close(&self) {
        let start = Instant::now();
        while self.shared.lock_connections().has_busy_connection()
            && start.elapsed() < LAST_REPLIES_TIMEOUT
        {
            thread::sleep(POLL_INTERVAL);
        }
        self.shut_down();
    }

    /// Closes the socket and all connections, and waits until their threads have ended. Does nothing in a forked child.
    fn shut_down(&self) {
        // A forked child has neither the threads nor the descriptors, and its locks may stay locked for ever.
        if self.process != std::process::id() {
            return;
        }
        self.shared.is_stopping.store(true, Ordering::Release);
        if let Some(listener) = self.shared.listener() {
            listener.shut_down();
        }
        let acceptor = self
            .acceptor
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(acceptor) = acceptor {
            acceptor.join();
        }
        // The acceptor may have ended before, because the socket could not be opened again.
        self.shared.close_connections();
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl SocketState {
    /// Returns the listener. `None` if it was closed and cannot be opened again.
    fn listener(&self) -> Option<Arc<Listener>> {
        let listener = self.listener.lock();
        listener.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Removes the listener from the state, and returns it. It is closed when its last owner drops it. `None` if there
    /// is none.
    fn take_listener(&self) -> Option<Arc<Listener>> {
        let listener = self.listener.lock();
        listener.unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Closes all connections and the listener, and waits until the connections' threads have ended, because one of
    /// these threads may own the last reference to a plugin.
    fn close_connections(&self) {
        let open = mem::take(&mut self.lock_connections().open);
        open.values().for_each(ControlConnection::disconnect);
        self.workers.join_all();
        drop(self.take_listener());
    }

    /// Opens the socket again, after the program closed its descriptor. Fails if another host has the path, or if its
    /// directory is not safe; there is no listener then.
    fn reopen_listener(&self) -> Result<Arc<Listener>, ControlError> {
        // Dropped first, because it holds the lock of the path.
        drop(self.take_listener());
        let listener = Arc::new(Listener::bind(self.configured_path.as_deref())?);
        let mut slot = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = Some(Arc::clone(&listener));
        Ok(listener)
    }

    /// Locks the table of connections, even after a panic of a thread that held the lock.
    fn lock_connections(&self) -> std::sync::MutexGuard<'_, ConnectionTable> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts connections, and passes them to threads of the pool, until the socket is closed. If the program closes
    /// the descriptor, opens the socket again. Runs on the acceptor's thread.
    fn accept_connections(self: Arc<Self>, privileges: &mut Privileges) {
        self.service.router.report_memprof_thread();
        let mut listener = self.listener();
        // The descriptor is checked before each accept: the number may be that of a socket of the program by now. It is
        // also checked after the accept, so that a client can connect again as soon as its request was answered.
        while let Some(open) = self.ensure_listener_open(listener.take()) {
            let accepted = open.accept(|| self.is_stopping.load(Ordering::Acquire));
            if self.is_stopping.load(Ordering::Acquire) {
                drop(open);
                // This thread closes the connections, because the thread that stops the socket may have another
                // descriptor table.
                self.close_connections();
                return;
            }
            privileges.limit_to_main_thread();
            self.service.router.report_memprof_thread();
            listener = self.ensure_listener_open(Some(open));
            match accepted {
                Ok(stream) => self.admit_connection(stream),
                Err(error) => {
                    log::warn!("control socket: {error}");
                    thread::sleep(ACCEPT_RETRY_DELAY);
                }
            }
        }
    }

    /// Returns the listener, or a new one if the program closed its descriptor. `None` if `listener` is `None`, or if
    /// the socket cannot be opened again, which is logged.
    fn ensure_listener_open(&self, listener: Option<Arc<Listener>>) -> Option<Arc<Listener>> {
        let listener = listener?;
        if listener.is_open() {
            return Some(listener);
        }
        // The old listener holds the lock of the path, which `reopen_listener` needs.
        drop(listener);
        self.reopen_listener()
            .inspect_err(|error| log::error!("the program closed the control socket: {error}"))
            .ok()
    }

    /// Starts to serve a connection on a thread of the pool, and returns. Refuses the connection if its user may not
    /// connect, or if there is no memory or thread. If [`CONNECTION_LIMIT`] connections are open, evicts the one for
    /// which the host has waited longest; if the host is working for all of them, refuses the new one.
    fn admit_connection(self: &Arc<Self>, stream: GuardedFd<UnixStream>) {
        if let Err(refusal) = self.authorize_peer(&stream) {
            log::warn!("control connection refused: {refusal}");
            return;
        }
        if memprof_own::require_memory(connection::REQUEST_BYTES).is_err() {
            connection::send_out_of_memory_error(&stream);
            return;
        }
        let mut connections = self.lock_connections();
        if connections.open.len() >= CONNECTION_LIMIT && !connections.evict_longest_idle() {
            let message = format!("all {CONNECTION_LIMIT} connections are in use");
            connection::send_error_without_id(&stream, protocol::TOO_MANY_CONNECTIONS, &message);
            return;
        }
        let connection = match ControlConnection::new(stream) {
            Ok(connection) => connection,
            Err(error) => {
                log::warn!("control connection refused: {error}");
                return;
            }
        };
        connections.next_id += 1;
        let id = connections.next_id;
        connections.open.insert(id, connection.clone());
        drop(connections);
        let shared = Arc::clone(self);
        let dispatched = self.workers.dispatch_connection(id, move |id, privileges| {
            let connection = shared.lock_connections().open.get(&id).cloned();
            // The connection was evicted before the thread started.
            let Some(connection) = connection else {
                return;
            };
            serve_connection(&connection, &shared.service, privileges);
            shared.lock_connections().open.remove(&id);
        });
        if let Err(error) = dispatched {
            self.lock_connections().open.remove(&id);
            connection.refuse_for_lack_of_resources(&error);
            log::warn!("control connection refused: {error}");
        }
    }

    /// Fails unless the peer's user is root, the host's user or one of `allow_uids`.
    fn authorize_peer(&self, stream: &GuardedFd<UnixStream>) -> Result<(), String> {
        // nix, because rustix's pid cannot be 0, which the kernel returns for a peer outside of this PID namespace.
        let peer = stream
            .get()
            .map_err(|error| Errno::from_raw(error.raw_os_error()))
            .and_then(|stream| getsockopt(stream, PeerCredentials));
        let uid = peer
            .map_err(|errno| format!("unknown peer: {errno}"))?
            .uid();
        let own = rustix::process::geteuid().as_raw();
        if uid == 0 || uid == own || self.allow_uids.contains(&uid) {
            return Ok(());
        }
        Err(format!(
            "uid {uid} is not allowed; add it to [control] allow_uids"
        ))
    }
}

impl ConnectionTable {
    /// Returns whether a request is being handled or a response sent on any connection.
    #[cfg(feature = "adapters")]
    fn has_busy_connection(&self) -> bool {
        self.open.values().any(ControlConnection::is_busy)
    }

    /// Closes the connection on which the host has waited longest for its peer. Returns false, with none closed, if the
    /// host is working for all of them.
    fn evict_longest_idle(&mut self) -> bool {
        let idle = self
            .open
            .iter()
            .filter_map(|(id, c)| Some((c.idle_since()?, *id)));
        let Some((_, id)) = idle.min_by_key(|(since, _): &(Instant, u64)| *since) else {
            return false;
        };
        if let Some(connection) = self.open.remove(&id) {
            connection.disconnect();
        }
        true
    }
}

impl ControlConnection {
    /// Shuts the connection down, so that its thread ends. A failure is only logged.
    fn disconnect(&self) {
        // It fails only on a connection that is closed already.
        let stream = self.stream().get().map_err(io::Error::from);
        if let Err(error) = stream.and_then(|stream| stream.shutdown(Shutdown::Both)) {
            log::debug!("control connection: {error}");
        }
    }
}

/// The `id` of a response to a line without a readable id.
const NO_ID: Value = Value::Null;
