//! One connection: frames in, frames out, each within a second.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memprof_own::{GuardedFd, Privileges, require_memory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send as send_bytes,
    sendmsg,
};

use super::NO_ID;
use super::service::{Response, Service};
use crate::protocol::{self, FRAME_LIMIT, RpcError};

/// From a frame's first byte to its last, and from a response's first byte to its last.
const FRAME_DEADLINE: Duration = Duration::from_secs(1);

/// What a request may need, unless its message asks for more itself.
pub(super) const FOR_A_REQUEST: usize = 1 << 20;

/// As [`protocol::error_line`] makes it, which allocates.
const OUT_OF_MEMORY: &str = concat!(
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32003,"#,
    r#""message":"the host has no memory left for this (ENOMEM); it goes on without"}}"#,
    "\n"
);

/// What a connection's thread does.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionActivity {
    /// Waits for the peer to send a frame.
    AwaitingRequest(Instant),
    /// Works for the peer.
    Serving,
    /// Waits for the peer to take a response.
    SendingReply(Instant),
}

/// An open connection, as the thread that serves it and the others see it.
#[derive(Clone, Debug)]
pub(super) struct ControlConnection {
    stream: Arc<GuardedFd<UnixStream>>,
    activity: Arc<Mutex<ConnectionActivity>>,
}

impl ControlConnection {
    pub(super) fn new(stream: GuardedFd<UnixStream>) -> io::Result<Self> {
        stream.get()?.set_nonblocking(true)?;
        Ok(Self {
            stream: Arc::new(stream),
            activity: Arc::new(Mutex::new(ConnectionActivity::AwaitingRequest(
                Instant::now(),
            ))),
        })
    }

    /// Where there is no thread that could serve it.
    pub(super) fn refuse(&self, error: &io::Error) {
        match error.raw_os_error() {
            Some(code) if code == Errno::NOMEM.raw_os_error() => {
                refuse_without_memory(&self.stream);
            }
            _ => {
                let message = format!("no thread for this connection: {error}");
                refuse(&self.stream, protocol::TOO_MANY_CONNECTIONS, &message);
            }
        }
    }

    pub(super) fn stream(&self) -> &GuardedFd<UnixStream> {
        &self.stream
    }

    /// Whether the host works for the peer, or the peer has yet to take what it said.
    #[cfg(feature = "adapter-attached")]
    pub(super) fn is_busy(&self) -> bool {
        let activity = self.activity.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(
            *activity,
            ConnectionActivity::Serving | ConnectionActivity::SendingReply(_)
        )
    }

    /// Since when the peer lets the host wait. A request that arrived and was not read yet is no
    /// fault of the peer's.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        match *self.activity.lock().unwrap_or_else(PoisonError::into_inner) {
            ConnectionActivity::AwaitingRequest(since) => {
                let unread = self.stream.get().and_then(rustix::io::ioctl_fionread);
                (!matches!(unread, Ok(1..))).then_some(since)
            }
            ConnectionActivity::Serving => None,
            ConnectionActivity::SendingReply(since) => Some(since),
        }
    }
}

/// Answers one frame after the other until the peer leaves or breaks a rule.
pub(super) fn serve(
    conversation: &ControlConnection,
    service: &Service,
    privileges: &mut Privileges,
) {
    let ControlConnection { stream, activity } = conversation;
    service.router.enter_thread();
    let mark = |now| *activity.lock().unwrap_or_else(PoisonError::into_inner) = now;
    let mut frames = FrameReader {
        stream,
        buffer: [0; FRAME_LIMIT],
        length: 0,
        taken: 0,
    };
    loop {
        mark(ConnectionActivity::AwaitingRequest(Instant::now()));
        let frame = match frames.next(|| mark(ConnectionActivity::AwaitingRequest(Instant::now())))
        {
            Ok(Some(frame)) => frame,
            Ok(None) => return,
            Err(error) => {
                refuse(stream, protocol::INVALID_REQUEST, &error.to_string());
                return;
            }
        };
        mark(ConnectionActivity::Serving);
        privileges.match_main_thread();
        service.router.enter_thread();
        if require_memory(FOR_A_REQUEST).is_err() {
            refuse_without_memory(stream);
            continue;
        }
        let Some(response) = service.answer(frame) else {
            continue;
        };
        mark(ConnectionActivity::SendingReply(Instant::now()));
        if let Err(error) = send(stream, &response) {
            log::debug!("control connection: {error}");
            return;
        }
    }
}

/// Sends an error that belongs to no request.
pub(super) fn refuse(stream: &GuardedFd<UnixStream>, code: i32, message: &str) {
    let response = Response {
        line: protocol::error_line(&NO_ID, &RpcError::new(code, message)),
        file: None,
    };
    if let Err(error) = send(stream, &response) {
        log::debug!("control connection: {error}");
    }
}

/// Sends an error that allocates nothing on the way.
pub(super) fn refuse_without_memory(stream: &GuardedFd<UnixStream>) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    // Whoever does not take it sees the connection end; a log line would need memory.
    let _: Result<usize, Errno> = stream
        .get()
        .and_then(|stream| send_bytes(stream, OUT_OF_MEMORY.as_bytes(), flags));
}

/// Lies on the stack of the connection's thread: nothing of it is in the program's heap.
struct FrameReader<'a> {
    stream: &'a GuardedFd<UnixStream>,
    buffer: [u8; FRAME_LIMIT],
    /// How much of it is filled.
    length: usize,
    /// How much of that was handed out.
    taken: usize,
}

impl FrameReader<'_> {
    /// The next frame without its newline; an object before the peer's shutdown counts as one.
    fn next(&mut self, begun: impl FnOnce()) -> io::Result<Option<&[u8]>> {
        self.buffer.copy_within(self.taken..self.length, 0);
        self.length -= self.taken;
        self.taken = 0;
        let mut begun = Some(begun);
        let mut deadline = None;
        loop {
            if self.length > 0 {
                if let Some(begun) = begun.take() {
                    begun();
                    deadline = Some(Instant::now() + FRAME_DEADLINE);
                }
                let received = &self.buffer[..self.length];
                if let Some(end) = received.iter().position(|byte| *byte == b'\n') {
                    self.taken = end + 1;
                    return Ok(Some(&self.buffer[..end]));
                }
                if self.length == FRAME_LIMIT {
                    let message = format!("a message is one line of at most {FRAME_LIMIT} bytes");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                }
            }
            wait(self.stream, PollFlags::IN, deadline)?;
            if self.receive()? == 0 {
                self.taken = self.length;
                let rest = &self.buffer[..self.length];
                return Ok((!rest.trim_ascii().is_empty()).then_some(rest));
            }
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        let room = &mut self.buffer[self.length..];
        match retry_on_intr(|| recv(self.stream.get()?, &mut *room, RecvFlags::empty())) {
            Ok((read, _)) => {
                self.length += read;
                Ok(read)
            }
            // The peer is gone; what it wanted is not known.
            Err(Errno::CONNRESET) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Waits until `stream` is ready; without a deadline for as long as it takes.
fn wait(
    stream: &GuardedFd<UnixStream>,
    events: PollFlags,
    deadline: Option<Instant>,
) -> io::Result<()> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut polled = [PollFd::new(stream.get()?, events)];
        match poll(&mut polled, timeout.as_ref()) {
            Ok(0) => {
                let message = "a message must arrive, and its reply be taken, within a second";
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn send(stream: &GuardedFd<UnixStream>, response: &Response) -> io::Result<()> {
    let deadline = Some(Instant::now() + FRAME_DEADLINE);
    let mut rest = response.line.as_bytes();
    let mut file = response.file.as_ref();
    while !rest.is_empty() {
        // One that the program took over is not passed on.
        let file_of_ours = file.map(GuardedFd::get).transpose()?;
        let descriptors: Vec<BorrowedFd<'_>> = file_of_ours.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        // NOSIGNAL: a client that left must not kill the host by SIGPIPE.
        match sendmsg(
            stream.get()?,
            &[IoSlice::new(rest)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        ) {
            Ok(sent) => {
                rest = &rest[sent..];
                file = None;
            }
            Err(Errno::AGAIN) => wait(stream, PollFlags::OUT, deadline)?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_allocates_nothing_is_an_error_line() {
        let message = "the host has no memory left for this (ENOMEM); it goes on without";
        let line = protocol::error_line(&NO_ID, &RpcError::new(protocol::OUT_OF_MEMORY, message));
        assert_eq!(OUT_OF_MEMORY, line);
    }
}
