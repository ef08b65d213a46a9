//! A request to a control socket whose response is awaited without blocking.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use memprof_own::move_above_stdio;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::protocol::Request;

/// Largest length of a response in bytes. A longer reply is passed as a descriptor, which is not accepted here.
const LINE_LIMIT: usize = 1 << 20;

/// A request whose response is awaited.
#[derive(Debug)]
pub(super) struct PendingRequest {
    /// Process to which the request was sent.
    pub(super) pid: u32,
    socket: OwnedFd,
    line: Vec<u8>,
}

impl PendingRequest {
    /// Connects to a socket of process `pid` and sends the request. Never blocks: fails with `WouldBlock` if the
    /// socket's queue of clients is full. Fails with `PermissionDenied` if another process or user has the socket, and
    /// with other errors of connect(2).
    pub(super) fn send(pid: u32, path: &Path, request: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .and_then(move_above_stdio)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        let peer = getsockopt(&socket, PeerCredentials)?;
        if peer.uid() != geteuid().as_raw() || u32::try_from(peer.pid()) != Ok(pid) {
            let message = format!("{} is another process's", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        // The buffer of a new socket has room for a line.
        send(&socket, request.as_bytes(), SendFlags::NOSIGNAL)?;
        Ok(Self {
            pid,
            socket,
            line: Vec::new(),
        })
    }

    /// Receives bytes of the response without waiting. `None` while its line is incomplete. Then returns the line, or
    /// the reason for which there is none. A line above 1 MiB is cut off, so that it is invalid JSON.
    pub(super) fn receive_line(&mut self) -> Option<Result<&[u8], String>> {
        let mut chunk = [0; 16 << 10];
        loop {
            match recv(&self.socket, &mut chunk, RecvFlags::CMSG_CLOEXEC) {
                Ok((0, _)) => return Some(Err("it closed the connection".to_owned())),
                Ok((count, _)) => self.line.extend_from_slice(&chunk[..count]),
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => {}
                Err(errno) => return Some(Err(errno.to_string())),
            }
            if self.line.ends_with(b"\n") || self.line.len() > LINE_LIMIT {
                return Some(Ok(&self.line));
            }
        }
    }
}

/// Waits until bytes of a response can be read, at most for `timeout`. Returns the indices of the requests whose
/// sockets are readable; empty after the timeout, or if a signal interrupted the wait.
pub(super) fn wait_until_readable(pending: &[PendingRequest], timeout: Duration) -> Vec<usize> {
    let mut polled: Vec<_> = pending
        .iter()
        .map(|request| PollFd::from_borrowed_fd(request.socket.as_fd(), PollFlags::IN))
        .collect();
    let timeout = Timespec {
        tv_sec: timeout.as_secs().cast_signed(),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // The caller polls again, so that an interruption by a signal needs no handling.
    let _ = poll(&mut polled, Some(&timeout));
    let ready =
        |(index, request): (usize, &PollFd<'_>)| (!request.revents().is_empty()).then_some(index);
    polled.iter().enumerate().filter_map(ready).collect()
}

/// Formats a request of the control protocol (JSON-RPC 2.0) as a line with a newline at its end. Its id is always 1,
/// because each connection sends one request.
pub(super) fn request_line(method: &str, params: Value) -> String {
    let request = Request {
        jsonrpc: "2.0".to_owned(),
        id: Some(Value::from(1)),
        method: method.to_owned(),
        params,
    };
    json!(request).to_string() + "\n"
}
