//! Bus: requests to all agents over NATS. Replies are small, one message per process; profiles go to the
//! store.

mod responder;

use std::fs::File;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context;
use async_nats::{Client, ConnectOptions};
use memprof_output::{UNREACHABLE, USAGE, with_exit_code};
use rustix::rand::GetRandomFlags;
use serde::{Deserialize, Serialize};

use crate::config::Nats;
use crate::target::Target;
use crate::tls::is_untrusted_certificate_error;

pub(crate) use responder::{AgentEvent, DumpRequest, describe_agent_process, serve_requests};

/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Replies that can wait to be read, enough for a large fleet. Further ones are dropped, and the request fails.
const MAX_PENDING_REPLIES: usize = 1 << 18;

/// Kind of a request to agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// List processes.
    Ps,
    /// Take a profile of each process.
    Dump,
}

impl Verb {
    /// Returns the name of the request in its subject.
    fn name(self) -> &'static str {
        match self {
            Self::Ps => "ps",
            Self::Dump => "dump",
        }
    }
}

/// Request to agents, sent as JSON to their subject.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AgentRequest {
    pub(crate) target: Target,
    /// Fraction of the processes that is dumped, from 0 to 1.
    pub(crate) share: f64,
    /// Time in milliseconds within which agents begin, each after a delay of its own.
    pub(crate) spread_ms: u64,
    /// Whether to list the processes without dumping them.
    pub(crate) dry_run: bool,
}

/// Reply of an agent: one `Here` at once, a `Process` for each process, and one `Done`.
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

/// Process of an agent's machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AgentProcess {
    pub(crate) host: String,
    /// Id of the agent: two machines may have one name.
    #[serde(default)]
    pub(crate) agent: String,
    pub(crate) pid: u32,
    pub(crate) service: String,
    pub(crate) profiling: String,
    pub(crate) rss_bytes: Option<i64>,
    /// Bytes in use, after a dump.
    pub(crate) inuse_bytes: Option<i64>,
    /// Reason why the dump failed.
    pub(crate) failed: Option<String>,
}

/// Returns the unique id of this run of the agent: a random number and the process id.
pub(crate) fn agent_id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| {
        let mut bytes = [0; 8];
        // Early in a boot there may be no random bytes; then only the process id distinguishes runs.
        rustix::rand::getrandom(&mut bytes, GetRandomFlags::NONBLOCK).unwrap_or_default();
        format!("{:016x}-{}", u64::from_le_bytes(bytes), std::process::id())
    })
}

/// Returns the NATS subject of a request. The subject contains the machine or the service, so that the server's
/// permissions can depend on them. A request for a single process has the subject of its machine.
pub(crate) fn request_subject(verb: Verb, target: &Target) -> String {
    let verb = verb.name();
    match target {
        Target::All => format!("memprof.v1.all.{verb}"),
        Target::Service(service) => format!("memprof.v1.svc.{}.{verb}", subject_token(service)),
        Target::Host(host) | Target::Process(host, _) => {
            format!("memprof.v1.host.{}.{verb}", subject_token(host))
        }
    }
}

/// Returns the subjects to which the agent of machine `host` subscribes.
fn subscribed_subjects(host: &str) -> [String; 3] {
    [
        "memprof.v1.all.*".to_owned(),
        "memprof.v1.svc.*.*".to_owned(),
        format!("memprof.v1.host.{}.*", subject_token(host)),
    ]
}

/// Converts a name to one part of a subject: replaces the characters that have a meaning in subjects (blanks, dots and
/// wildcards) by `_`.
fn subject_token(name: &str) -> String {
    name.replace(|c: char| c.is_whitespace() || ".*>".contains(c), "_")
}

/// Change of a connection.
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    /// A connection was made, the first one or a later one.
    Connected,
    /// An error of the server or of the connection.
    Failed(String),
}

/// Connects to the NATS server as the client `name`. From then on, calls `report` for each new connection and each
/// error. Fails if the configuration is invalid (exit code 2), a file cannot be read, or the server cannot be reached
/// (3).
pub(crate) async fn connect_to_nats(
    nats: &Nats,
    name: &str,
    report: impl Fn(ConnectionEvent) + Send + Sync + Clone + 'static,
) -> anyhow::Result<Client> {
    let url = nats.url()?;
    let mut options = ConnectOptions::new()
        .name(name)
        .subscription_capacity(MAX_PENDING_REPLIES)
        .connection_timeout(CONNECT_TIMEOUT)
        .event_callback(move |event| {
            let report = report.clone();
            async move {
                match event {
                    async_nats::Event::Connected => report(ConnectionEvent::Connected),
                    async_nats::Event::ServerError(_)
                    | async_nats::Event::ClientError(_)
                    | async_nats::Event::SlowConsumer(_) => {
                        report(ConnectionEvent::Failed(event.to_string()));
                    }
                    _ => {}
                }
            }
        });
    if let Some(file) = &nats.nkey_file {
        options = options.nkey(read_seed(file)?);
    }
    if let Some(file) = &nats.ca_file {
        // Opened here only for an error with the path, which the errors of async-nats lack.
        File::open(file).with_context(|| format!("failed to read {}", file.display()))?;
        options = options.add_root_certificates(file.clone());
    }
    options.connect(url).await.map_err(|error| {
        let remedy = match error.kind() {
            async_nats::ConnectErrorKind::Tls | async_nats::ConnectErrorKind::Io
                if is_untrusted_certificate_error(&error.to_string()) =>
            {
                ": `ca_file` must hold the certificate that signed the server's"
            }
            async_nats::ConnectErrorKind::Authentication
            | async_nats::ConnectErrorKind::AuthorizationViolation => {
                ": `nkey_file` must hold the seed of a user that the server knows"
            }
            _ => "",
        };
        with_exit_code(
            UNREACHABLE,
            format!("failed to connect to {url}: {error}{remedy}"),
        )
    })
}

/// Reads the seed (private key) of a NATS user from a file: the first line that begins with `SU`. Fails if the file
/// cannot be read, or has no seed (exit code 2).
fn read_seed(file: &PathBuf) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("failed to read {}", file.display()))?;
    // nats-server and nsc write the seed between other lines.
    let seed = text
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("SU"));
    let missing = || {
        with_exit_code(
            USAGE,
            format!(
                "{} has no seed of a NATS user (a line that begins with SU)",
                file.display()
            ),
        )
    };
    seed.map(str::to_owned).ok_or_else(missing)
}
