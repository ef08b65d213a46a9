//! Serves one connection. A frame must arrive, and a response be read, within a second.

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

/// Timeout from a frame's first byte to its last, and from a response's first byte to its last.
const FRAME_TIMEOUT: Duration = Duration::from_secs(1);

/// Memory in bytes that must be free before a request is handled. Messages that need more check for it.
pub(super) const REQUEST_BYTES: usize = 1 << 20;

/// The line that [`protocol::error_line`] would format, for which it would allocate.
const OUT_OF_MEMORY_LINE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32003,"#,
    r#""message":"the host has no memory left for this (ENOMEM): raise its RLIMIT_AS or memory.max"}}"#,
    "\n"
);

/// Activity of a connection's thread, with the time since which it waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionActivity {
    /// Waits for the peer to send a frame, since this time.
    AwaitingRequest(Instant),
    /// Handles a request.
    Serving,
    /// Waits for the peer to read a response, since this time.
    SendingReply(Instant),
}

/// An open connection; shared by the thread that serves it and others.
#[derive(Clone, Debug)]
pub(super) struct ControlConnection {
    stream: Arc<GuardedFd<UnixStream>>,
    activity: Arc<Mutex<ConnectionActivity>>,
}

impl ControlConnection {
    /// Takes over an accepted stream, and makes it nonblocking. Fails if the program has closed the descriptor.
    pub(super) fn new(stream: GuardedFd<UnixStream>) -> io::Result<Self> {
        stream.get()?.set_nonblocking(true)?;
        Ok(Self {
            stream: Arc::new(stream),
            activity: Arc::new(Mutex::new(ConnectionActivity::AwaitingRequest(
                Instant::now(),
            ))),
        })
    }

    /// Sends an error to the peer: no thread can be started for the connection, or the host has no memory, if `error`
    /// says so.
    pub(super) fn refuse_for_lack_of_resources(&self, error: &io::Error) {
        match error.raw_os_error() {
            Some(code) if code == Errno::NOMEM.raw_os_error() => {
                send_out_of_memory_error(&self.stream);
            }
            _ => {
                let message = format!("no thread for this connection: {error}");
                send_error_without_id(&self.stream, protocol::TOO_MANY_CONNECTIONS, &message);
            }
        }
    }

    /// Returns the stream of the connection, in nonblocking mode.
    pub(super) fn stream(&self) -> &GuardedFd<UnixStream> {
        &self.stream
    }

    /// Returns whether the host is handling a request or sending its response.
    #[cfg(feature = "adapters")]
    pub(super) fn is_busy(&self) -> bool {
        let activity = self.activity.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(
            *activity,
            ConnectionActivity::Serving | ConnectionActivity::SendingReply(_)
        )
    }

    /// Returns the time since which the host waits for the peer to send a request or to read a response. `None` while
    /// the host handles a request, or if received bytes wait to be read.
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

/// Answers the frames of a connection, which are requests of one line each, in their order. Returns when the peer
/// disconnects, breaks the protocol, or does not read a response in time. If there is no memory for a request, the
/// response is an error. Runs on a thread of the connection.
pub(super) fn serve_connection(
    connection: &ControlConnection,
    service: &Service,
    privileges: &mut Privileges,
) {
    let ControlConnection { stream, activity } = connection;
    service.router.report_memprof_thread();
    let set_activity = |now| *activity.lock().unwrap_or_else(PoisonError::into_inner) = now;
    let mut frames = FrameReader {
        stream,
        buffer: [0; FRAME_LIMIT],
        length: 0,
        consumed: 0,
    };
    loop {
        set_activity(ConnectionActivity::AwaitingRequest(Instant::now()));
        let frame = match frames
            .next_frame(|| set_activity(ConnectionActivity::AwaitingRequest(Instant::now())))
        {
            Ok(Some(frame)) => frame,
            Ok(None) => return,
            Err(error) => {
                send_error_without_id(stream, protocol::INVALID_REQUEST, &error.to_string());
                return;
            }
        };
        // The program may have given up capabilities since the last request; and memprof.h promises `enter` before each
        // message.
        set_activity(ConnectionActivity::Serving);
        privileges.limit_to_main_thread();
        service.router.report_memprof_thread();
        if require_memory(REQUEST_BYTES).is_err() {
            send_out_of_memory_error(stream);
            continue;
        }
        let Some(response) = service.respond_to_frame(frame) else {
            continue;
        };
        set_activity(ConnectionActivity::SendingReply(Instant::now()));
        if let Err(error) = send_response(stream, &response) {
            log::debug!("control connection: {error}");
            return;
        }
    }
}

/// Sends an error that answers no request, such as a refused connection. A failure is only logged.
pub(super) fn send_error_without_id(stream: &GuardedFd<UnixStream>, code: i32, message: &str) {
    let response = Response {
        line: protocol::error_line(&NO_ID, &RpcError::new(code, message)),
        file: None,
    };
    if let Err(error) = send_response(stream, &response) {
        log::debug!("control connection: {error}");
    }
}

/// Sends the error that there is no memory. Allocates nothing, does not wait, and ignores a failure.
pub(super) fn send_out_of_memory_error(stream: &GuardedFd<UnixStream>) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    // A failure is ignored: the peer sees that the connection is closed, and a log line would need memory.
    let _: Result<usize, Errno> = stream
        .get()
        .and_then(|stream| send_bytes(stream, OUT_OF_MEMORY_LINE.as_bytes(), flags));
}

/// Reader of frames. It is on the stack of the connection's thread, so that it needs no heap of the program.
struct FrameReader<'a> {
    stream: &'a GuardedFd<UnixStream>,
    buffer: [u8; FRAME_LIMIT],
    /// Number of received bytes in `buffer`.
    length: usize,
    /// Number of these bytes that were returned as a frame.
    consumed: usize,
}

impl FrameReader<'_> {
    /// Reads the next frame, one line, and returns it without its newline. The last frame before the peer's shutdown
    /// may lack the newline. `None` if the peer has shut the connection down and no frame is left. `on_start` is called
    /// when the frame's first byte has arrived. Fails if the frame is longer than [`FRAME_LIMIT`], if it is not
    /// complete a second after its first byte, or if the descriptor cannot be read.
    fn next_frame(&mut self, on_start: impl FnOnce()) -> io::Result<Option<&[u8]>> {
        self.buffer.copy_within(self.consumed..self.length, 0);
        self.length -= self.consumed;
        self.consumed = 0;
        let mut on_start = Some(on_start);
        let mut deadline = None;
        loop {
            if self.length > 0 {
                if let Some(on_start) = on_start.take() {
                    on_start();
                    deadline = Some(Instant::now() + FRAME_TIMEOUT);
                }
                let received = &self.buffer[..self.length];
                if let Some(end) = received.iter().position(|byte| *byte == b'\n') {
                    self.consumed = end + 1;
                    return Ok(Some(&self.buffer[..end]));
                }
                if self.length == FRAME_LIMIT {
                    let message = format!("a message is one line of at most {FRAME_LIMIT} bytes");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                }
            }
            wait_until_ready(self.stream, PollFlags::IN, deadline)?;
            if self.receive_bytes()? == 0 {
                self.consumed = self.length;
                let last = &self.buffer[..self.length];
                return Ok((!last.trim_ascii().is_empty()).then_some(last));
            }
        }
    }

    /// Reads more bytes into the buffer, after the received ones. Returns their number: 0 if the peer has closed the
    /// connection. Fails with `EBADF` if the program has closed the descriptor.
    fn receive_bytes(&mut self) -> io::Result<usize> {
        let room = &mut self.buffer[self.length..];
        match retry_on_intr(|| recv(self.stream.get()?, &mut *room, RecvFlags::empty())) {
            Ok((read, _)) => {
                self.length += read;
                Ok(read)
            }
            // The peer has closed the connection before it read all responses.
            Err(Errno::CONNRESET) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Waits until `stream` is ready for reading or writing, as `events` says. Fails with `TimedOut` at the deadline; if
/// `deadline` is `None`, waits for ever. Fails with `EBADF` if the program has closed the descriptor.
fn wait_until_ready(
    stream: &GuardedFd<UnixStream>,
    events: PollFlags,
    deadline: Option<Instant>,
) -> io::Result<()> {
    loop {
        let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = remaining.map(|remaining| Timespec {
            tv_sec: remaining.as_secs().cast_signed(),
            tv_nsec: remaining.subsec_nanos().into(),
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

/// Sends a response, and its file with the first bytes if it has one. Fails if the peer takes longer than
/// [`FRAME_TIMEOUT`] to read it, or if the program has closed a descriptor.
fn send_response(stream: &GuardedFd<UnixStream>, response: &Response) -> io::Result<()> {
    let deadline = Some(Instant::now() + FRAME_TIMEOUT);
    let mut unsent = response.line.as_bytes();
    let mut file = response.file.as_ref();
    while !unsent.is_empty() {
        // The descriptor is checked each time: the program may have closed it and reused its number.
        let open_file = file.map(GuardedFd::get).transpose()?;
        let descriptors: Vec<BorrowedFd<'_>> = open_file.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        // NOSIGNAL: SIGPIPE from a client that disconnected would kill the host.
        match sendmsg(
            stream.get()?,
            &[IoSlice::new(unsent)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        ) {
            Ok(sent) => {
                unsent = &unsent[sent..];
                file = None;
            }
            Err(Errno::AGAIN) => wait_until_ready(stream, PollFlags::OUT, deadline)?,
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
    fn out_of_memory_line_equals_error_line() {
        let message =
            "the host has no memory left for this (ENOMEM): raise its RLIMIT_AS or memory.max";
        let line = protocol::error_line(&NO_ID, &RpcError::new(protocol::OUT_OF_MEMORY, message));
        assert_eq!(OUT_OF_MEMORY_LINE, line);
    }
}
