//! What an agent has: a spool into which dumps come, and a store that takes them.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::s3::BUCKET;
use xtask::dist::dist;

/// 2026-11-21T10:00:00Z, in milliseconds.
const START: u64 = 1_795_255_200_000;
const MINUTE: u64 = 60_000;
/// How long an agent may take to answer again, or to drain.
const PATIENCE: Duration = Duration::from_secs(90);

/// A dump as an agent keeps it, of 1007 bytes and `number`.
pub(crate) fn dumped(number: u64) -> Value {
    let (time, bytes) = (START + number * MINUTE, 1000 + number);
    let sample = |id: u64, bytes: u64| json!({ "stack_id": id, "inuse_bytes": bytes, "inuse_objects": 1, "alloc": null });
    let stack = |id: u64| {
        let frame = json!({ "function": format!("f{id}"), "module": "cart" });
        json!({ "stack_id": id, "function": format!("f{id}"), "frames": [frame] })
    };
    json!({
        "context": {
            "time": time, "start_time": START, "service": "cart", "instance": format!("node/{number}.1"),
            "host": "node", "pid": number, "build_id": "91cc00", "trigger": "agent", "labels": {},
            "sample_interval": 524_288, "rss_bytes": 1 << 20, "clock_offset_ms": null,
        },
        "samples": [sample(1, bytes), sample(2, 7)],
        "stacks": [stack(1), stack(2)],
    })
}

/// A spool, and a store on S3.
pub(super) struct FleetFixture {
    place: TempDir,
    /// How the store is reached.
    environment: [(&'static str, String); 5],
}

impl FleetFixture {
    pub(super) fn new(environment: [(&'static str, String); 5]) -> Result<Self> {
        let place = tempfile::tempdir()?;
        let config = format!(
            "store = \"s3://{BUCKET}/prod\"\nspool = {:?}\nbatch = \"0s\"\nservice = []\n",
            place.path().join("spool")
        );
        fs::write(place.path().join("fleet.toml"), config)?;
        fs::create_dir_all(place.path().join("spool/dumps"))?;
        Ok(Self { place, environment })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(dist().join("bin/memprof-fleet"));
        command
            .args(args)
            .arg("--config")
            .arg(self.path("fleet.toml"));
        command.envs(self.environment.clone());
        command.env("MEMPROF_SOCKET_DIR", self.path("run"));
        command
    }

    pub(super) fn run(&self, args: &[&str]) -> Result<String> {
        let output = self.command(args).output()?;
        let notes = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{args:?}: {}\n{notes}",
            output.status
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// An agent that is asked over NATS.
    pub(super) fn agent(&self, nats: &str) -> Result<AgentProcess> {
        AgentProcess::start(&mut self.command(&["agent", "--nats", nats]))
    }

    /// Puts a dump into the spool as an agent does. Returns its bytes.
    pub(super) fn dump(&self, number: u64) -> Result<u64> {
        let (time, bytes) = (START + number * MINUTE, 1000 + number);
        let dumped = dumped(number);
        let fresh = self.path("spool/dumps/.fresh");
        fs::write(&fresh, dumped.to_string())?;
        let name = format!("spool/dumps/{time:015}.{number}.json");
        // A killed agent may have just taken the directory away, and makes it anew.
        fs::create_dir_all(self.path("spool/dumps"))?;
        fs::rename(&fresh, self.path(&name)).context("the dump")?;
        Ok(bytes + 7)
    }

    /// Waits until nothing is in the spool.
    pub(super) fn drained(&self) -> Result<()> {
        until("the spool is not drained", || {
            let mut waiting = 0;
            for part in ["dumps", "batch", "outbox"] {
                waiting += fs::read_dir(self.path("spool").join(part)).map_or(0, Iterator::count);
            }
            waiting == 0
        })
    }

    /// Checks that the store holds each dump once.
    pub(super) fn total(&self, dumped: &[u64]) -> Result<()> {
        let day = ["--at", "2026-11-21T23:00:00Z", "--for", "24h"];
        let flame = ["fleet", "flame", "--format", "collapsed"];
        let lines = self.run(&[&flame[..], &day].concat())?;
        let values = lines
            .lines()
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        let (found, expected) = (values.sum::<u64>(), dumped.iter().sum::<u64>());
        ensure!(
            found == expected,
            "the store has {found} bytes of {expected} that were dumped"
        );
        Ok(())
    }
}

pub(super) fn until(otherwise: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !is_so() {
        ensure!(begun.elapsed() < PATIENCE, "{otherwise} after {PATIENCE:?}");
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A process, killed when dropped.
pub(super) struct AgentProcess(Child);

impl AgentProcess {
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let started = command.stderr(Stdio::null()).spawn();
        let name = || command.get_program().display().to_string();
        Ok(Self(started.with_context(name)?))
    }

    pub(super) fn end(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("fleet: {error}");
        }
    }
}
