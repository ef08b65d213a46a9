//! A connection to a control socket. No call on it blocks beyond its deadline, whatever the host does.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use memprof_own::move_above_stdio;
use memprof_ptrace::{Halt, HaltWatch, ProgramEnd, ProgramWatch};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, recvmsg, send, socket_with,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::socket_dir::abstract_name;

/// Largest length, in bytes, of a line that is read. A host passes a body above 64 KiB as a file, and JSON writes a
/// byte in at most six; a command line has up to 128 KiB for each of its arguments.
const LINE_LIMIT: usize = 1 << 20;
/// Error text if the reason is unknown.
const CLOSED: &str = "it closed the connection (it ends, executes another program, or the plugin is detached); try again";
/// Number of bytes that are read at once.
const CHUNK_BYTES: usize = 64 << 10;
/// Interval at which a process that does not respond is checked for being stopped or frozen.
const HALT_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Longest timeout, 100 years: a caller may give one that would overflow the clock.
const MAX_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Time at which a wait ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    end: Instant,
    /// Timeout from which it was computed, for error texts.
    timeout: Duration,
}

impl Deadline {
    /// Creates a deadline that ends after `timeout` from now, at the latest after [`MAX_TIMEOUT`].
    pub(crate) fn after(timeout: Duration) -> Self {
        Self {
            end: Instant::now() + timeout.min(MAX_TIMEOUT),
            timeout,
        }
    }

    /// Returns the time until the deadline. `None` if it has passed.
    pub(crate) fn remaining(self) -> Option<Duration> {
        let remaining = self.end.saturating_duration_since(Instant::now());
        (!remaining.is_zero()).then_some(remaining)
    }

    /// Creates the error of a wait that exceeded the deadline; `act` begins its text.
    fn timeout_error(self, act: &str) -> io::Error {
        let message = format!("{act} within {:?}", self.timeout);
        io::Error::new(io::ErrorKind::TimedOut, message)
    }
}

/// The process at the other end of a connection, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Id of the user who opened the socket.
    pub uid: u32,
    /// Id of the process that opened the socket. `None` if it is in a PID namespace that is not visible from here.
    pub pid: Option<u32>,
}

/// A connection to a control socket.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    /// Id of the process at the other end, if it is visible from here.
    process: Option<u32>,
    /// Program of that process, if it is visible from here.
    program: Option<ProgramWatch>,
    /// Received bytes that no line was returned for yet.
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects to the socket at `path`: a file, or an abstract name in the network namespace of a process, as
    /// [`abstract_name::path_in_process_namespace`] formats it. Fails with `TimedOut` if the host does not accept
    /// before the deadline, and with the errors of connect(2).
    pub(super) fn open(path: &Path, deadline: Deadline) -> io::Result<Self> {
        let (address, socket) = match abstract_name::split_namespace(path) {
            None => (SocketAddrUnix::new(path)?, new_socket()?),
            Some((namespace, name)) => {
                let address = SocketAddrUnix::new_abstract_name(name)?;
                (address, new_socket_in_namespace(namespace)?)
            }
        };
        let silent = || deadline.timeout_error("it accepted no connection");
        loop {
            // unix(7): connect waits for room in the backlog, until the send timeout.
            let remaining = deadline.remaining().ok_or_else(silent)?;
            set_socket_timeout(&socket, Timeout::Send, Some(remaining))?;
            match connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(silent()),
                Err(errno) => return Err(errno.into()),
            }
        }
        // From here on, only `poll` waits, until the deadline.
        ioctl_fionbio(&socket, true)?;
        let process = read_peer(&socket)?.pid;
        Ok(Self {
            process,
            program: process.map(ProgramWatch::open),
            socket,
            buffer: Vec::new(),
        })
    }

    /// Returns the user and process that opened the socket at the other end, as the kernel reports them.
    pub(super) fn read_peer(&self) -> io::Result<Peer> {
        read_peer(&self.socket)
    }

    /// If `error` is that of a closed connection, returns an error that says why it was closed: the process at the
    /// other end has ended, without an answer to the message in `request`, or has executed another program. Waits up to
    /// 250 ms until one of the two shows. Returns any other `error` itself.
    pub(super) fn explain_lost_connection(&self, error: io::Error, request: &Value) -> io::Error {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let is_closed = matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof);
        if !is_closed {
            return error;
        }
        let pid = self.process.unwrap_or_default();
        let end = self.program.as_ref().and_then(ProgramWatch::wait_for_end);
        // The process may have ended before this connection watched it.
        let had_ended = || Halt::for_pid(pid).is_some_and(|halt| halt.has_ended());
        let message = match end.or_else(|| had_ended().then_some(ProgramEnd::Exited)) {
            None => CLOSED.to_owned(),
            Some(ProgramEnd::Exited) => {
                format!(
                    "process {pid} has ended meanwhile{}",
                    unanswered_message_text(request)
                )
            }
            Some(ProgramEnd::Executed) => format!(
                "process {pid} has executed another program meanwhile; `memprof attach {pid}` loads the plugin into \
                 that one"
            ),
        };
        io::Error::new(error.kind(), message)
    }

    /// Returns whether the connection is open. False once the other end has closed it.
    pub(super) fn is_open(&self) -> bool {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(&self.socket, &mut byte, flags) {
            Ok((_, read)) => read > 0,
            Err(errno) => matches!(errno, Errno::AGAIN | Errno::INTR),
        }
    }

    /// Writes all bytes before the deadline. Fails with `TimedOut` at the deadline, or early if the process at the
    /// other end is stopped or frozen. Fails also with errors of send(2).
    pub(super) fn write_all(&self, mut bytes: &[u8], deadline: Deadline) -> io::Result<()> {
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::AGAIN) => self.wait_until_ready(PollFlags::OUT, deadline)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Reads the next line. Returns the line with its newline, and the last file that was passed with it; `None` if
    /// none was passed. Fails with `InvalidData` if the line exceeds 1 MiB, and with `UnexpectedEof` if the connection
    /// was closed. Fails with `TimedOut` at the deadline, or early if the process at the other end is stopped or
    /// frozen.
    pub(super) fn read_line(&mut self, deadline: Deadline) -> io::Result<(Vec<u8>, Option<File>)> {
        let mut file = None;
        let mut searched = 0;
        loop {
            let newline = self.buffer[searched..].iter().position(|b| *b == b'\n');
            if let Some(end) = newline.map(|index| searched + index + 1) {
                let after = self.buffer.split_off(end);
                return Ok((std::mem::replace(&mut self.buffer, after), file));
            }
            searched = self.buffer.len();
            if searched >= LINE_LIMIT {
                let message = format!("it answered with a line above {LINE_LIMIT} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            // Wait also if data is ready: the deadline must end a line that comes byte by byte.
            self.wait_until_ready(PollFlags::IN, deadline)?;
            file = self.receive_chunk()?.or(file);
        }
    }

    /// Reads a chunk into the buffer. Returns the last file that was passed with it, `None` if none was passed or
    /// nothing can be read yet. Fails with `UnexpectedEof` if the connection was closed.
    fn receive_chunk(&mut self) -> io::Result<Option<File>> {
        let mut chunk = [0; CHUNK_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut chunk)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(&self.socket, &mut parts, &mut ancillary, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        if received.bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, CLOSED));
        }
        self.buffer.extend_from_slice(&chunk[..received.bytes]);
        let mut file = None;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                let last = descriptors.last().map(move_above_stdio).transpose()?;
                file = last.map(File::from).or(file);
            }
        }
        Ok(file)
    }

    /// Waits until the socket is ready for reading or writing, as `events` says. Fails with `TimedOut` at the deadline,
    /// or early if the process at the other end cannot respond because it is stopped or frozen.
    fn wait_until_ready(&self, events: PollFlags, deadline: Deadline) -> io::Result<()> {
        let mut watch = self.process.map(HaltWatch::new);
        loop {
            let remaining = deadline
                .remaining()
                .ok_or_else(|| deadline.timeout_error("it did not answer"))?
                .min(HALT_POLL_INTERVAL);
            let timeout = Timespec {
                tv_sec: remaining.as_secs().cast_signed(),
                tv_nsec: remaining.subsec_nanos().into(),
            };
            let mut polled = [PollFd::from_borrowed_fd(self.socket.as_fd(), events)];
            match poll(&mut polled, Some(&timeout)) {
                Ok(0) => {}
                Err(Errno::INTR) => continue,
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
            if let Some(halt) = watch.as_mut().and_then(HaltWatch::poll) {
                return Err(io::Error::new(io::ErrorKind::TimedOut, halt.to_string()));
            }
        }
    }
}

/// Returns the user and process that opened the socket at the other end. The pid is `None` if the process is outside of
/// this PID namespace.
fn read_peer(socket: &OwnedFd) -> io::Result<Peer> {
    // nix, because rustix's pid cannot be 0, which the kernel returns for a peer outside of this PID namespace.
    let peer = getsockopt(socket, PeerCredentials)?;
    Ok(Peer {
        uid: peer.uid(),
        pid: u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0),
    })
}

/// Creates a socket in the network namespace of the calling thread. Its descriptor is above those of the standard
/// streams, even if one of them is closed.
fn new_socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None).and_then(move_above_stdio)?)
}

/// Creates a socket in the network namespace at the path `namespace`, such as /proc/PID/ns/net. A socket stays in the
/// namespace in which it was created. Fails if this user may not enter the namespace (setns(2)).
fn new_socket_in_namespace(namespace: &Path) -> io::Result<OwnedFd> {
    let identity = |path: &Path| {
        path.metadata()
            .map(|metadata| (metadata.dev(), metadata.ino()))
    };
    if identity(namespace)? == identity(Path::new("/proc/thread-self/ns/net"))? {
        return new_socket();
    }
    let namespace = File::open(namespace)?;
    let create = || {
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), kind)?;
        new_socket()
    };
    // A new thread enters the namespace, because setns(2) changes the calling thread.
    let created = thread::scope(|scope| scope.spawn(create).join());
    created.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Returns the part of an error's text that names the plugin and the message of a request. Empty if the request sends
/// no message to a plugin.
fn unanswered_message_text(request: &Value) -> String {
    let text = |key: &str| request["params"][key].as_str();
    match (text("plugin"), text("message")) {
        (Some(plugin), Some(message)) => format!(": plugin {plugin} did not answer {message:?}"),
        _ => String::new(),
    }
}
