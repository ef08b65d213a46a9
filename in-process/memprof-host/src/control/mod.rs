//! The control socket of a host.
//!
//! One thread blocks in `accept`; each connection gets a thread of its own for as long as it
//! lasts. So nothing wakes up while nobody talks, and a long dump delays nobody else. A thread
//! waits a moment for the next connection: what the allocator keeps for each new thread would add up
//! where clients come and go.

mod connection;
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
use connection::{ControlConnection, serve};
use listener::Listener;
use service::Service;
use worker_pool::WorkerPool;

/// More connections than these at a time push out the one that let the host wait longest: a
/// silent one, one that sends slowly, or one that does not read.
const CONNECTION_LIMIT: usize = 32;
/// When the program is out of descriptors or memory: without a pause accepting would spin.
const PAUSE: Duration = Duration::from_millis(100);
/// How long answers may take that are still to be given when the socket is closed.
#[cfg(feature = "adapter-attached")]
const LAST_ANSWERS: Duration = Duration::from_secs(2);
#[cfg(feature = "adapter-attached")]
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Where to listen, and who the host is.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// The socket's path; by default `<pid>.sock` in the default directory.
    pub path: Option<PathBuf>,
    /// The host's name.
    pub name: String,
    /// The program's version.
    pub version: String,
    /// Users who may connect besides root and the host's own.
    pub allow_uids: Vec<u32>,
    /// Messages are handled with the capabilities that the program has, as on its own threads, not with the few
    /// that memory_profile needs.
    pub keeps_capabilities: bool,
}

/// The socket cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("control socket {}: {cause}", path.display())]
pub struct ControlError {
    /// Where it was to be.
    pub path: PathBuf,
    /// Why not.
    pub cause: io::Error,
}

/// An open control socket; closed and removed when dropped.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    /// The process that opened it.
    process: u32,
    shared: Arc<SocketState>,
    accepting: Mutex<Option<Thread>>,
}

#[derive(Debug)]
struct SocketState {
    configured: Option<PathBuf>,
    /// `None` once it was lost for good.
    listener: Mutex<Option<Arc<Listener>>>,
    service: Service,
    allow_uids: Vec<u32>,
    stopping: AtomicBool,
    conversations: Mutex<ConnectionTable>,
    workers: WorkerPool,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    next_id: u64,
    open: HashMap<u64, ControlConnection>,
}

impl ControlSocket {
    /// Opens the socket and answers on it.
    ///
    /// # Errors
    /// The directory is not safe, another host has the path, or the system refuses.
    pub fn open(listen: ListenConfig, router: Arc<Router>) -> Result<Self, ControlError> {
        let listener = Listener::bind(listen.path.as_deref())?;
        let path = listener.path().to_owned();
        let needs = Needs {
            calls_plugins: true,
            keeps_capabilities: listen.keeps_capabilities,
        };
        let info = HostInfo::for_this_process(listen.name, listen.version);
        let shared = Arc::new(SocketState {
            configured: listen.path,
            listener: Mutex::new(Some(Arc::new(listener))),
            service: Service { router, info },
            allow_uids: listen.allow_uids,
            stopping: AtomicBool::new(false),
            conversations: Mutex::default(),
            workers: WorkerPool::new(needs),
        });
        let accepting = memprof_own::spawn_with(c"memprof-control", needs, {
            let shared = Arc::clone(&shared);
            move |privileges| shared.accept(privileges)
        })
        .map_err(|cause| ControlError {
            path: path.clone(),
            cause,
        })?;
        Ok(Self {
            path,
            process: std::process::id(),
            shared,
            accepting: Mutex::new(Some(accepting)),
        })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// For a process that ends without dropping it: removes the socket's files.
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
    /// Closes it, once each request that has come was answered: whoever asked for it is told.
    #[cfg(feature = "adapter-attached")]
    pub(crate) fn close(&self) {
        let begun = Instant::now();
        while self.shared.lock().any_is_busy() && begun.elapsed() < LAST_ANSWERS {
            thread::sleep(LOOK_AGAIN);
        }
        self.end();
    }

    fn end(&self) {
        // A forked child has neither the threads nor the descriptors, and perhaps locks for ever.
        if self.process != std::process::id() {
            return;
        }
        self.shared.stopping.store(true, Ordering::Release);
        if let Some(listener) = self.shared.listener() {
            listener.close();
        }
        let accepting = self
            .accepting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(accepting) = accepting {
            accepting.join();
        }
        // A connection's thread may hold the last use of a plugin: wait for all of them.
        let open = mem::take(&mut self.shared.lock().open);
        open.values().for_each(ControlConnection::disconnect);
        self.shared.workers.end();
        drop(self.shared.take_listener());
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.end();
    }
}

impl SocketState {
    fn listener(&self) -> Option<Arc<Listener>> {
        let listener = self.listener.lock();
        listener.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn take_listener(&self) -> Option<Arc<Listener>> {
        let listener = self.listener.lock();
        listener.unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Opens the socket again after the program closed it.
    fn reopen(&self) -> Result<Arc<Listener>, ControlError> {
        drop(self.take_listener());
        let listener = Arc::new(Listener::bind(self.configured.as_deref())?);
        let mut slot = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = Some(Arc::clone(&listener));
        Ok(listener)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ConnectionTable> {
        self.conversations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<Self>, privileges: &mut Privileges) {
        self.service.router.enter_thread();
        let mut listener = self.listener();
        // Asked before each accept, or it would take the connections of a socket of the
        // program's, and after it, so that who is answered can connect again.
        while let Some(open) = self.open_one(listener.take()) {
            let accepted = open.accept();
            if self.stopping.load(Ordering::Acquire) {
                return;
            }
            privileges.match_main_thread();
            self.service.router.enter_thread();
            listener = self.open_one(Some(open));
            match accepted {
                Ok(stream) => self.admit(stream),
                Err(error) => {
                    log::warn!("control socket: {error}");
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    /// The listener, or a new one when the program closed its descriptors.
    fn open_one(&self, listener: Option<Arc<Listener>>) -> Option<Arc<Listener>> {
        let listener = listener?;
        if listener.is_open() {
            return Some(listener);
        }
        drop(listener);
        self.reopen()
            .inspect_err(|error| log::error!("the program closed the control socket: {error}"))
            .ok()
    }

    fn admit(self: &Arc<Self>, stream: GuardedFd<UnixStream>) {
        if let Err(refusal) = self.authorize(&stream) {
            log::warn!("control connection refused: {refusal}");
            return;
        }
        if memprof_own::require_memory(connection::FOR_A_REQUEST).is_err() {
            connection::refuse_without_memory(&stream);
            return;
        }
        let mut conversations = self.lock();
        if conversations.open.len() >= CONNECTION_LIMIT && !conversations.evict_slowest() {
            let message = format!("all {CONNECTION_LIMIT} connections are in use");
            connection::refuse(&stream, protocol::TOO_MANY_CONNECTIONS, &message);
            return;
        }
        let conversation = match ControlConnection::new(stream) {
            Ok(conversation) => conversation,
            Err(error) => {
                log::warn!("control connection refused: {error}");
                return;
            }
        };
        conversations.next_id += 1;
        let id = conversations.next_id;
        conversations.open.insert(id, conversation.clone());
        drop(conversations);
        let shared = Arc::clone(self);
        let employed = self.workers.dispatch(id, move |id, privileges| {
            let conversation = shared.lock().open.get(&id).cloned();
            // It was pushed out before it began.
            let Some(conversation) = conversation else {
                return;
            };
            serve(&conversation, &shared.service, privileges);
            shared.lock().open.remove(&id);
        });
        if let Err(error) = employed {
            self.lock().open.remove(&id);
            conversation.refuse(&error);
            log::warn!("control connection refused: {error}");
        }
    }

    fn authorize(&self, stream: &GuardedFd<UnixStream>) -> Result<(), String> {
        // Not rustix, whose pid is never 0: that of a peer outside of our PID namespace is.
        let peer = stream
            .get()
            .map_err(|gone| Errno::from_raw(gone.raw_os_error()))
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
    #[cfg(feature = "adapter-attached")]
    fn any_is_busy(&self) -> bool {
        self.open.values().any(ControlConnection::is_busy)
    }

    /// Ends the connection that lets the host wait longest. False when it works for all of them.
    fn evict_slowest(&mut self) -> bool {
        let waiting = self
            .open
            .iter()
            .filter_map(|(id, c)| Some((c.idle_since()?, *id)));
        let Some((_, id)) = waiting.min_by_key(|(since, _): &(Instant, u64)| *since) else {
            return false;
        };
        if let Some(conversation) = self.open.remove(&id) {
            conversation.disconnect();
        }
        true
    }
}

impl ControlConnection {
    fn disconnect(&self) {
        // It fails only on a connection that is closed already.
        let stream = self.stream().get().map_err(io::Error::from);
        if let Err(error) = stream.and_then(|stream| stream.shutdown(Shutdown::Both)) {
            log::debug!("control connection: {error}");
        }
    }
}

impl HostInfo {
    fn for_this_process(name: String, version: String) -> Self {
        let command = std::fs::read("/proc/thread-self/cmdline").unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let started = std::time::SystemTime::UNIX_EPOCH.elapsed();
        Self {
            pid: std::process::id(),
            name,
            command: command.trim_end().to_owned(),
            version,
            started: started.map_or(0, |since| since.as_secs()),
        }
    }
}

/// The `id` of a response to a line that has none to repeat.
const NO_ID: Value = Value::Null;
