//! Sends messages to the other processes of the same server over their control sockets: the server, and its children
//! other than this process. All are queried in parallel; together they take at most [`REPLIES_TIMEOUT`].

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::getppid;
use serde_json::{Value, json};

use super::pending_request::{PendingRequest, request_line, wait_until_readable};
use crate::body::Body;
use crate::protocol::{MESSAGE, MessageParams, MessageResult, UNKNOWN_PLUGIN};
use crate::reply::Reply;
use crate::socket_dir::{list_sockets, own_default_dir, pid_in_name};

/// Timeout of all replies together.
const REPLIES_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which `should_stop` is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Reason and remedy for a process whose reply was not waited for.
const INTERRUPTED: &str = "it had not answered when the server interrupted the query; try again";

/// A process to which the message was sent.
#[derive(Debug)]
pub(super) struct ServerProcess {
    pub(super) pid: u32,
    /// The reply, or the reason for which there is none.
    pub(super) reply: Result<Reply, String>,
}

/// A process that did not reply at one of its sockets.
#[derive(Debug, PartialEq, Eq)]
enum MissingReply {
    /// The socket is of another plugin or process, so that another socket may be the right one.
    OtherSocket(String),
    Failed(String),
}

/// Result of a request to one socket of a process.
type SocketReply = (u32, Result<Reply, MissingReply>);

/// Sends a message to all other processes of the server that have a socket. Returns the reply of each, or the reason
/// for which there is none, in any order. Waits at most 5 s; when `should_stop` returns true, the remaining replies
/// are not waited for, and their reason says so.
pub(super) fn query_other_processes(
    plugin: &str,
    message: &str,
    args: &str,
    should_stop: impl Fn() -> bool,
) -> Vec<ServerProcess> {
    let params = MessageParams {
        plugin: plugin.to_owned(),
        message: message.to_owned(),
        args: args.to_owned(),
        deliver: None,
    };
    let request = request_line(MESSAGE, json!(params));
    let deadline = Instant::now() + REPLIES_TIMEOUT;
    let (mut pending, mut replies) = (Vec::new(), Vec::new());
    for (pid, socket) in other_server_sockets() {
        match PendingRequest::send(pid, &socket, &request) {
            Ok(request) => pending.push(request),
            Err(error) => replies.push((pid, Err(MissingReply::OtherSocket(error.to_string())))),
        }
    }
    replies.extend(await_replies(pending, deadline, should_stop));
    choose_reply_per_process(replies)
}

/// Waits for the replies to these requests until the deadline, or until `should_stop` returns true. Returns the reply
/// of each process, or the reason for which there is none, in any order.
fn await_replies(
    mut pending: Vec<PendingRequest>,
    deadline: Instant,
    should_stop: impl Fn() -> bool,
) -> Vec<SocketReply> {
    let mut finished = Vec::new();
    let mut missing = format!("it did not answer within {REPLIES_TIMEOUT:?}");
    while !pending.is_empty() {
        if should_stop() {
            missing = INTERRUPTED.to_owned();
            break;
        }
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            break;
        }
        // From the last index down, because `swap_remove` moves the last request.
        for index in wait_until_readable(&pending, remaining.min(POLL_INTERVAL))
            .into_iter()
            .rev()
        {
            if let Some(line) = pending[index].receive_line() {
                let reply = line.map_err(MissingReply::Failed).and_then(parse_reply);
                finished.push((pending.swap_remove(index).pid, reply));
            }
        }
    }
    let missing = |request: PendingRequest| {
        let reason = MissingReply::Failed(missing.clone());
        (request.pid, Err(reason))
    };
    finished.extend(pending.into_iter().map(missing));
    finished
}

/// Chooses one result for each process. A process has several sockets if it has several plugins; the result of the
/// socket that serves the right plugin is preferred, also if it is a failure.
fn choose_reply_per_process(mut replies: Vec<SocketReply>) -> Vec<ServerProcess> {
    let is_other =
        |reply: &Result<Reply, MissingReply>| matches!(reply, Err(MissingReply::OtherSocket(_)));
    replies.sort_by_key(|(pid, reply)| (*pid, is_other(reply)));
    replies.dedup_by_key(|(pid, _)| *pid);
    let process = |(pid, reply): SocketReply| ServerProcess {
        pid,
        reply: reply.map_err(|missing| match missing {
            MissingReply::OtherSocket(reason) | MissingReply::Failed(reason) => reason,
        }),
    };
    replies.into_iter().map(process).collect()
}

/// Iterates over the sockets, in the default directory, of this process's parent and of the parent's other children:
/// the processes of the same server. Each item has the pid and the path. A process has several sockets if it has
/// several plugins.
fn other_server_sockets() -> impl Iterator<Item = (u32, PathBuf)> {
    let server = getppid().map(|pid| pid.as_raw_pid().cast_unsigned());
    // A directory that cannot be read contains no socket to which this process can connect.
    let sockets = list_sockets(&own_default_dir()).unwrap_or_default();
    let pid = |path: &Path| pid_in_name(path.file_name()?.to_str()?);
    sockets
        .into_iter()
        .filter_map(move |path| Some((pid(&path)?, path)))
        .filter(|(pid, _)| *pid != std::process::id())
        .filter(move |(pid, _)| Some(*pid) == server || parent_pid(*pid) == server)
}

/// Returns the pid of a process's parent (proc(5), /proc/PID/stat). `None` if the process has ended.
fn parent_pid(pid: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The process's name may contain parentheses, blanks and bytes that are not UTF-8. After it come the state and the
    // parent's pid.
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(1)?.parse().ok()
}

/// Parses the line of a response. If the response is an error, fails with its message: as `OtherSocket` if the host
/// does not know the plugin. Fails also if the line is no JSON, or if the reply's body is too large for the line.
fn parse_reply(line: &[u8]) -> Result<Reply, MissingReply> {
    let failed = |error: serde_json::Error| MissingReply::Failed(error.to_string());
    let response: Value = serde_json::from_slice(line).map_err(failed)?;
    if let Some(error) = response.get("error") {
        let reason = error["message"].as_str().unwrap_or_default().to_owned();
        return Err(match error["code"] == UNKNOWN_PLUGIN {
            true => MissingReply::OtherSocket(reason),
            false => MissingReply::Failed(reason),
        });
    }
    let result: MessageResult =
        serde_json::from_value(response["result"].clone()).map_err(failed)?;
    let body = match result.body {
        Some(Value::String(text)) => text,
        Some(object) => object.to_string(),
        None => {
            let size = result.size.unwrap_or_default();
            return Err(MissingReply::Failed(format!(
                "its reply of {size} bytes is too large to be passed on; ask that process alone, by `memprof msg`"
            )));
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
            let expected = expected.map(str::to_owned);
            let expected = expected.map_err(|reason| MissingReply::Failed(reason.to_owned()));
            assert_eq!(actual, expected, "{line}");
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
    fn reply_of_the_plugins_socket_is_chosen() {
        let line = |body: &str| {
            format!(r#"{{"result":{{"status_code":0,"content_type":"x","body":"{body}"}}}}"#)
        };
        let unknown = r#"{"error":{"code":-32001,"message":"unknown plugin"}}"#;
        let failed = r#"{"error":{"code":1,"message":"no"}}"#;
        let check = |lines: &[&str], expected: Result<&str, &str>| {
            let replies = lines.iter().map(|line| (7, parse_reply(line.as_bytes())));
            let chosen = choose_reply_per_process(replies.collect()).into_iter();
            let texts: Vec<_> = chosen
                .map(|each| each.reply.map(Reply::into_text))
                .collect();
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(texts, [expected], "{lines:?}");
        };
        check(&[&line("a")], Ok("a"));
        check(&[unknown, &line("a")], Ok("a"));
        check(&[&line("a"), unknown], Ok("a"));
        check(&[unknown, failed], Err("no"));
        check(&[unknown], Err("unknown plugin"));
    }

    #[test]
    fn reason_for_a_missing_reply_is_that_of_the_end_of_the_wait() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("silent.sock");
        let _silent = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let pid = std::process::id();
        let check = |deadline: Instant, is_stopped: bool, expected: &str| {
            let pending = vec![PendingRequest::send(pid, &path, "{}\n").unwrap()];
            let replies = await_replies(pending, deadline, || is_stopped).into_iter();
            let reasons: Vec<_> = replies
                .map(|(pid, reply)| (pid, reply.unwrap_err()))
                .collect();
            let expected = MissingReply::Failed(expected.to_owned());
            assert_eq!(reasons, [(pid, expected)]);
        };
        let now = Instant::now();
        check(now, false, "it did not answer within 5s");
        check(now, true, INTERRUPTED);
        check(now + REPLIES_TIMEOUT, true, INTERRUPTED);
    }

    #[test]
    fn parent_pid_is_found() {
        let own = getppid().map(|pid| pid.as_raw_pid().cast_unsigned());
        assert_eq!(parent_pid(std::process::id()), own);
        assert_eq!(parent_pid(u32::MAX), None);
    }
}
