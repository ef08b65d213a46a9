//! A connection to a control socket on which nothing waits longer than its deadline, whatever the
//! other end does.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use memprof_own::above_stdio;
use memprof_ptrace::HaltWatch;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, recvmsg, send, socket_with,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::socket_dir::abstract_name;

/// The longest line that is read. A host passes a body above 64 KiB as a file, and JSON writes a
/// byte in at most six; a command line has up to 128 KiB for each of its words.
const LINE_LIMIT: usize = 1 << 20;
const CHUNK: usize = 64 << 10;
/// How often a process that does not answer is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// When to give up, and how long that was at the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    after: Duration,
}

impl Deadline {
    pub(crate) fn after(after: Duration) -> Self {
        Self {
            at: Instant::now() + after,
            after,
        }
    }

    /// The time that is left, unless it is over.
    pub(crate) fn left(self) -> Option<Duration> {
        let left = self.at.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    fn passed(self, what: &str) -> io::Error {
        let message = format!("{what} within {:?}", self.after);
        io::Error::new(io::ErrorKind::TimedOut, message)
    }
}

/// The process at the other end, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user who opened the socket.
    pub uid: u32,
    /// The process that opened it; `None` where it is in a PID namespace that cannot be seen from here.
    pub pid: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    /// The process at the other end, if it can be seen from here.
    process: Option<u32>,
    buffer: Vec<u8>,
}

impl Connection {
    pub(super) fn open(path: &Path, deadline: Deadline) -> io::Result<Self> {
        let (address, socket) = match abstract_name::in_namespace(path) {
            None => (SocketAddrUnix::new(path)?, socket()?),
            Some((namespace, name)) => {
                let address = SocketAddrUnix::new_abstract_name(name)?;
                (address, socket_in(namespace)?)
            }
        };
        let silent = || deadline.passed("it accepted no connection");
        loop {
            // unix(7): connect waits for room in the backlog, for as long as a send may take.
            let left = deadline.left().ok_or_else(silent)?;
            set_socket_timeout(&socket, Timeout::Send, Some(left))?;
            match connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(silent()),
                Err(errno) => return Err(errno.into()),
            }
        }
        ioctl_fionbio(&socket, true)?;
        Ok(Self {
            process: peer(&socket)?.pid,
            socket,
            buffer: Vec::new(),
        })
    }

    pub(super) fn peer(&self) -> io::Result<Peer> {
        peer(&self.socket)
    }

    /// Whether the other end has not closed it.
    pub(super) fn is_open(&self) -> bool {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(&self.socket, &mut byte, flags) {
            Ok((_, read)) => read > 0,
            Err(errno) => matches!(errno, Errno::AGAIN | Errno::INTR),
        }
    }

    pub(super) fn write(&self, mut bytes: &[u8], deadline: Deadline) -> io::Result<()> {
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// The next line with its newline, and the last file that was passed with it.
    pub(super) fn read_line(&mut self, deadline: Deadline) -> io::Result<(Vec<u8>, Option<File>)> {
        let mut file = None;
        let mut searched = 0;
        loop {
            let newline = self.buffer[searched..].iter().position(|b| *b == b'\n');
            if let Some(end) = newline.map(|at| searched + at + 1) {
                let rest = self.buffer.split_off(end);
                return Ok((std::mem::replace(&mut self.buffer, rest), file));
            }
            searched = self.buffer.len();
            if searched >= LINE_LIMIT {
                let message = format!("it answered with a line above {LINE_LIMIT} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            // Also where there always is something to read: one byte at a time would take days.
            self.wait(PollFlags::IN, deadline)?;
            file = self.receive()?.or(file);
        }
    }

    fn receive(&mut self) -> io::Result<Option<File>> {
        let mut chunk = [0; CHUNK];
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
            let message = "it closed the connection";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        self.buffer.extend_from_slice(&chunk[..received.bytes]);
        let mut file = None;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                let last = descriptors.last().map(above_stdio).transpose()?;
                file = last.map(File::from).or(file);
            }
        }
        Ok(file)
    }

    /// Waits until the socket is ready; ends early where the process cannot answer, as it is stopped or frozen.
    fn wait(&self, events: PollFlags, deadline: Deadline) -> io::Result<()> {
        let mut watch = self.process.map(HaltWatch::new);
        loop {
            let left = deadline
                .left()
                .ok_or_else(|| deadline.passed("it did not answer"))?
                .min(LOOK_AGAIN);
            let timeout = Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
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

fn peer(socket: &OwnedFd) -> io::Result<Peer> {
    // Not rustix, whose pid is never 0: that of a peer outside of our PID namespace is.
    let peer = getsockopt(socket, PeerCredentials)?;
    Ok(Peer {
        uid: peer.uid(),
        pid: u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0),
    })
}

fn socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None).and_then(above_stdio)?)
}

/// A socket of a network namespace, which may be another one than ours: it stays what it was made in.
fn socket_in(namespace: &Path) -> io::Result<OwnedFd> {
    let identity = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino()));
    if identity(namespace)? == identity(Path::new("/proc/thread-self/ns/net"))? {
        return socket();
    }
    let namespace = File::open(namespace)?;
    let there = || {
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), kind)?;
        socket()
    };
    // The thread alone is there.
    let made = thread::scope(|scope| scope.spawn(there).join());
    made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
