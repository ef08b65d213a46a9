//! Reply times of a host with many arenas, and the cost of a watch rule.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;
use serde_json::Value;
use testkit::LineReader;
use testkit::processes::threads;

use torture::programs::build_stress_host;
use xtask::dist::dist_dir;

use crate::limits::Measurements;

/// Number of arenas, and of threads, so that each arena is used.
const ARENAS: usize = 100;
const ROUNDS: usize = 200;

/// Messages that an operator repeats during an incident, and their figures in the table of limits.
const MESSAGES: &[(&[&str], &str)] = &[
    (
        &["status", "ledger"],
        "status + ledger with 100 arenas, 90 %",
    ),
    (&["stats"], "stats with 100 arenas, 90 %"),
];

/// Time that the host may take to start, to use its arenas, and to start its threads.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for which the watch thread is measured.
const WATCH_TIME: Duration = Duration::from_secs(10);

/// Records the time within which nine of ten rounds of each message are answered.
pub(crate) fn measure_response_times(measurements: &mut Measurements) -> Result<()> {
    let host = Host::start()?;
    measure_watch(&host)?;
    let mut client = Client::connect(&host.socket)?;
    let arenas = wait_for_arenas(&mut client)?;
    for (messages, figure) in MESSAGES {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for message in *messages {
                send_message(&mut client, message, "")?;
            }
            rounds.push(start.elapsed());
        }
        rounds.sort();
        measurements.record(
            figure,
            rounds[ROUNDS * 9 / 10].as_micros() as f64,
            format_args!(
                "median {}, {arenas} arenas in all",
                rounds[ROUNDS / 2].as_micros()
            ),
        )?;
    }
    Ok(())
}

/// Prints the processor time of the watch thread with a rule that never fires.
fn measure_watch(host: &Host) -> Result<()> {
    let task = host.wait_for_thread("memprof-watch")?;
    let read_schedstat = || -> Result<(u64, u64)> {
        let text = fs::read_to_string(task.join("schedstat"))?;
        // Nanoseconds on a processor, nanoseconds of waiting for one, and the number of times that the thread ran.
        let mut words = text.split_whitespace().map(str::parse::<u64>);
        let (time, runs) = (words.next(), words.nth(1));
        Ok((time.context("schedstat")??, runs.context("schedstat")??))
    };
    let before = read_schedstat()?;
    thread::sleep(WATCH_TIME);
    let after = read_schedstat()?;
    let (time, polls) = (after.0 - before.0, after.1 - before.1);
    println!(
        "watching RSS and the cgroup for {} s: {polls} looks, {} us of processor time each",
        WATCH_TIME.as_secs(),
        time / 1000 / polls.max(1)
    );
    Ok(())
}

/// Waits until every arena is in use, and returns their number. Fails after [`START_TIMEOUT`].
fn wait_for_arenas(client: &mut Client) -> Result<usize> {
    let start = Instant::now();
    loop {
        // Everything but the totals of each arena is left out (jemalloc(3), `malloc_stats_print`).
        let stats = send_message(client, "stats", "opts=gmdblxeh")?;
        let report = stats["allocators"][0]["report"].as_str();
        let report = report.context("stats without a report")?;
        let count = report.matches("\narenas[").count();
        if count >= ARENAS {
            return Ok(count);
        }
        ensure!(
            start.elapsed() < START_TIMEOUT,
            "only {count} arenas came into use"
        );
    }
}

/// Sends a message and returns its reply, which is JSON. Fails if the status of the reply is not 0.
fn send_message(client: &mut Client, message: &str, args: &str) -> Result<Value> {
    let reply = client.message("memory_profile", message, args, None)?;
    let status = reply.result.status_code;
    let body: Value = serde_json::from_slice(&reply.into_bytes()?)?;
    ensure!(status == 0, "{message}: {}", body["text"]);
    Ok(body)
}

/// A process of `stress_host` with [`ARENAS`] idle threads; dropping it kills it.
struct Host {
    child: Child,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Host {
    /// Starts a host with up to [`ARENAS`] arenas of jemalloc and a rule that never fires, and waits until it is ready.
    fn start() -> Result<Self> {
        build_stress_host()?;
        let directory = tempfile::tempdir()?;
        let (config, socket) = (
            directory.path().join("host.toml"),
            directory.path().join("sock"),
        );
        let text = format!(
            "[control]\nsocket = {socket:?}\n[[plugin]]\npath = {:?}\n[plugin.config]\n\
             dump_dir = {:?}\n[[plugin.config.watch]]\nrss_above = \"100%\"\n",
            dist_dir().join("plugins/memory_profile.so"),
            directory.path().join("dumps")
        );
        fs::write(&config, text)?;
        let conf = format!("prof:true,prof_active:false,narenas:{ARENAS}");
        let mut child = Command::new(dist_dir().join("torture/stress_host"))
            .arg(&config)
            .arg(directory.path().join("counters"))
            .arg(format!("idle={ARENAS}"))
            .envs([("LD_PRELOAD", "libjemalloc.so.2"), ("MALLOC_CONF", &conf)])
            .stderr(Stdio::piped())
            .spawn()
            .context("failed to start stress_host")?;
        let mut log = LineReader::new(child.stderr.take().context("stress_host has no stderr")?);
        // From here on, the process is killed on an error.
        let host = Self {
            child,
            socket,
            _directory: directory,
        };
        log.find_line(START_TIMEOUT, |line| (line == "ready").then_some(()))
            .context("stress_host is not ready")?;
        // The log must be read, or the host would block on a full pipe.
        thread::spawn(move || std::io::copy(&mut log.into_inner(), &mut std::io::sink()));
        Ok(host)
    }
}

impl Host {
    /// Waits for a thread with this name, and returns its directory /proc/PID/task/TID. Fails after
    /// [`START_TIMEOUT`].
    fn wait_for_thread(&self, name: &str) -> Result<PathBuf> {
        let start = Instant::now();
        loop {
            let mut threads = threads(self.child.id())?.into_iter();
            if let Some((task, _)) = threads.find(|(_, known)| known == name) {
                return Ok(task);
            }
            ensure!(start.elapsed() < START_TIMEOUT, "no thread {name}");
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait().map(drop)) {
            eprintln!("failed to kill stress_host: {error}");
        }
    }
}
