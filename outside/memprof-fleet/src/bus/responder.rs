//! Responder: the part of an agent that replies to requests on the bus.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use async_nats::{Client, Message};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::select_all;
use memprof_host::{DiscoveryScope, RunningHost, discover_hosts};
use memprof_output::note;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::{
    AgentProcess, AgentReply, AgentRequest, ConnectionEvent, agent_id, connect_to_nats,
    subscribed_subjects,
};
use crate::config::Nats;
use crate::error_log::ErrorLog;
use crate::machine_info::read_resident_bytes;
use crate::policy::hash_fraction;
use crate::time::Uptime;

/// Delay before a new connection to a server that failed.
const RECONNECT_DELAY: Duration = Duration::from_secs(5);
/// Most requests with unfinished replies. Further ones are ignored, because a request stays open as long as its sender
/// asks.
const MAX_OPEN_REQUESTS: usize = 256;
/// Permits for requests with unfinished replies.
static OPEN_REQUESTS: Semaphore = Semaphore::const_new(MAX_OPEN_REQUESTS);
/// Longest time over which the agents of a request spread their starts.
const MAX_SPREAD: Duration = Duration::from_secs(24 * 3600);

/// Event for which a waiting agent wakes up.
#[derive(Debug)]
pub(crate) enum AgentEvent {
    /// A signal ends the agent.
    End,
    /// A request for dumps arrived.
    DumpRequested(DumpRequest),
}

/// Request for dumps, which the agent's own thread handles: it takes one dump at a time.
#[derive(Debug)]
pub(crate) struct DumpRequest {
    pub(crate) request: AgentRequest,
    pub(crate) replies: UnboundedSender<AgentReply>,
}

/// Starts to serve requests of machine `host`, on a thread that runs as long as this program. Sends requests for dumps
/// to `dumps`. Fails if the configured URL is missing or invalid. A later failure of the connection is printed, and the
/// thread connects again.
pub(crate) fn serve_requests(
    nats: Nats,
    host: String,
    dumps: Sender<AgentEvent>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // Reports an invalid URL before the thread starts.
    nats.url()?;
    thread::spawn(move || {
        runtime.block_on(async {
            let log = BusLog::default();
            loop {
                if let Err(error) = serve_connection(&nats, &host, &dumps, &log).await {
                    log.note_connection(ConnectionEvent::Failed(format!("{error:#}")));
                }
                tokio::time::sleep(RECONNECT_DELAY).await;
            }
        });
    });
    Ok(())
}

/// Log of errors of the connection, which recur with each attempt to connect, and of invalid requests, which anybody
/// may send.
#[derive(Clone, Default)]
struct BusLog(Arc<Mutex<ErrorLog>>);

impl BusLog {
    /// Subject of the connection's errors.
    const CONNECTION: &str = "NATS";
    /// Subject of errors of requests.
    const REQUESTS: &str = "requests";

    /// Prints changes of the connection: an error when it begins and, while it recurs, at doubling intervals; and the
    /// first success after errors.
    fn note_connection(&self, event: ConnectionEvent) {
        let line = match event {
            ConnectionEvent::Connected => {
                let had_errors = self.lock_errors().clear(Self::CONNECTION);
                had_errors.then(|| "works again".to_owned())
            }
            ConnectionEvent::Failed(error) => {
                self.lock_errors()
                    .record_error(Self::CONNECTION, &error, Uptime::now())
            }
        };
        if let Some(line) = line {
            note(&format!("{}: {line}", Self::CONNECTION));
        }
    }

    /// Prints an error of a request: the first one of its kind, and then at doubling intervals.
    fn note_request_error(&self, error: &str) {
        let line = self
            .lock_errors()
            .record_error(Self::REQUESTS, error, Uptime::now());
        if let Some(line) = line {
            note(&line);
        }
    }

    /// Locks the log of errors, even if a thread panicked while it held the lock.
    fn lock_errors(&self) -> MutexGuard<'_, ErrorLog> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects to the server, and serves requests, each in a task of its own, until the connection is closed for good.
/// Fails if the server cannot be reached.
async fn serve_connection(
    nats: &Nats,
    host: &str,
    dumps: &Sender<AgentEvent>,
    log: &BusLog,
) -> anyhow::Result<()> {
    let report = {
        let log = log.clone();
        move |event| log.note_connection(event)
    };
    let client = connect_to_nats(nats, &format!("memprof agent {host}"), report).await?;
    let mut messages = Vec::new();
    for subject in subscribed_subjects(host) {
        messages.push(client.subscribe(subject).await?);
    }
    note(&format!("questions come from {}", nats.url()?));
    let mut messages = select_all(messages);
    let host: Arc<str> = host.into();
    while let Some(message) = messages.next().await {
        tokio::spawn(handle_message(
            client.clone(),
            Arc::clone(&host),
            dumps.clone(),
            log.clone(),
            message,
        ));
    }
    Ok(())
}

/// Handles a request, and sends the replies to its inbox. A dump begins after this machine's part of the requested
/// spread. Invalid requests, and requests while `MAX_OPEN_REQUESTS` others wait for replies, are ignored; a line is
/// printed.
async fn handle_message(
    client: Client,
    host: Arc<str>,
    dumps: Sender<AgentEvent>,
    log: BusLog,
    message: Message,
) {
    let (Some(inbox), Ok(request)) = (
        message.reply,
        serde_json::from_slice::<AgentRequest>(&message.payload),
    ) else {
        return log.note_request_error(&format!(
            "ignored a request at {} that is not memprof's",
            message.subject
        ));
    };
    if !is_inbox(&inbox) {
        return log.note_request_error(&format!(
            "ignored a request at {}: it wants its answer at {inbox}, which is no inbox",
            message.subject
        ));
    }
    let Ok(_permit) = OPEN_REQUESTS.try_acquire() else {
        return log.note_request_error(&format!(
            "ignored a request at {}: {MAX_OPEN_REQUESTS} others wait for their answers",
            message.subject
        ));
    };
    let (send, mut replies) = unbounded_channel();
    let here = AgentReply::Here {
        host: host.to_string(),
        agent: agent_id().to_owned(),
    };
    // Sending cannot fail: the receiver is in this function.
    send.send(here).unwrap_or_default();
    if message.subject.ends_with(".dump") {
        let spread = Duration::from_millis(request.spread_ms).min(MAX_SPREAD);
        // Each machine waits for its own part of the spread, the same one each time.
        let spread = spread.mul_f64(hash_fraction(&host));
        tokio::spawn(async move {
            tokio::time::sleep(spread).await;
            let dump_request = DumpRequest {
                request,
                replies: send,
            };
            // Sending fails if the agent ends. The requesting program notices that its reply is missing.
            dumps
                .send(AgentEvent::DumpRequested(dump_request))
                .unwrap_or_default();
        });
    } else {
        tokio::task::spawn_blocking(move || reply_with_processes(&host, &request, &send));
    }
    while let Some(reply) = replies.recv().await {
        // A reply has only texts and numbers, so serializing it cannot fail.
        let bytes: Bytes = serde_json::to_vec(&reply).unwrap_or_default().into();
        if let Err(error) = client.publish(inbox.clone(), bytes).await {
            log.note_request_error(&format!("a reply was not sent: {error}"));
        }
    }
}

/// Sends the requested processes of this machine to `replies`, and then their number. Blocks while it queries the
/// processes.
fn reply_with_processes(host: &str, request: &AgentRequest, replies: &UnboundedSender<AgentReply>) {
    let state = |client: &mut memprof_host::client::Client| match client.status() {
        Ok(status) => status.profiling.to_string(),
        Err(error) => error.to_string(),
    };
    let hosts = discover_hosts(DiscoveryScope::AllProcesses, state)
        .hosts
        .into_iter();
    let selected = hosts.filter(|(running, _)| {
        request
            .target
            .matches(&running.info.name, host, running.pid.cast_signed())
    });
    let mut processes = 0;
    for (running, profiling) in selected {
        processes += 1;
        // Sending fails only if the task that reads the replies has ended.
        replies
            .send(AgentReply::Process(describe_agent_process(
                host, &running, profiling,
            )))
            .unwrap_or_default();
    }
    let done = AgentReply::Done {
        host: host.to_owned(),
        agent: agent_id().to_owned(),
        processes,
    };
    replies.send(done).unwrap_or_default();
}

/// Describes a running host for a reply, with its resident memory from /proc. `profiling` is the state of its profiler,
/// or the error of the query for that state.
pub(crate) fn describe_agent_process(
    host: &str,
    running: &RunningHost,
    profiling: String,
) -> AgentProcess {
    AgentProcess {
        host: host.to_owned(),
        agent: agent_id().to_owned(),
        pid: running.pid,
        service: running.info.name.clone(),
        profiling,
        rss_bytes: read_resident_bytes(running.pid),
        inuse_bytes: None,
        failed: None,
    }
}

/// Returns whether a subject is an inbox of NATS, which belongs to the requesting program. A reply to any other subject
/// would let the requester send messages there with this agent's permissions.
fn is_inbox(subject: &str) -> bool {
    subject.starts_with("_INBOX.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_inbox_accepts_inboxes_only() {
        assert!(is_inbox("_INBOX.a1b2.1"));
        for other in [
            "memprof.v1.all.ps",
            "$SYS.REQ",
            "_INBOX",
            "x._INBOX.a",
            "_inbox.a",
            "",
        ] {
            assert!(!is_inbox(other), "{other}");
        }
    }
}
