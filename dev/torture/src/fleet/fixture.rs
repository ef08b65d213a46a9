//! An agent's configuration, and its spool with a store.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::s3::BUCKET;
use xtask::dist::dist_dir;

use super::process::{AgentProcess, wait_until};

/// Time of the first dump, 2026-11-21T10:00:00Z, in milliseconds since 1970.
const FIRST_DUMP_TIME: u64 = 1_795_255_200_000;
const MILLIS_PER_MINUTE: u64 = 60_000;

/// Returns a profile as the agent keeps it in its spool (the directory of profiles that wait for the store): two stacks
/// with 1000 + `number` bytes and 7 bytes in use, taken `number` minutes after `FIRST_DUMP_TIME`.
pub(crate) fn dump_json(number: u64) -> Value {
    let (time, bytes) = (FIRST_DUMP_TIME + number * MILLIS_PER_MINUTE, 1000 + number);
    let sample = |id: u64, bytes: u64| json!({ "stack_id": id, "inuse_bytes": bytes, "inuse_objects": 1, "alloc": null });
    let stack = |id: u64| {
        let frame = json!({ "function": format!("f{id}"), "module": "cart" });
        json!({ "stack_id": id, "function": format!("f{id}"), "frames": [frame] })
    };
    json!({
        "context": {
            "time": time, "start_time": FIRST_DUMP_TIME, "service": "cart", "instance": format!("node/{number}.1"),
            "host": "node", "pid": number, "build_id": "91cc00", "trigger": "agent", "labels": {},
            "sample_interval": 524_288, "rss_bytes": 1 << 20, "clock_offset_ms": null,
        },
        "samples": [sample(1, bytes), sample(2, 7)],
        "stacks": [stack(1), stack(2)],
    })
}

/// Directory with an agent's configuration and spool.
pub(super) struct FleetFixture {
    dir: TempDir,
    /// Environment variables with the store's address and credentials.
    environment: Vec<(&'static str, String)>,
}

impl FleetFixture {
    /// Writes a configuration for a store in [`BUCKET`], whose address and credentials are in `environment`. Its agent
    /// profiles no process itself, and stores what is in its spool without a wait for more.
    pub(super) fn with_s3_store(environment: [(&'static str, String); 5]) -> Result<Self> {
        Self::create(
            &format!("s3://{BUCKET}/prod"),
            &environment,
            "batch = \"0s\"\nservice = []",
        )
    }

    /// Writes a configuration for the store with the URL `store`, and creates the spool. `environment` is that of each
    /// command, and `rules` are the other keys of the configuration.
    pub(super) fn create(
        store: &str,
        environment: &[(&'static str, String)],
        rules: &str,
    ) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let config = format!(
            "store = {store:?}\nspool = {:?}\n{rules}\n",
            dir.path().join("spool")
        );
        fs::write(dir.path().join("fleet.toml"), config)?;
        fs::create_dir_all(dir.path().join("spool/dumps"))?;
        Ok(Self {
            dir,
            environment: environment.to_vec(),
        })
    }

    /// Path of a file of this name in the fixture's directory, which also has the configuration.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns a command that executes `memprof-fleet` with the configuration, and with these arguments.
    pub(super) fn fleet_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(dist_dir().join("bin/memprof-fleet"));
        command
            .args(args)
            .arg("--config")
            .arg(self.path("fleet.toml"));
        command.envs(self.environment.clone());
        command.env("MEMPROF_SOCKET_DIR", self.path("run"));
        command
    }

    /// Runs `memprof-fleet` with the configuration, and returns its standard output. Fails, with its notes, unless it
    /// succeeds.
    pub(super) fn run_fleet(&self, args: &[&str]) -> Result<String> {
        let output = self.fleet_command(args).output()?;
        let notes = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{args:?}: {}\n{notes}",
            output.status
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Starts an agent that replies over the NATS server with this URL. What it writes to its standard error is
    /// dropped.
    pub(super) fn start_agent(&self, nats: &str) -> Result<AgentProcess> {
        AgentProcess::start_without_stderr(&mut self.fleet_command(&["agent", "--nats", nats]))
    }

    /// Adds the dump of [`dump_json`] to the spool, as an agent does. Returns the bytes in use of all its samples.
    pub(super) fn add_dump(&self, number: u64) -> Result<u64> {
        self.add_dump_json(number, &dump_json(number))?;
        // The sizes of the two samples in `dump_json`.
        Ok(1000 + number + 7)
    }

    /// Adds a profile in the form of [`dump_json`] to the spool. `number` determines the time in the file's name, by
    /// which agents sort.
    pub(super) fn add_dump_json(&self, number: u64, dump: &Value) -> Result<()> {
        let time = FIRST_DUMP_TIME + number * MILLIS_PER_MINUTE;
        let fresh = self.path("fresh.json");
        fs::write(&fresh, dump.to_string())?;
        let name = format!("spool/dumps/{time:015}.{number}.json");
        loop {
            // An agent may have just renamed the directory, and creates it again at its next start.
            fs::create_dir_all(self.path("spool/dumps"))?;
            match fs::rename(&fresh, self.path(&name)) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                renamed => return renamed.context("the dump"),
            }
        }
    }

    /// Waits until the spool is empty. Fails after the timeout of [`wait_until`].
    pub(super) fn wait_until_drained(&self) -> Result<()> {
        wait_until("the spool is not drained", || self.is_drained())
    }

    /// Whether no profile waits in the spool, neither for a batch nor for the store. A missing directory is empty.
    pub(super) fn is_drained(&self) -> bool {
        let parts = ["dumps", "batch", "outbox"].map(|part| self.path("spool").join(part));
        let mut waiting = parts.iter().flat_map(fs::read_dir).flatten();
        waiting.next().is_none()
    }

    /// Fails unless the profiles of the store have as many bytes in use as all dumps together, so that none is missing
    /// or doubled. `dumped` are the bytes of each dump.
    pub(super) fn check_total(&self, dumped: &[u64]) -> Result<()> {
        let day = ["--at", "2026-11-21T23:00:00Z", "--for", "24h"];
        let flame = ["fleet", "flame", "--format", "collapsed"];
        let lines = self.run_fleet(&[&flame[..], &day].concat())?;
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
