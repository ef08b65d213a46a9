//! The other processes of the same server, asked over their control sockets: its children, of which this process
//! is one, and the server itself. All are asked at once: together they take at most [`PATIENCE`].

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

/// How long all of them together are waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at whether the caller gave up.
const LOOK: Duration = Duration::from_millis(100);
/// A longer reply is passed as a descriptor, which this one does not take.
const LINE_LIMIT: usize = 1 << 20;

/// A process that was asked.
#[derive(Debug)]
pub(super) struct ServerProcess {
    pub(super) pid: u32,
    /// Why there is no reply.
    pub(super) reply: Result<Reply, String>,
}

/// Sends a message to all of them that have a socket. `gave_up` ends the wait.
pub(super) fn query_all(
    plugin: &str,
    message: &str,
    args: &str,
    gave_up: impl Fn() -> bool,
) -> Vec<ServerProcess> {
    let request = request(plugin, message, args);
    let until = Instant::now() + PATIENCE;
    let (mut asked, mut answered) = (Vec::new(), Vec::new());
    for pid in pids() {
        match PendingRequest::begin(pid, &request) {
            Ok(one) => asked.push(one),
            Err(error) => answered.push(ServerProcess {
                pid,
                reply: Err(error.to_string()),
            }),
        }
    }
    while !asked.is_empty() && !gave_up() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        for at in wait(&asked, left.min(LOOK)).into_iter().rev() {
            if let Some(reply) = asked[at].receive() {
                let pid = asked.swap_remove(at).pid;
                answered.push(ServerProcess { pid, reply });
            }
        }
    }
    let silent = format!("it did not answer within {PATIENCE:?}");
    answered.extend(asked.into_iter().map(|one| ServerProcess {
        pid: one.pid,
        reply: Err(silent.clone()),
    }));
    answered
}

/// Other processes with a socket whose parent is this one's, and the parent.
fn pids() -> impl Iterator<Item = u32> {
    let server = getppid().map(|pid| pid.as_raw_pid().cast_unsigned());
    // A directory that cannot be read has nobody's socket who could be asked.
    let sockets = sockets(&own_default_dir()).unwrap_or_default();
    let pid = |path: &Path| path.file_stem()?.to_str()?.parse().ok();
    let pids: Vec<u32> = sockets.iter().filter_map(|path| pid(path)).collect();
    pids.into_iter()
        .filter(|pid| *pid != std::process::id())
        .filter(move |pid| Some(*pid) == server || parent(*pid) == server)
}

/// The parent of a process (proc(5), /proc/PID/stat), unless it has ended.
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may have parentheses and blanks.
    let (_, behind_name) = stat.rsplit_once(") ")?;
    behind_name.split(' ').nth(1)?.parse().ok()
}

fn request(plugin: &str, message: &str, args: &str) -> String {
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

/// A connection on which a reply is awaited.
#[derive(Debug)]
struct PendingRequest {
    pid: u32,
    socket: OwnedFd,
    line: Vec<u8>,
}

impl PendingRequest {
    fn begin(pid: u32, request: &str) -> io::Result<Self> {
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
        // The socket was just made: it has room for a line.
        send(&socket, request.as_bytes(), SendFlags::NOSIGNAL)?;
        Ok(Self {
            pid,
            socket,
            line: Vec::new(),
        })
    }

    /// The reply, once it is there, or why there will be none.
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
            if self.line.ends_with(b"\n") || self.line.len() > LINE_LIMIT {
                return Some(reply(&self.line));
            }
        }
    }
}

/// Waits until some of them can be read, and returns which.
fn wait(asked: &[PendingRequest], time: Duration) -> Vec<usize> {
    let mut polled: Vec<_> = asked
        .iter()
        .map(|one| PollFd::from_borrowed_fd(one.socket.as_fd(), PollFlags::IN))
        .collect();
    let time = Timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    };
    // A signal is one reason of many to look again.
    let _ = poll(&mut polled, Some(&time));
    let ready = |(at, one): (usize, &PollFd<'_>)| (!one.revents().is_empty()).then_some(at);
    polled.iter().enumerate().filter_map(ready).collect()
}

/// What a line of the protocol says.
fn reply(line: &[u8]) -> Result<Reply, String> {
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
                "its reply of {size} bytes is too large to be passed on"
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
    fn lines_are_replies_or_reasons() {
        let check = |line: &str, expected: Result<&str, &str>| {
            let found = reply(line.as_bytes()).map(Reply::into_text);
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{line}");
        };
        let result = |members: &str| {
            format!(r#"{{"result":{{"status_code":0,"content_type":"x",{members}}}}}"#)
        };
        check(&result(r#""body":"plain""#), Ok("plain"));
        check(&result(r#""body":{"text":"for people"}"#), Ok("for people"));
        check(
            &result(r#""size":70000"#),
            Err("its reply of 70000 bytes is too large to be passed on"),
        );
        check(r#"{"error":{"code":1,"message":"no"}}"#, Err("no"));
        check(
            "{}",
            Err("invalid type: null, expected struct MessageResult"),
        );
        check("", Err("EOF while parsing a value at line 1 column 0"));
    }

    #[test]
    fn parents_are_found_by_pid() {
        let own = getppid().map(|pid| pid.as_raw_pid().cast_unsigned());
        assert_eq!(parent(std::process::id()), own);
        assert_eq!(parent(u32::MAX), None);
    }
}
