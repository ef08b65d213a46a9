//! Many threads send every message at once, while the host allocates and forks, with two
//! jemallocs in it.

use std::ops::Add;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::SuiteLength;
use super::dump_dir::{is_whole, survey};
use super::host::{HostSetup, connect, is_pushed_out, send};

/// Half of the 64 threads come over the control socket, half are in the host.
const CLIENTS: usize = 32;
const JEMALLOCS: u64 = 2;
/// Enough for the dumper to get a share of two cores.
const BETWEEN_MESSAGES: Duration = Duration::from_millis(20);
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
/// One is enough on a machine of its own. A dump that takes longer is none that failed.
const MOST_ROUNDS: u32 = 20;

pub(super) fn run(form: SuiteLength) -> Result<String> {
    let time = form.pick(Duration::from_secs(3), Duration::from_secs(20));
    let mut host = HostSetup {
        program: "stress_host_static",
        ..HostSetup::with(OPTIONS)
    }
    .start()?;
    let socket = host.place().socket();
    let least = form.pick(100, 1000);
    let mut sent = ClientStats::default();
    for _ in 0..MOST_ROUNDS {
        sent = sent + send_messages(time, &socket).with_context(|| host.log())?;
        if JEMALLOCS * (sent.dumps + host.counters()?.dumps) >= least {
            break;
        }
    }
    host.check_alive()?;
    let ended = host.terminate().context("deadlock")?;
    ensure!(ended.success(), "the host ended with {ended}");

    let counters = host.counters()?;
    let found = survey(&host.place().dumps())?;
    ensure!(found.bad.is_empty(), "bad files: {:?}", found.bad);
    ensure!(
        counters.failures == 0,
        "{} failures in the host",
        counters.failures
    );
    ensure!(counters.forks > 0, "no fork");
    let dumps = JEMALLOCS * (sent.dumps + counters.dumps);
    ensure!(dumps >= least, "{dumps} dumps, fewer than {least}");
    Ok(format!(
        "{dumps} dumps of {JEMALLOCS} jemallocs ({} looked at), {} messages, {} forks, \
         {} allocations: 0 bad files, 0 deadlocks, 0 failures",
        sent.whole + found.whole as u64,
        sent.messages + counters.messages,
        counters.forks,
        counters.allocations
    ))
}

/// What a client did.
#[derive(Debug, Default)]
struct ClientStats {
    messages: u64,
    dumps: u64,
    /// Dumps that it found whole before retention took them.
    whole: u64,
}

impl Add for ClientStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            messages: self.messages + other.messages,
            dumps: self.dumps + other.dumps,
            whole: self.whole + other.whole,
        }
    }
}

/// Sends from all clients at once for `time`.
fn send_messages(time: Duration, socket: &Path) -> Result<ClientStats> {
    let until = Instant::now() + time;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| scope.spawn(move || send_until(until, socket, number)))
            .collect();
        clients
            .into_iter()
            .try_fold(ClientStats::default(), |sent, client| {
                Ok(sent + client.join().expect("no panic")?)
            })
    })
}

/// Sends one message after the other; only `busy` may refuse.
fn send_until(until: Instant, socket: &Path, number: usize) -> Result<ClientStats> {
    let mut client = connect(socket)?;
    let mut sent = ClientStats::default();
    for message in MESSAGES.iter().cycle().skip(number) {
        if Instant::now() >= until {
            break;
        }
        match send(&mut client, message, "") {
            Ok(reply) if reply["status"] == "ok" => {
                if *message == "dump" {
                    sent.dumps += 1;
                    sent.whole += look_at(&reply)?;
                }
            }
            Ok(reply) => ensure!(reply["error"]["kind"] == "busy", "{message}: {reply}"),
            Err(error) if is_pushed_out(&error) => client = connect(socket)?,
            Err(error) => return Err(error.context(*message)),
        }
        sent.messages += 1;
        thread::sleep(BETWEEN_MESSAGES);
    }
    Ok(sent)
}

/// How many of a reply's dumps are still there; each of them must be whole.
fn look_at(reply: &Value) -> Result<u64> {
    let dumps = reply["dumps"].as_array().context("dumps")?;
    ensure!(dumps.len() as u64 == JEMALLOCS, "{reply}");
    let mut whole = 0;
    for dump in dumps {
        let path = Path::new(dump["path"].as_str().context("path")?);
        match is_whole(path) {
            Ok(is_whole) => ensure!(is_whole, "a bad file: {dump}"),
            Err(_) if !path.exists() => continue,
            Err(error) => return Err(error),
        }
        whole += 1;
    }
    Ok(whole)
}
