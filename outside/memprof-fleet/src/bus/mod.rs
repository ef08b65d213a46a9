//! The bus: questions to all agents at once, over NATS. Replies are small, one message for each process;
//! profiles themselves go to the store.

mod responder;

use std::fs::File;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context;
use async_nats::{Client, ConnectOptions};
use rustix::rand::GetRandomFlags;
use serde::{Deserialize, Serialize};

use crate::config::Nats;
use crate::output::{UNREACHABLE, USAGE, coded};
use crate::target::Target;
use crate::tls::is_untrusted;

pub(crate) use responder::{AgentEvent, DumpRequest, answer, process};

const CONNECTING: Duration = Duration::from_secs(5);
/// Room for the replies of a large fleet: what does not fit is dropped.
const REPLIES: usize = 1 << 18;

/// What is asked of agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Which processes there are.
    Ps,
    /// Take a profile of each.
    Dump,
}

impl Verb {
    fn word(self) -> &'static str {
        match self {
            Self::Ps => "ps",
            Self::Dump => "dump",
        }
    }
}

/// What an agent is asked, as JSON on its subject.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AgentRequest {
    pub(crate) target: Target,
    /// The part of the processes that is dumped, from 0 to 1.
    pub(crate) share: f64,
    /// Agents begin within this time, each at a moment of its own.
    pub(crate) spread_ms: u64,
    /// Only say who would be dumped.
    pub(crate) dry_run: bool,
}

/// An agent's answer is one `Here`, at once, a `AgentProcess` for each, and one `Done`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum AgentReply {
    Here {
        host: String,
        #[serde(default)]
        agent: String,
    },
    Process(AgentProcess),
    Done {
        host: String,
        #[serde(default)]
        agent: String,
        processes: usize,
    },
}

/// A process of an agent's machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AgentProcess {
    pub(crate) host: String,
    /// The agent that tells of it: two machines may have one name.
    #[serde(default)]
    pub(crate) agent: String,
    pub(crate) pid: u32,
    pub(crate) service: String,
    pub(crate) profiling: String,
    pub(crate) rss_bytes: Option<i64>,
    /// Of a dump: bytes in use, or why there is none.
    pub(crate) inuse_bytes: Option<i64>,
    pub(crate) failed: Option<String>,
}

/// This agent's id, which no other one has.
pub(crate) fn agent_id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| {
        let mut bytes = [0; 8];
        // Early in a boot there may be no random bytes yet: without them it has the name of its process only.
        rustix::rand::getrandom(&mut bytes, GetRandomFlags::NONBLOCK).unwrap_or_default();
        format!("{:016x}-{}", u64::from_le_bytes(bytes), std::process::id())
    })
}

/// The subject of a question: by machine and service, so that a server's permissions can tell them apart.
pub(crate) fn subject(verb: Verb, target: &Target) -> String {
    let verb = verb.word();
    match target {
        Target::All => format!("memprof.v1.all.{verb}"),
        Target::Service(service) => format!("memprof.v1.svc.{}.{verb}", subject_token(service)),
        Target::Host(host) | Target::Process(host, _) => {
            format!("memprof.v1.host.{}.{verb}", subject_token(host))
        }
    }
}

/// The subjects that an agent listens to.
fn subjects(host: &str) -> [String; 3] {
    [
        "memprof.v1.all.*".to_owned(),
        "memprof.v1.svc.*.*".to_owned(),
        format!("memprof.v1.host.{}.*", subject_token(host)),
    ]
}

/// A name as a part of a subject, which dots take apart.
fn subject_token(name: &str) -> String {
    name.replace(|c: char| c.is_whitespace() || ".*>".contains(c), "_")
}

/// Connects, and calls `tell` for what goes wrong later.
pub(crate) async fn connect(
    nats: &Nats,
    name: &str,
    tell: impl Fn(String) + Send + Sync + Clone + 'static,
) -> anyhow::Result<Client> {
    let url = nats.url()?;
    let mut options = ConnectOptions::new()
        .name(name)
        .subscription_capacity(REPLIES)
        .connection_timeout(CONNECTING)
        .event_callback(move |event| {
            let tell = tell.clone();
            async move {
                match event {
                    async_nats::Event::ServerError(_)
                    | async_nats::Event::ClientError(_)
                    | async_nats::Event::SlowConsumer(_) => {
                        tell(event.to_string());
                    }
                    _ => {}
                }
            }
        });
    if let Some(file) = &nats.nkey_file {
        options = options.nkey(seed(file)?);
    }
    if let Some(file) = &nats.ca_file {
        // What async-nats says later does not name it.
        File::open(file).with_context(|| format!("failed to read {}", file.display()))?;
        options = options.add_root_certificates(file.clone());
    }
    options.connect(url).await.map_err(|error| {
        let remedy = match error.kind() {
            async_nats::ConnectErrorKind::Tls | async_nats::ConnectErrorKind::Io
                if is_untrusted(&error.to_string()) =>
            {
                ": `ca_file` must hold the certificate that signed the server's"
            }
            async_nats::ConnectErrorKind::Authentication
            | async_nats::ConnectErrorKind::AuthorizationViolation => {
                ": `nkey_file` must hold the seed of a user that the server knows"
            }
            _ => "",
        };
        coded(
            UNREACHABLE,
            format!("failed to connect to {url}: {error}{remedy}"),
        )
    })
}

fn seed(file: &PathBuf) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("failed to read {}", file.display()))?;
    // As nats-server and nsc write them, with lines around.
    let seed = text
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("SU"));
    let missing = || {
        coded(
            USAGE,
            format!(
                "{} has no seed of a NATS user (a line that begins with SU)",
                file.display()
            ),
        )
    };
    seed.map(str::to_owned).ok_or_else(missing)
}
