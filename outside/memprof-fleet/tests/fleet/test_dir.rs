//! Directory with a spool and a store, and commands on them.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;
pub(crate) use testkit::Run;

/// Time of the first profile: 2026-11-21T10:00:00Z.
pub(crate) const START: i64 = 1_795_255_200_000;
/// Milliseconds of an hour.
pub(crate) const HOUR: i64 = 3_600_000;

/// Directory of a test, removed on drop.
pub(crate) struct TestDir {
    directory: TempDir,
}

impl TestDir {
    /// Creates the directory with an empty spool, and a configuration of spool and store. No rule in it names a
    /// service, so that hosts of this machine are left alone.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        // The policy has no rule, so the hosts of this machine are left alone.
        let config = format!(
            "store = \"file://{}\"\nspool = {:?}\nservice = []\n",
            path("store").display(),
            path("spool")
        );
        std::fs::write(path("fleet.toml"), config).unwrap();
        std::fs::create_dir_all(path("spool/dumps")).unwrap();
        Self { directory }
    }

    /// Path in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Builds a command of the program, with the configuration and socket directory of this directory.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memprof-fleet"));
        command
            .args(args)
            .arg("--config")
            .arg(self.path("fleet.toml"));
        command
            .env_remove("MEMPROF_STORE")
            .env("MEMPROF_SOCKET_DIR", self.path("run"));
        command
    }

    /// Runs a command of the program.
    pub(crate) fn run(&self, args: &[&str]) -> Run {
        Run::from_command(&mut self.command(args))
    }

    /// Writes a profile into the spool, with the bytes that each function holds.
    pub(crate) fn spool(&self, process: Process, time: i64, held: &[(&str, i64)]) {
        let stack = |function| vec![("main", "cart"), (function, "cart")];
        let held: Vec<_> = held
            .iter()
            .map(|(function, bytes)| (stack(*function), *bytes))
            .collect();
        self.spool_stacks(process, time, &held);
    }

    /// Writes a profile into the spool, with the bytes that each stack holds.
    pub(crate) fn spool_stacks(&self, process: Process, time: i64, held: &[(Stack<'_>, i64)]) {
        let name = format!("{time:015}.{}.{}.json", process.host, process.pid);
        let profile = spooled_profile(process, time, held).to_string();
        std::fs::write(self.path("spool/dumps").join(name), profile).unwrap();
    }

    /// Whether the spool is empty.
    pub(crate) fn is_drained(&self) -> bool {
        let parts = ["dumps", "batch", "outbox"].map(|part| self.path("spool").join(part));
        let mut entries = parts.iter().flat_map(std::fs::read_dir).flatten();
        entries.next().is_none()
    }

    /// Moves the spool to the store. Exits with 5, because there is no host to profile.
    pub(crate) fn drain(&self) -> Run {
        self.run(&["agent", "--once"]).exits(5)
    }

    /// Sum of all bytes that a query of the day returns.
    pub(crate) fn total(&self) -> i64 {
        let args = [
            "fleet",
            "flame",
            "--format",
            "collapsed",
            "--at",
            "2026-11-21T23:00:00Z",
            "--for",
            "24h",
        ];
        let run = self.run(&args).exits(0);
        let values = run
            .stdout
            .lines()
            .map(|line| line.rsplit(' ').next().unwrap());
        values.map(|value| value.parse::<i64>().unwrap()).sum()
    }

    /// Result of `fleet growth` for the day.
    pub(crate) fn growth(&self) -> Value {
        let args = [
            "fleet",
            "growth",
            "--json",
            "--at",
            "2026-11-21T23:00:00Z",
            "--for",
            "24h",
        ];
        self.run(&args).exits(0).json()
    }

    /// Paths of the store's files below a folder, sorted.
    pub(crate) fn files(&self, directory: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.path("store").join(directory)];
        while let Some(directory) = folders.pop() {
            for entry in std::fs::read_dir(directory).into_iter().flatten() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => found.push(path),
                }
            }
        }
        found.sort();
        found
    }
}

/// Process of a profile.
#[derive(Clone, Copy)]
pub(crate) struct Process {
    pub(crate) host: &'static str,
    pub(crate) service: &'static str,
    pub(crate) pid: u32,
    pub(crate) build: &'static str,
}

/// Process of most profiles.
pub(crate) const CART: Process = Process {
    host: "node",
    service: "cart",
    pid: 7,
    build: "91cc00",
};

/// Functions and their modules, root first.
type Stack<'s> = Vec<(&'s str, &'s str)>;

/// Profile in the form of a file in the spool. Its stack ids differ from an agent's, which are hashes of
/// other bytes.
fn spooled_profile(process: Process, time: i64, held: &[(Stack<'_>, i64)]) -> Value {
    let id = |stack: &Stack<'_>| {
        let texts = stack
            .iter()
            .flat_map(|(function, module)| [function, module]);
        let bytes = texts.flat_map(|text| text.bytes().chain([0]));
        bytes.fold(7i64, |id, byte| {
            id.wrapping_mul(31).wrapping_add(i64::from(byte))
        })
    };
    let samples = held.iter().map(|(stack, bytes)| {
        json!({ "stack_id": id(stack), "inuse_bytes": bytes, "inuse_objects": 1, "alloc": null })
    });
    let stacks = held.iter().map(|(stack, _)| {
        let frames = stack.iter();
        let frames: Vec<_> = frames
            .map(|(function, module)| json!({ "function": function, "module": module }))
            .collect();
        let function = stack.last().map_or("", |(function, _)| *function);
        json!({ "stack_id": id(stack), "function": function, "frames": frames })
    });
    json!({
        "context": {
            "time": time,
            "start_time": START,
            "service": process.service,
            "instance": format!("{}/{}.1", process.host, process.pid),
            "host": process.host,
            "pid": process.pid,
            "build_id": process.build,
            "trigger": "agent",
            "labels": { "zone": "a" },
            "sample_interval": 524_288,
            "rss_bytes": 1 << 20,
            "clock_offset_ms": null,
        },
        "samples": samples.collect::<Vec<_>>(),
        "stacks": stacks.collect::<Vec<_>>(),
    })
}
