//! Requests to agents: `fleet ps` with a NATS server, and `fleet dump`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::StatusCode;
use futures::StreamExt;
use memprof_output::{NO_DATA, UNREACHABLE, format_table, note, print, with_exit_code};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::table::format_bytes;
use crate::args::{DumpArgs, ProcessArgs, TargetArgs, TimeWindow};
use crate::bus::{
    AgentProcess, AgentReply, AgentRequest, ConnectionEvent, Verb, connect_to_nats, request_subject,
};
use crate::config::Config;
use crate::query::{ProfileQuery, read_profiles, shared_machine_names as shared_names_in_store};
use crate::target::Target;

/// Time in which agents must announce themselves.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time without a reply after which no more agents are expected. Many agents reply for longer than
/// [`ANNOUNCE_TIMEOUT`].
const QUIET_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest time for a list.
const LIST_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest time for dumps, in addition to the time over which they are spread.
const DUMP_TIMEOUT: Duration = Duration::from_secs(300);
/// Age of a machine's last profile up to which its agent is expected to reply.
const EXPECTED_AGENT_AGE: Duration = Duration::from_secs(3600);

/// Number of received processes, and of the announced ones once the agent is done, by machine and agent.
type Agents = BTreeMap<(String, String), (usize, Option<usize>)>;

/// Replies of agents to one request.
#[derive(Default)]
struct AgentReplies {
    processes: Vec<AgentProcess>,
    /// Counts by machine and agent.
    agents: Agents,
}

/// Runs `memprof fleet ps` over NATS: prints the processes that agents list, as a table or, if `json`, as JSON. Waits
/// for the replies up to [`LIST_TIMEOUT`] (15 s). Fails if no agent replies, and none is known from the store (exit
/// code 3).
pub(crate) fn run_ps(config: &Config, target: &Target, json: bool) -> anyhow::Result<ExitCode> {
    let request = AgentRequest {
        target: target.clone(),
        share: 1.0,
        spread_ms: 0,
        dry_run: false,
    };
    request_and_print_processes(config, Verb::Ps, target, &request, LIST_TIMEOUT, json)
}

/// Runs `memprof fleet dump`: has agents take profiles, and prints the processes. Waits for the requested spread and up
/// to [`DUMP_TIMEOUT`] (5 minutes) more. Fails if no agent replies, and none is known from the store (exit code 3), or
/// if there is no process to dump, and no agent is missing (5).
pub(crate) fn run_dump(args: &DumpArgs) -> anyhow::Result<ExitCode> {
    let ProcessArgs {
        store,
        bus,
        target: TargetArgs { target },
        json,
    } = &args.processes;
    let config = Config::read(store)?.with_bus_args(bus);
    let spread = u64::try_from(args.spread.as_millis()).unwrap_or(u64::MAX);
    let request = AgentRequest {
        target: target.clone(),
        share: args.sample,
        spread_ms: spread,
        dry_run: args.dry_run,
    };
    let timeout = args.spread.saturating_add(DUMP_TIMEOUT);
    request_and_print_processes(&config, Verb::Dump, target, &request, timeout, *json)
}

/// Sends a request, and prints the processes in the replies, as a table or, if `json`, as JSON. Names missing agents on
/// stderr. Returns exit code 1 if an agent is missing or a dump failed.
///
/// Fails if no agent replied, and none is known from the store (exit code 3), or if there was no process to dump, and
/// no agent is missing (5).
fn request_and_print_processes(
    config: &Config,
    verb: Verb,
    target: &Target,
    request: &AgentRequest,
    timeout: Duration,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let replies = runtime.block_on(request_replies(config, verb, target, request, timeout))?;
    drop(runtime);
    let missing = find_missing_agents(config, target, &replies);
    if replies.agents.is_empty() && missing.is_empty() {
        let url = config.nats.url()?;
        let message =
            format!("no agent answered at {url}: start one with `memprof agent --nats {url}`");
        return Err(with_exit_code(UNREACHABLE, message));
    }
    let AgentReplies {
        mut processes,
        agents,
    } = replies;
    processes.sort_by(|a, b| (&a.service, &a.host, a.pid).cmp(&(&b.service, &b.host, b.pid)));
    if json {
        print(&json!({ "processes": processes, "missing": missing }).to_string());
    } else {
        let cells = processes.iter().map(|process| {
            [
                process.service.clone(),
                format!("{}/{}", process.host, process.pid),
                process.profiling.clone(),
                process.rss_bytes.map(format_bytes).unwrap_or_default(),
                match &process.failed {
                    Some(error) => error.clone(),
                    None => process.inuse_bytes.map(format_bytes).unwrap_or_default(),
                },
            ]
        });
        let heads = ["SERVICE", "PROCESS", "PROFILING", "RSS", "DUMPED"];
        print(&format_table(heads, &cells.collect::<Vec<_>>()));
    }
    note(&format!(
        "{} agents answered",
        agents.len() - unfinished_agent_count(&agents)
    ));
    for (host, reason) in &missing {
        note(&format!("missing: {host}: {reason}"));
    }
    for host in shared_machine_names(&agents) {
        note(&format!(
            "{host} is the name of more than one machine: their profiles cannot be told apart by it"
        ));
    }
    if processes.is_empty() && missing.is_empty() && verb == Verb::Dump {
        return Err(with_exit_code(
            NO_DATA,
            format!("no process of {target} runs where agents answered"),
        ));
    }
    let failed = processes.iter().any(|process| process.failed.is_some());
    Ok(u8::from(failed || !missing.is_empty()).into())
}

/// Returns the number of agents whose replies are incomplete: an agent has not announced its number of processes, or
/// that number is not the one that was received.
fn unfinished_agent_count(agents: &Agents) -> usize {
    agents
        .values()
        .filter(|(received, announced)| *announced != Some(*received))
        .count()
}

/// Returns the machine names that more than one agent has.
fn shared_machine_names(agents: &Agents) -> BTreeSet<&str> {
    // The keys are sorted by name, so agents with one name are neighbours.
    let names = agents.keys().zip(agents.keys().skip(1));
    let shared = names.filter(|((one, _), (next, _))| one == next);
    shared.map(|((name, _), _)| name.as_str()).collect()
}

/// Returns the machines whose agents did not reply, or not completely, with the reasons. A machine must reply if it
/// wrote a profile of the target within [`EXPECTED_AGENT_AGE`] (1 h); if several such machines have one name, each
/// must. If the store cannot be read, only prints a note, and finds incomplete replies only.
fn find_missing_agents(
    config: &Config,
    target: &Target,
    replies: &AgentReplies,
) -> BTreeMap<String, String> {
    let mut missing = BTreeMap::new();
    let window = TimeWindow {
        until: None,
        length: EXPECTED_AGENT_AGE,
    };
    let expected =
        ProfileQuery::new(config, &window, target).and_then(|query| read_profiles(&query));
    match expected {
        Ok(expected) => {
            for (host, machines) in shared_names_in_store(&expected) {
                let answered = replies
                    .agents
                    .keys()
                    .filter(|(name, _)| name == host)
                    .count();
                // If none replied, the machine counts as silent below.
                if (1..machines).contains(&answered) {
                    let reason = format!(
                        "{machines} machines of this name wrote profiles, and {answered} of them answered"
                    );
                    missing.insert(host.to_owned(), reason);
                }
            }
            let silent = expected
                .into_iter()
                .filter(|profile| !replies.agents.keys().any(|(host, _)| *host == profile.host));
            missing.extend(silent.map(|profile| {
                (
                    profile.host,
                    format!(
                        "it wrote a profile at {}, but does not answer now",
                        profile.time.to_rfc3339()
                    ),
                )
            }));
        }
        Err(error) => note(&format!(
            "agents that do not answer cannot be listed: {error:#}"
        )),
    }
    for ((host, _), (received, announced)) in &replies.agents {
        let reason = match announced {
            None => "its answer was not complete in time".to_owned(),
            Some(announced) if announced != received => {
                format!("only {received} of its {announced} processes were received")
            }
            Some(_) => continue,
        };
        let reasons: &mut String = missing.entry(host.clone()).or_default();
        if !reasons.is_empty() {
            reasons.push_str("; ");
        }
        reasons.push_str(&reason);
    }
    missing
}

/// Sends a request, and receives replies for at least 2 s, until none has come for 0.5 s and each agent that replied
/// has sent all of its processes. Returns at once if the server says that no agent listens. Returns incomplete replies
/// after `timeout`. Fails if the server cannot be reached, or refuses the request (exit code 3).
async fn request_replies(
    config: &Config,
    verb: Verb,
    target: &Target,
    request: &AgentRequest,
    timeout: Duration,
) -> anyhow::Result<AgentReplies> {
    let errors: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let report = {
        let errors = Arc::clone(&errors);
        move |event| {
            if let ConnectionEvent::Failed(error) = event
                && let Ok(mut errors) = errors.lock()
            {
                errors.insert(error);
            }
        }
    };
    let client = connect_to_nats(&config.nats, "memprof fleet", report).await?;
    let inbox = client.new_inbox();
    let mut messages = client.subscribe(inbox.clone()).await?;
    let payload = serde_json::to_vec(request)?;
    client
        .publish_with_reply(request_subject(verb, target), inbox, payload.into())
        .await?;
    client.flush().await?;
    let start = Instant::now();
    let (announce_end, deadline) = (start + ANNOUNCE_TIMEOUT, start + timeout);
    let mut last_reply = start;
    let mut replies = AgentReplies::default();
    loop {
        // NATS reports a refused permission only as an event, and no agent would ever reply.
        if let Some(error) = errors
            .lock()
            .ok()
            .and_then(|errors| errors.first().cloned())
        {
            let message = format!(
                "{}: {error}: the server must let this user publish {} and subscribe to _INBOX.>",
                config.nats.url()?,
                request_subject(verb, target)
            );
            return Err(with_exit_code(UNREACHABLE, message));
        }
        let now = Instant::now();
        let is_quiet = now >= announce_end && now >= last_reply + QUIET_TIMEOUT;
        let is_done = is_quiet && unfinished_agent_count(&replies.agents) == 0;
        if is_done || now >= deadline {
            return Ok(replies);
        }
        // The wait is short, so that errors are noticed soon.
        let wait_end = deadline.min(now + ANNOUNCE_TIMEOUT / 10);
        let Ok(Some(message)) = timeout_at(wait_end, messages.next()).await else {
            continue;
        };
        // NATS replies with this status if no agent subscribes to the subject.
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            return Ok(replies);
        }
        last_reply = Instant::now();
        match serde_json::from_slice(&message.payload) {
            Ok(AgentReply::Here { host, agent }) => {
                replies.agents.entry((host, agent)).or_default();
            }
            Ok(AgentReply::Process(process)) => {
                let agent = (process.host.clone(), process.agent.clone());
                replies.agents.entry(agent).or_default().0 += 1;
                replies.processes.push(process);
            }
            Ok(AgentReply::Done {
                host,
                agent,
                processes,
            }) => {
                replies.agents.entry((host, agent)).or_default().1 = Some(processes);
            }
            Err(error) => note(&format!("ignored a reply that is not memprof's: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_of_one_name_are_separate_agents() {
        let check = |agents: &[(&str, &str)], expected: &[&str]| {
            let agents = agents
                .iter()
                .map(|(host, agent)| (((*host).to_owned(), (*agent).to_owned()), (1, Some(1))));
            let agents = agents.collect();
            assert_eq!(unfinished_agent_count(&agents), 0);
            assert!(
                shared_machine_names(&agents).iter().eq(expected),
                "{expected:?}"
            );
        };
        check(&[], &[]);
        check(&[("a", "1"), ("b", "2")], &[]);
        check(&[("a", "1"), ("a", "2"), ("b", "3")], &["a"]);
        check(&[("a", "1"), ("a", "2"), ("a", "3")], &["a"]);
    }
}
