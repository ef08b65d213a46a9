//! An agent's end of the bus.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use async_nats::{Client, Message};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::select_all;
use memprof_host::{DiscoveryScope, RunningHost, discover};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::{AgentProcess, AgentReply, AgentRequest, agent_id, connect, subjects};
use crate::config::Nats;
use crate::output::note;
use crate::policy::hash_fraction;
use crate::take_profile::resident;

/// How long a server that does not answer is left alone.
const LEAVE: Duration = Duration::from_secs(5);
/// The most requests whose answers are not complete. More are ignored: each waits as long as it says.
const MOST_WAITING: usize = 256;
static WAITING: Semaphore = Semaphore::const_new(MOST_WAITING);
/// The longest time over which the agents of a request spread their starts.
const LONGEST_SPREAD: Duration = Duration::from_secs(24 * 3600);

/// What an agent that waits is woken by.
#[derive(Debug)]
pub(crate) enum AgentEvent {
    /// A signal asked the agent to end.
    End,
    /// Somebody asks for dumps.
    Asked(DumpRequest),
}

/// A question that only the agent's own thread can answer: it takes one dump at a time.
#[derive(Debug)]
pub(crate) struct DumpRequest {
    pub(crate) request: AgentRequest,
    pub(crate) replies: UnboundedSender<AgentReply>,
}

/// Answers questions, on a thread of its own, for as long as this program runs.
pub(crate) fn answer(nats: Nats, host: String, dumps: Sender<AgentEvent>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    nats.url()?;
    thread::spawn(move || {
        runtime.block_on(async {
            let mut told = String::new();
            loop {
                if let Err(error) = serve(&nats, &host, &dumps).await {
                    let error = format!("{error:#}");
                    if told != error {
                        note(&error);
                        told = error;
                    }
                }
                tokio::time::sleep(LEAVE).await;
            }
        });
    });
    Ok(())
}

/// Answers until the connection ends for good.
async fn serve(nats: &Nats, host: &str, dumps: &Sender<AgentEvent>) -> anyhow::Result<()> {
    let client = connect(nats, &format!("memprof agent {host}"), |error| note(&error)).await?;
    let mut messages = Vec::new();
    for subject in subjects(host) {
        messages.push(client.subscribe(subject).await?);
    }
    note(&format!("questions come from {}", nats.url()?));
    let mut messages = select_all(messages);
    let host: Arc<str> = host.into();
    while let Some(message) = messages.next().await {
        tokio::spawn(reply(
            client.clone(),
            Arc::clone(&host),
            dumps.clone(),
            message,
        ));
    }
    Ok(())
}

async fn reply(client: Client, host: Arc<str>, dumps: Sender<AgentEvent>, message: Message) {
    let (Some(to), Ok(request)) = (
        message.reply,
        serde_json::from_slice::<AgentRequest>(&message.payload),
    ) else {
        return note(&format!(
            "ignored a request at {} that is not memprof's",
            message.subject
        ));
    };
    if !is_inbox(&to) {
        return note(&format!(
            "ignored a request at {}: it wants its answer at {to}, which is no inbox",
            message.subject
        ));
    }
    let Ok(_waiting) = WAITING.try_acquire() else {
        return note(&format!(
            "ignored a request at {}: {MOST_WAITING} others wait for their answers",
            message.subject
        ));
    };
    let (send, mut replies) = unbounded_channel();
    let here = AgentReply::Here {
        host: host.to_string(),
        agent: agent_id().to_owned(),
    };
    // The other end is below.
    send.send(here).unwrap_or_default();
    if message.subject.ends_with(".dump") {
        let spread = Duration::from_millis(request.spread_ms).min(LONGEST_SPREAD);
        let spread = spread.mul_f64(hash_fraction(&host));
        tokio::spawn(async move {
            tokio::time::sleep(spread).await;
            let asked = DumpRequest {
                request,
                replies: send,
            };
            // An agent that ends answers nobody: it is missed.
            dumps.send(AgentEvent::Asked(asked)).unwrap_or_default();
        });
    } else {
        tokio::task::spawn_blocking(move || list(&host, &request, &send));
    }
    while let Some(reply) = replies.recv().await {
        let bytes: Bytes = serde_json::to_vec(&reply).unwrap_or_default().into();
        if let Err(error) = client.publish(to.clone(), bytes).await {
            note(&format!("a reply was not sent: {error}"));
        }
    }
}

/// The processes that are asked for.
fn list(host: &str, request: &AgentRequest, replies: &UnboundedSender<AgentReply>) {
    let state = |client: &mut memprof_host::client::Client| match client.status() {
        Ok(status) => status.profiling.to_string(),
        Err(error) => error.to_string(),
    };
    let hosts = discover(DiscoveryScope::AllProcesses, state)
        .hosts
        .into_iter();
    let meant = hosts.filter(|(of, _)| {
        request
            .target
            .matches(&of.info.name, host, of.pid.cast_signed())
    });
    let mut processes = 0;
    for (of, profiling) in meant {
        processes += 1;
        replies
            .send(AgentReply::Process(process(host, &of, profiling)))
            .unwrap_or_default();
    }
    let done = AgentReply::Done {
        host: host.to_owned(),
        agent: agent_id().to_owned(),
        processes,
    };
    replies.send(done).unwrap_or_default();
}

pub(crate) fn process(host: &str, of: &RunningHost, profiling: String) -> AgentProcess {
    AgentProcess {
        host: host.to_owned(),
        agent: agent_id().to_owned(),
        pid: of.pid,
        service: of.info.name.clone(),
        profiling,
        rss_bytes: resident(of.pid),
        inuse_bytes: None,
        failed: None,
    }
}

/// Whether a subject is an inbox, on which only the one who asks listens. An answer elsewhere would be this agent's
/// word with this agent's rights.
fn is_inbox(subject: &str) -> bool {
    subject.starts_with("_INBOX.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_go_to_inboxes_only() {
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
