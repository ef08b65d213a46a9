//! One connection: frames in, frames out, each within a second.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};

use super::NO_ID;
use super::service::Service;
use crate::protocol::{self, FRAME_LIMIT};

/// From a frame's first byte to its last, and from a response's first byte to its last.
const FRAME_DEADLINE: Duration = Duration::from_secs(1);

/// What a connection's thread does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Activity {
    /// Waits for the peer to send a frame.
    Reads(Instant),
    /// Works for the peer.
    Answers,
    /// Waits for the peer to take a response.
    Writes(Instant),
}

/// An open connection and its thread.
#[derive(Debug)]
pub(super) struct Conversation {
    stream: Arc<UnixStream>,
    activity: Arc<Mutex<Activity>>,
    thread: JoinHandle<()>,
}

impl Conversation {
    pub(super) fn start(
        stream: UnixStream,
        spawn: impl FnOnce(Arc<UnixStream>, Arc<Mutex<Activity>>) -> io::Result<JoinHandle<()>>,
    ) -> io::Result<Self> {
        let activity = Arc::new(Mutex::new(Activity::Reads(Instant::now())));
        stream.set_nonblocking(true)?;
        let stream = Arc::new(stream);
        let thread = spawn(Arc::clone(&stream), Arc::clone(&activity)).inspect_err(|error| {
            let message = format!("no thread for this connection: {error}");
            refuse(&stream, protocol::TOO_MANY_CONNECTIONS, &message);
        })?;
        Ok(Self {
            stream,
            activity,
            thread,
        })
    }

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    pub(super) fn into_thread(self) -> JoinHandle<()> {
        self.thread
    }

    /// Since when the peer lets the host wait. A request that arrived and was not read yet is no
    /// fault of the peer's.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        match *self.activity.lock().unwrap_or_else(PoisonError::into_inner) {
            Activity::Reads(since) => {
                let unread = rustix::io::ioctl_fionread(&*self.stream);
                (!matches!(unread, Ok(1..))).then_some(since)
            }
            Activity::Answers => None,
            Activity::Writes(since) => Some(since),
        }
    }
}

/// A response: its line, and what is passed beside it.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) line: String,
    pub(super) file: Option<File>,
}

/// Answers one frame after the other until the peer leaves or breaks a rule.
pub(super) fn serve(stream: &UnixStream, activity: &Mutex<Activity>, service: &Service) {
    let mark = |now| *activity.lock().unwrap_or_else(PoisonError::into_inner) = now;
    let mut frames = Frames {
        stream,
        buffer: Vec::with_capacity(FRAME_LIMIT),
    };
    loop {
        mark(Activity::Reads(Instant::now()));
        let frame = match frames.next(|| mark(Activity::Reads(Instant::now()))) {
            Ok(Some(frame)) => frame,
            Ok(None) => return,
            Err(error) => {
                refuse(stream, protocol::INVALID_REQUEST, &error.to_string());
                return;
            }
        };
        mark(Activity::Answers);
        let Some(response) = service.answer(&frame) else {
            continue;
        };
        mark(Activity::Writes(Instant::now()));
        if let Err(error) = send(stream, &response) {
            log::debug!("control connection: {error}");
            return;
        }
    }
}

/// Sends an error that belongs to no request.
pub(super) fn refuse(stream: &UnixStream, code: i32, message: &str) {
    let response = Response {
        line: protocol::error_line(&NO_ID, code, message),
        file: None,
    };
    if let Err(error) = send(stream, &response) {
        log::debug!("control connection: {error}");
    }
}

struct Frames<'a> {
    stream: &'a UnixStream,
    buffer: Vec<u8>,
}

impl Frames<'_> {
    /// The next frame without its newline; an object before the peer's shutdown counts as one.
    fn next(&mut self, begun: impl FnOnce()) -> io::Result<Option<Vec<u8>>> {
        let mut begun = Some(begun);
        let mut deadline = None;
        loop {
            if !self.buffer.is_empty() {
                if let Some(begun) = begun.take() {
                    begun();
                    deadline = Some(Instant::now() + FRAME_DEADLINE);
                }
                if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                    let rest = self.buffer.split_off(end + 1);
                    let mut frame = std::mem::replace(&mut self.buffer, rest);
                    frame.pop();
                    return Ok(Some(frame));
                }
                if self.buffer.len() >= FRAME_LIMIT {
                    let message = format!("a message is one line of at most {FRAME_LIMIT} bytes");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                }
            }
            wait(self.stream.as_fd(), PollFlags::IN, deadline)?;
            if self.receive()? == 0 {
                let rest = std::mem::take(&mut self.buffer);
                return Ok((!rest.trim_ascii().is_empty()).then_some(rest));
            }
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut chunk = [0; FRAME_LIMIT];
        let room = FRAME_LIMIT.saturating_sub(self.buffer.len()).max(1);
        match retry_on_intr(|| recv(self.stream, &mut chunk[..room], RecvFlags::empty())) {
            Ok((read, _)) => {
                self.buffer.extend_from_slice(&chunk[..read]);
                Ok(read)
            }
            // The peer is gone; what it wanted is not known.
            Err(Errno::CONNRESET) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Waits until `stream` is ready; without a deadline for as long as it takes.
fn wait(stream: BorrowedFd<'_>, events: PollFlags, deadline: Option<Instant>) -> io::Result<()> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut polled = [PollFd::from_borrowed_fd(stream, events)];
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

fn send(stream: &UnixStream, response: &Response) -> io::Result<()> {
    let deadline = Some(Instant::now() + FRAME_DEADLINE);
    let mut rest = response.line.as_bytes();
    let mut file = response.file.as_ref();
    while !rest.is_empty() {
        let descriptors: Vec<BorrowedFd<'_>> = file.iter().map(|file| file.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        // NOSIGNAL: a client that left must not kill the host by SIGPIPE.
        match sendmsg(
            stream,
            &[IoSlice::new(rest)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        ) {
            Ok(sent) => {
                rest = &rest[sent..];
                file = None;
            }
            Err(Errno::AGAIN) => wait(stream.as_fd(), PollFlags::OUT, deadline)?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
