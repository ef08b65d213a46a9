//! Sends messages to the other processes of the same server over their control sockets: the server, and its children
//! other than this process. All are queried in parallel; together they take at most [`REPLIES_TIMEOUT`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use memprof_own::above_stdio;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use rustix::process::{geteuid, getppid};
use serde_json::{Value, json};

use crate::body::Body;
use crate::protocol::{MESSAGE, MessageParams, MessageResult, Request};
use crate::reply::Reply;
use crate::socket_dir::{own_default_dir, sockets};

/// Timeout of all replies together.
const REPLIES_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which `should_stop` is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Largest length of a response in bytes. A longer reply is passed as a descriptor, which is not accepted here.
const LINE_LIMIT: usize = 1 << 20;

/// A process to which the message was sent.
#[derive(Debug)]
pub(super) struct ServerProcess {
    pub(super) pid: u32,
    /// The reply, or the reason for which there is none.
    pub(super) reply: Result<Reply, String>,
}

/// Sends a message to all other processes of the server that have a socket. Returns the reply of each, or the reason
/// for which there is none, in any order. Waits at most 5 s; when `should_stop` returns true, the remaining replies
/// are not waited for.
pub(super) fn query_other_processes(
    plugin: &str,
    message: &str,
    args: &str,
    should_stop: impl Fn() -> bool,
) -> Vec<ServerProcess> {
    let request = request_line(plugin, message, args);
    let deadline = Instant::now() + REPLIES_TIMEOUT;
    let (mut pending, mut finished) = (Vec::new(), Vec::new());
    for pid in sibling_pids() {
        match PendingRequest::send(pid, &request) {
            Ok(request) => pending.push(request),
            Err(error) => finished.push(ServerProcess {
                pid,
                reply: Err(error.to_string()),
            }),
        }
    }
    while !pending.is_empty() && !should_stop() {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            break;
        }
        // From the last index down, because `swap_remove` moves the last request.
        for index in wait_readable(&pending, remaining.min(POLL_INTERVAL))
            .into_iter()
            .rev()
        {
            if let Some(reply) = pending[index].receive() {
                let pid = pending.swap_remove(index).pid;
                finished.push(ServerProcess { pid, reply });
            }
        }
    }
    let timed_out = format!("it did not answer within {REPLIES_TIMEOUT:?}");
    finished.extend(pending.into_iter().map(|request| ServerProcess {
        pid: request.pid,
        reply: Err(timed_out.clone()),
    }));
    finished
}

/// Iterates over the parent and its other children, without this process, as far as they have a socket.
fn sibling_pids() -> impl Iterator<Item = u32> {
    let server = getppid().map(|pid| pid.as_raw_pid().cast_unsigned());
    // A directory that cannot be read contains no socket to which this process can connect.
    let sockets = sockets(&own_default_dir()).unwrap_or_default();
    let pid = |path: &Path| path.file_stem()?.to_str()?.parse().ok();
    let pids: Vec<u32> = sockets.iter().filter_map(|path| pid(path)).collect();
    pids.into_iter()
        .filter(|pid| *pid != std::process::id())
        .filter(move |pid| Some(*pid) == server || parent_pid(*pid) == server)
}

/// Returns the parent of a process (proc(5), /proc/PID/stat). `None` if the process has ended.
fn parent_pid(pid: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The process's name may contain parentheses, blanks and bytes that are not UTF-8. After it come the state and the
    // parent's pid.
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(1)?.parse().ok()
}

/// Formats the JSON-RPC request that sends a message to a plugin, as a line that ends with a newline.
fn request_line(plugin: &str, message: &str, args: &str) -> String {
    let params = MessageParams {
        plugin: plugin.to_owned(),
        message: message.to_owned(),
        args: args.to_owned(),
        deliver: None,
    };
    let request = Request {
        jsonrpc: "2.0".to_owned(),
        id: Some(Value::from(1)),
        method: MESSAGE.to_owned(),
        params: json!(params),
    };
    json!(request).to_string() + "\n"
}

/// A request whose response is awaited.
#[derive(Debug)]
struct PendingRequest {
    pid: u32,
    socket: OwnedFd,
    line: Vec<u8>,
}

impl PendingRequest {
    /// Connects to a process and sends the request. Fails with `PermissionDenied` if another process or user has the
    /// socket, and with the errors of connect(2).
    fn send(pid: u32, request: &str) -> io::Result<Self> {
        let path = own_default_dir().join(format!("{pid}.sock"));
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .and_then(above_stdio)?;
        connect(&socket, &SocketAddrUnix::new(&path)?)?;
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

    /// Receives without waiting. Returns the reply or the reason for which there is none; `None` if it is incomplete.
    fn receive(&mut self) -> Option<Result<Reply, String>> {
        let mut chunk = [0; 16 << 10];
        loop {
            match recv(&self.socket, &mut chunk, RecvFlags::CMSG_CLOEXEC) {
                Ok((0, _)) => return Some(Err("it closed the connection".to_owned())),
                Ok((count, _)) => self.line.extend_from_slice(&chunk[..count]),
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => {}
                Err(errno) => return Some(Err(errno.to_string())),
            }
            // A line above the limit is cut off, which `parse_reply` reports as invalid JSON.
            if self.line.ends_with(b"\n") || self.line.len() > LINE_LIMIT {
                return Some(parse_reply(&self.line));
            }
        }
    }
}

/// Waits until a response can be read, at most for `timeout`. Returns the indices of the readable requests.
fn wait_readable(pending: &[PendingRequest], timeout: Duration) -> Vec<usize> {
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

/// Parses a response. Fails with the text of its error, or if it is not JSON or its body is too large for the line.
fn parse_reply(line: &[u8]) -> Result<Reply, String> {
    let response: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if let Some(error) = response.get("error") {
        return Err(error["message"].as_str().unwrap_or_default().to_owned());
    }
    let result: MessageResult =
        serde_json::from_value(response["result"].clone()).map_err(|error| error.to_string())?;
    let body = match result.body {
        Some(Value::String(text)) => text,
        Some(object) => object.to_string(),
        None => {
            let size = result.size.unwrap_or_default();
            return Err(format!(
                "its reply of {size} bytes is too large to be passed on; ask that process alone, by `memprof msg`"
            ));
        }
    };
    Ok(Reply {
        status_code: result.status_code,
        content_type: result.content_type.into(),
        body: Body::Bytes(body.into_bytes()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_reply_returns_reply_or_reason() {
        let check = |line: &str, expected: Result<&str, &str>| {
            let actual = parse_reply(line.as_bytes()).map(Reply::into_text);
            assert_eq!(
                actual.as_deref().map_err(String::as_str),
                expected,
                "{line}"
            );
        };
        let result = |members: &str| {
            format!(r#"{{"result":{{"status_code":0,"content_type":"x",{members}}}}}"#)
        };
        check(&result(r#""body":"plain""#), Ok("plain"));
        check(&result(r#""body":{"text":"for people"}"#), Ok("for people"));
        check(
            &result(r#""size":70000"#),
            Err(
                "its reply of 70000 bytes is too large to be passed on; ask that process alone, by `memprof msg`",
            ),
        );
        check(r#"{"error":{"code":1,"message":"no"}}"#, Err("no"));
        check(
            "{}",
            Err("invalid type: null, expected struct MessageResult"),
        );
        check("", Err("EOF while parsing a value at line 1 column 0"));
    }

    #[test]
    fn parent_pid_is_found() {
        let own = getppid().map(|pid| pid.as_raw_pid().cast_unsigned());
        assert_eq!(parent_pid(std::process::id()), own);
        assert_eq!(parent_pid(u32::MAX), None);
    }
}
