//! A spool and a store in a directory of their own, and what is asked of them.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// 2026-11-21T10:00:00Z
pub(crate) const START: i64 = 1_795_255_200_000;
pub(crate) const HOUR: i64 = 3_600_000;

pub(crate) struct Place {
    place: TempDir,
}

/// How a run of the program ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let of = |name: &str| place.path().join(name);
        // No rule: the hosts of this machine are left alone.
        let config = format!(
            "store = \"file://{}\"\nspool = {:?}\nservice = []\n",
            of("store").display(),
            of("spool")
        );
        std::fs::write(of("fleet.toml"), config).unwrap();
        std::fs::create_dir_all(of("spool/dumps")).unwrap();
        Self { place }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// A command of the program, with this place's configuration.
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

    pub(crate) fn run(&self, args: &[&str]) -> Run {
        Run::of(self.command(args).output().unwrap())
    }

    /// Puts a dump into the spool: what each function holds.
    pub(crate) fn spool(&self, process: Process, time: i64, held: &[(&str, i64)]) {
        let stack = |function| vec![("main", "cart"), (function, "cart")];
        let held: Vec<_> = held
            .iter()
            .map(|(of, bytes)| (stack(*of), *bytes))
            .collect();
        self.spool_stacks(process, time, &held);
    }

    /// Puts a dump into the spool: what each stack holds.
    pub(crate) fn spool_stacks(&self, process: Process, time: i64, held: &[(Stack<'_>, i64)]) {
        let name = format!("{time:015}.{}.{}.json", process.host, process.pid);
        let dumped = dumped(process, time, held).to_string();
        std::fs::write(self.path("spool/dumps").join(name), dumped).unwrap();
    }

    /// Whether nothing waits in the spool.
    pub(crate) fn is_drained(&self) -> bool {
        let parts = ["dumps", "batch", "outbox"].map(|part| self.path("spool").join(part));
        let mut entries = parts.iter().flat_map(std::fs::read_dir).flatten();
        entries.next().is_none()
    }

    /// Moves the spool to the store. There is no host to take a profile of.
    pub(crate) fn drain(&self) -> Run {
        self.run(&["agent", "--once"]).exits(5)
    }

    /// What a question about the day says of all bytes, as JSON.
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

    /// The profiles that growth sees, of the process that has them.
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

    /// The names of the store's files below a directory.
    pub(crate) fn files(&self, directory: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut left = vec![self.path("store").join(directory)];
        while let Some(directory) = left.pop() {
            for entry in std::fs::read_dir(directory).into_iter().flatten() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => left.push(path),
                    false => found.push(path),
                }
            }
        }
        found.sort();
        found
    }
}

/// Of which process a dump is.
#[derive(Clone, Copy)]
pub(crate) struct Process {
    pub(crate) host: &'static str,
    pub(crate) service: &'static str,
    pub(crate) pid: u32,
    pub(crate) build: &'static str,
}

pub(crate) const CART: Process = Process {
    host: "node",
    service: "cart",
    pid: 7,
    build: "91cc00",
};

/// Functions and their modules, root first.
type Stack<'s> = Vec<(&'s str, &'s str)>;

/// The form of a file in the spool. The ids of stacks are the hash of their names only for the agent.
fn dumped(process: Process, time: i64, held: &[(Stack<'_>, i64)]) -> Value {
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
