//! Questions to the agents themselves: `fleet ps` where there is a bus, and `fleet dump`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::StatusCode;
use futures::StreamExt;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::table::{bytes, table};
use crate::args::{DumpArgs, ProcessArgs, TimeWindow};
use crate::bus::{AgentProcess, AgentReply, AgentRequest, Verb, connect, subject};
use crate::config::Config;
use crate::output::{NO_DATA, UNREACHABLE, coded, note, print};
use crate::query::{ProfileQuery, profiles};
use crate::target::Target;

/// How long agents may take to say that they are there.
const HERE: Duration = Duration::from_secs(2);
/// How long nobody else may have answered until then: a crowd of agents, or of those who ask, is slower.
const QUIET: Duration = Duration::from_millis(500);
/// How long a list may take.
const LISTING: Duration = Duration::from_secs(15);
/// How long dumps may take, behind the time over which they are spread.
const DUMPING: Duration = Duration::from_secs(300);
/// Which agents are expected: those that wrote a profile in this time.
const KNOWN: Duration = Duration::from_secs(3600);

type Agents = BTreeMap<(String, String), (usize, Option<usize>)>;

/// The agents' replies to one question.
#[derive(Default)]
struct AgentReplies {
    processes: Vec<AgentProcess>,
    /// By machine and agent: how many processes it told of, and how many it says that it told of.
    agents: Agents,
}

/// `memprof fleet ps` over the bus.
pub(crate) fn ps(config: &Config, target: &Target, json: bool) -> anyhow::Result<ExitCode> {
    let request = AgentRequest {
        target: target.clone(),
        share: 1.0,
        spread_ms: 0,
        dry_run: false,
    };
    show(config, Verb::Ps, target, &request, LISTING, json)
}

/// `memprof fleet dump`
pub(crate) fn dump(args: &DumpArgs) -> anyhow::Result<ExitCode> {
    let ProcessArgs {
        at,
        bus,
        target,
        json,
    } = &args.asked;
    let config = Config::read(at)?.with(bus);
    let spread = u64::try_from(args.spread.as_millis()).unwrap_or(u64::MAX);
    let request = AgentRequest {
        target: target.clone(),
        share: args.sample,
        spread_ms: spread,
        dry_run: args.dry_run,
    };
    let patience = args.spread.saturating_add(DUMPING);
    show(&config, Verb::Dump, target, &request, patience, *json)
}

fn show(
    config: &Config,
    verb: Verb,
    target: &Target,
    request: &AgentRequest,
    patience: Duration,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let gathered = runtime.block_on(gather(config, verb, target, request, patience))?;
    drop(runtime);
    let missing = missing(config, target, &gathered);
    if gathered.agents.is_empty() && missing.is_empty() {
        let url = config.nats.url()?;
        let message =
            format!("no agent answered at {url}: start one with `memprof agent --nats {url}`");
        return Err(coded(UNREACHABLE, message));
    }
    let AgentReplies {
        mut processes,
        agents,
    } = gathered;
    processes.sort_by(|a, b| (&a.service, &a.host, a.pid).cmp(&(&b.service, &b.host, b.pid)));
    if json {
        print(&json!({ "processes": processes, "missing": missing }).to_string())?;
    } else {
        let cells = processes.iter().map(|one| {
            [
                one.service.clone(),
                format!("{}/{}", one.host, one.pid),
                one.profiling.clone(),
                one.rss_bytes.map(bytes).unwrap_or_default(),
                match &one.failed {
                    Some(why) => why.clone(),
                    None => one.inuse_bytes.map(bytes).unwrap_or_default(),
                },
            ]
        });
        let heads = ["SERVICE", "PROCESS", "PROFILING", "RSS", "DUMPED"];
        print(&table(heads, cells.collect()))?;
    }
    note(&format!(
        "{} agents answered",
        agents.len() - unfinished(&agents)
    ));
    for (host, why) in &missing {
        note(&format!("missing: {host}: {why}"));
    }
    for host in shared_names(&agents) {
        note(&format!(
            "{host} is the name of more than one machine: their profiles cannot be told apart by it"
        ));
    }
    if processes.is_empty() && missing.is_empty() && verb == Verb::Dump {
        return Err(coded(
            NO_DATA,
            format!("no process of {target} runs where agents answered"),
        ));
    }
    let failed = processes.iter().any(|one| one.failed.is_some());
    Ok(u8::from(failed || !missing.is_empty()).into())
}

fn unfinished(agents: &Agents) -> usize {
    agents
        .values()
        .filter(|(told, of)| *of != Some(*told))
        .count()
}

/// The names that more than one agent has.
fn shared_names(agents: &Agents) -> BTreeSet<&str> {
    let names = agents.keys().zip(agents.keys().skip(1));
    let shared = names.filter(|((one, _), (next, _))| one == next);
    shared.map(|((name, _), _)| name.as_str()).collect()
}

/// The agents that did not answer, or not to the end, and what is known of each.
fn missing(config: &Config, target: &Target, gathered: &AgentReplies) -> BTreeMap<String, String> {
    let mut missing = BTreeMap::new();
    let window = TimeWindow {
        until: None,
        length: KNOWN,
    };
    let known = ProfileQuery::new(config, &window, target).and_then(|asked| profiles(&asked));
    match known {
        Ok(known) => {
            let silent = known
                .into_iter()
                .filter(|one| !gathered.agents.keys().any(|(host, _)| *host == one.host));
            missing.extend(silent.map(|one| {
                (
                    one.host,
                    format!(
                        "it wrote a profile at {}, but does not answer now",
                        one.time.text()
                    ),
                )
            }));
        }
        Err(error) => note(&format!(
            "agents that do not answer cannot be listed: {error:#}"
        )),
    }
    for ((host, _), (told, of)) in &gathered.agents {
        let why = match of {
            None => "its answer was not complete in time".to_owned(),
            Some(of) if of != told => format!("only {told} of its {of} processes were received"),
            Some(_) => continue,
        };
        missing.insert(host.clone(), why);
    }
    missing
}

/// Asks, and takes answers until every agent that is there has ended its own.
async fn gather(
    config: &Config,
    verb: Verb,
    target: &Target,
    request: &AgentRequest,
    patience: Duration,
) -> anyhow::Result<AgentReplies> {
    let refused: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let tell = {
        let refused = Arc::clone(&refused);
        move |error| {
            if let Ok(mut refused) = refused.lock() {
                refused.insert(error);
            }
        }
    };
    let client = connect(&config.nats, "memprof fleet", tell).await?;
    let inbox = client.new_inbox();
    let mut replies = client.subscribe(inbox.clone()).await?;
    let payload = serde_json::to_vec(request)?;
    client
        .publish_with_reply(subject(verb, target), inbox, payload.into())
        .await?;
    client.flush().await?;
    let begun = Instant::now();
    let (here, end) = (begun + HERE, begun + patience);
    let mut heard = begun;
    let mut gathered = AgentReplies::default();
    loop {
        // A refusal is only an event, and nobody would ever answer.
        if let Some(error) = refused
            .lock()
            .ok()
            .and_then(|refused| refused.first().cloned())
        {
            let message = format!(
                "{}: {error}: the server must let this user publish {} and subscribe to _INBOX.>",
                config.nats.url()?,
                subject(verb, target)
            );
            return Err(coded(UNREACHABLE, message));
        }
        let now = Instant::now();
        let is_quiet = now >= here && now >= heard + QUIET;
        let is_done = is_quiet && unfinished(&gathered.agents) == 0;
        if is_done || now >= end {
            return Ok(gathered);
        }
        // Refusals are looked for meanwhile.
        let until = end.min(now + HERE / 10);
        let Ok(Some(message)) = timeout_at(until, replies.next()).await else {
            continue;
        };
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            return Ok(gathered);
        }
        heard = Instant::now();
        match serde_json::from_slice(&message.payload) {
            Ok(AgentReply::Here { host, agent }) => {
                gathered.agents.entry((host, agent)).or_default();
            }
            Ok(AgentReply::Process(process)) => {
                let agent = (process.host.clone(), process.agent.clone());
                gathered.agents.entry(agent).or_default().0 += 1;
                gathered.processes.push(process);
            }
            Ok(AgentReply::Done {
                host,
                agent,
                processes,
            }) => {
                gathered.agents.entry((host, agent)).or_default().1 = Some(processes);
            }
            Err(error) => note(&format!("ignored a reply that is not memprof's: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_machines_of_one_name_are_two_agents() {
        let check = |agents: &[(&str, &str)], expected: &[&str]| {
            let agents = agents
                .iter()
                .map(|(host, agent)| (((*host).to_owned(), (*agent).to_owned()), (1, Some(1))));
            let agents = agents.collect();
            assert_eq!(unfinished(&agents), 0);
            assert!(shared_names(&agents).iter().eq(expected), "{expected:?}");
        };
        check(&[], &[]);
        check(&[("a", "1"), ("b", "2")], &[]);
        check(&[("a", "1"), ("a", "2"), ("b", "3")], &["a"]);
        check(&[("a", "1"), ("a", "2"), ("a", "3")], &["a"]);
    }
}
