//! How long a host with many arenas takes to answer an operator, and what watching it costs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use memprof_host::client::Client;
use serde_json::Value;

use torture::programs::build_stress_host;
use xtask::dist::dist;

use crate::limits::Measurements;

/// As many threads as arenas, so that each arena is in use.
const ARENAS: usize = 100;
const ROUNDS: usize = 200;

/// Commands that an operator repeats while an incident lasts, and the figure that each has in the table.
const QUESTIONS: &[(&[&str], &str)] = &[
    (
        &["status", "ledger"],
        "status + ledger with 100 arenas, 90 %",
    ),
    (&["stats"], "stats with 100 arenas, 90 %"),
];

/// Watched for so long.
const WATCHED: Duration = Duration::from_secs(10);

/// Measures.
pub(crate) fn measure(figures: &mut Measurements) -> Result<()> {
    let host = Host::start()?;
    watching(&host)?;
    let mut client = Client::connect(&host.socket)?;
    let arenas = arenas(&mut client)?;
    for (questions, figure) in QUESTIONS {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            for question in *questions {
                ask(&mut client, question, "")?;
            }
            rounds.push(begun.elapsed());
        }
        rounds.sort();
        figures.record(
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

/// The processor time of the thread that watches, while its rule never fires.
fn watching(host: &Host) -> Result<()> {
    let task = host.task("memprof-watch")?;
    let nanoseconds = || -> Result<(u64, u64)> {
        let text = fs::read_to_string(task.join("schedstat"))?;
        let mut words = text.split_whitespace().map(str::parse::<u64>);
        let (time, runs) = (words.next(), words.nth(1));
        Ok((time.context("schedstat")??, runs.context("schedstat")??))
    };
    let before = nanoseconds()?;
    thread::sleep(WATCHED);
    let after = nanoseconds()?;
    let (time, looks) = (after.0 - before.0, after.1 - before.1);
    println!(
        "watching RSS and the cgroup for {} s: {looks} looks, {} us of processor time each",
        WATCHED.as_secs(),
        time / 1000 / looks.max(1)
    );
    Ok(())
}

/// Waits until every arena is in use, and counts them.
fn arenas(client: &mut Client) -> Result<usize> {
    let begun = Instant::now();
    loop {
        let stats = ask(client, "stats", "opts=gmdblxeh")?;
        let report = stats["allocators"][0]["report"].as_str();
        let report = report.context("stats without a report")?;
        let count = report.matches("\narenas[").count();
        if count >= ARENAS {
            return Ok(count);
        }
        ensure!(
            begun.elapsed() < Duration::from_secs(30),
            "only {count} arenas came into use"
        );
    }
}

fn ask(client: &mut Client, question: &str, args: &str) -> Result<Value> {
    let reply = client.message("memory_profile", question, args, None)?;
    let status = reply.result.status_code;
    let body: Value = serde_json::from_slice(&reply.into_bytes()?)?;
    ensure!(status == 0, "{question}: {}", body["text"]);
    Ok(body)
}

/// A `stress_host` with as many idle threads, ended when dropped.
struct Host {
    child: Child,
    socket: PathBuf,
    _place: tempfile::TempDir,
}

impl Host {
    fn start() -> Result<Self> {
        build_stress_host()?;
        let place = tempfile::tempdir()?;
        let (config, socket) = (place.path().join("host.toml"), place.path().join("sock"));
        let text = format!(
            "[control]\nsocket = {socket:?}\n[[plugin]]\npath = {:?}\n[plugin.config]\n\
             dump_dir = {:?}\n[[plugin.config.watch]]\nrss_above = \"100%\"\n",
            dist().join("plugins/memory_profile.so"),
            place.path().join("dumps")
        );
        fs::write(&config, text)?;
        let conf = format!("prof:true,prof_active:false,narenas:{ARENAS}");
        let mut child = Command::new(dist().join("torture/stress_host"))
            .arg(&config)
            .arg(place.path().join("counters"))
            .arg(format!("idle={ARENAS}"))
            .envs([("LD_PRELOAD", "libjemalloc.so.2"), ("MALLOC_CONF", &conf)])
            .stderr(Stdio::piped())
            .spawn()
            .context("failed to start stress_host")?;
        let mut log = BufReader::new(child.stderr.take().context("stress_host has no stderr")?);
        let mut line = String::new();
        while line != "ready\n" {
            line.clear();
            if log.read_line(&mut line)? == 0 {
                bail!("stress_host ended");
            }
        }
        // The log goes on; nobody reads it, but its pipe must not fill up.
        thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Ok(Self {
            child,
            socket,
            _place: place,
        })
    }
}

impl Host {
    /// The thread of that name, once it has taken it.
    fn task(&self, name: &str) -> Result<PathBuf> {
        let begun = Instant::now();
        loop {
            for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
                let task = task?.path();
                if fs::read_to_string(task.join("comm"))?.trim() == name {
                    return Ok(task);
                }
            }
            ensure!(
                begun.elapsed() < Duration::from_secs(30),
                "no thread {name}"
            );
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait().map(drop)) {
            eprintln!("failed to end stress_host: {error}");
        }
    }
}
