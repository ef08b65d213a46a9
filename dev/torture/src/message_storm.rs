//! Suite `storm`: many threads send all messages in parallel, while the host, which has two jemallocs, allocates and
//! forks.

use std::ops::Add;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::SuiteLength;
use super::dump_dir::{is_complete_dump, scan_dump_dir};
use super::host::{HostSetup, connect, is_evicted, send_message};

/// Clients on the control socket; as many threads send messages inside the host.
const CLIENTS: usize = 32;
const JEMALLOCS: u64 = 2;
/// Delay between the messages of a client, so that the dumper gets a share of two cores.
const MESSAGE_DELAY: Duration = Duration::from_millis(20);
const OPTIONS: &str = "allocate=8 fork=1 messages=32";
const MESSAGES: [&str; 12] = [
    "dump",
    "status",
    "dump",
    "list",
    "dump",
    "stats",
    "deactivate",
    "activate",
    "ledger",
    "doctor",
    "purge",
    "reset",
];
/// Maximum rounds until there are enough dumps. An idle machine needs one; slow dumps are no failure.
const MAX_ROUNDS: u32 = 20;

/// Runs the suite `storm`, and returns its figures in one line. Fails if the host hangs or fails, if a dump is
/// incomplete, or if there are too few dumps.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let time = length.pick(Duration::from_secs(3), Duration::from_secs(20));
    let mut host = HostSetup {
        program: "stress_host_static",
        ..HostSetup::with_options(OPTIONS)
    }
    .start()?;
    let socket = host.dir().socket_path();
    let min_dumps = length.pick(100, 1000);
    let mut stats = ClientStats::default();
    for _ in 0..MAX_ROUNDS {
        stats = stats + send_messages(time, &socket).with_context(|| host.log())?;
        if JEMALLOCS * (stats.dumps + host.counters()?.dumps) >= min_dumps {
            break;
        }
    }
    host.check_alive()?;
    let ended = host.terminate().context("deadlock")?;
    ensure!(ended.success(), "the host ended with {ended}");

    let counters = host.counters()?;
    let found = scan_dump_dir(&host.dir().dump_dir())?;
    ensure!(found.bad.is_empty(), "bad files: {:?}", found.bad);
    ensure!(
        counters.failures == 0,
        "{} failures in the host",
        counters.failures
    );
    ensure!(counters.forks > 0, "no fork");
    let dumps = JEMALLOCS * (stats.dumps + counters.dumps);
    ensure!(dumps >= min_dumps, "{dumps} dumps, fewer than {min_dumps}");
    Ok(format!(
        "{dumps} dumps of {JEMALLOCS} jemallocs ({} checked), {} messages, {} forks, \
         {} allocations: 0 bad files, 0 deadlocks, 0 failures",
        stats.complete + found.complete as u64,
        stats.messages + counters.messages,
        counters.forks,
        counters.allocations
    ))
}

/// Messages and dumps of a client.
#[derive(Debug, Default)]
struct ClientStats {
    messages: u64,
    dumps: u64,
    /// Dumps that were complete when the client read them, before retention deleted them.
    complete: u64,
}

impl Add for ClientStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            messages: self.messages + other.messages,
            dumps: self.dumps + other.dumps,
            complete: self.complete + other.complete,
        }
    }
}

/// Sends messages from all clients in parallel for `time`, and returns the sum of their counts. Fails if a client gets
/// an error other than `busy`.
fn send_messages(time: Duration, socket: &Path) -> Result<ClientStats> {
    let end = Instant::now() + time;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| scope.spawn(move || send_messages_until(end, socket, number)))
            .collect();
        clients
            .into_iter()
            .try_fold(ClientStats::default(), |stats, client| {
                Ok(stats + client.join().expect("no panic")?)
            })
    })
}

/// Sends one message after the other as one client until `end`, and counts them. The client's `number` selects its
/// first message, so that the clients do not send the same one at a time. Connects again if the host closes the
/// connection in favour of another client's. Fails on every error but `busy`, or if a dump is incomplete.
fn send_messages_until(end: Instant, socket: &Path, number: usize) -> Result<ClientStats> {
    let mut client = connect(socket)?;
    let mut stats = ClientStats::default();
    for message in MESSAGES.iter().cycle().skip(number) {
        if Instant::now() >= end {
            break;
        }
        match send_message(&mut client, message, "") {
            Ok(reply) if reply["status"] == "ok" => {
                if *message == "dump" {
                    stats.dumps += 1;
                    stats.complete += count_complete_dumps(&reply)?;
                }
            }
            Ok(reply) => ensure!(reply["error"]["kind"] == "busy", "{message}: {reply}"),
            Err(error) if is_evicted(&error) => client = connect(socket)?,
            Err(error) => return Err(error.context(*message)),
        }
        stats.messages += 1;
        thread::sleep(MESSAGE_DELAY);
    }
    Ok(stats)
}

/// Counts the dumps of a reply that still exist; the host deletes old ones. Fails if one of them is incomplete, or if
/// the reply does not have one for each of the [`JEMALLOCS`].
fn count_complete_dumps(reply: &Value) -> Result<u64> {
    let dumps = reply["dumps"].as_array().context("dumps")?;
    ensure!(dumps.len() as u64 == JEMALLOCS, "{reply}");
    let mut complete = 0;
    for dump in dumps {
        let path = Path::new(dump["path"].as_str().context("path")?);
        match is_complete_dump(path) {
            Ok(is_complete) => ensure!(is_complete, "a bad file: {dump}"),
            Err(_) if !path.exists() => continue,
            Err(error) => return Err(error),
        }
        complete += 1;
    }
    Ok(complete)
}
