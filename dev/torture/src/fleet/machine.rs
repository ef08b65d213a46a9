//! A machine of the suite `machines`: an agent with a host name, a pid namespace, a directory `/run` and a wall clock
//! of its own, and a process that it profiles.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::json;
use xtask::dist::dist_dir;

use super::fixture::{FleetFixture, dump_json};
use super::process::AgentProcess;

/// Time between two profiles of the process, in seconds.
pub(super) const PERIOD_SECONDS: u64 = 30;

/// Script of the namespaces' first process: sets the host name `$1`, hides the sockets of other hosts on this machine,
/// which each agent would profile too, starts the program `$2` under `memprof run` unless it is empty, and becomes the
/// agent.
const START: &str = "hostname \"$1\" && mount -t tmpfs none /run || exit; [ -z \"$2\" ] || \"$3\" run --active -- \"$2\" & shift 3; exec \"$@\"";

/// Options of a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct MachineOptions {
    /// Host name, which another machine may have too.
    pub(super) name: u64,
    /// Whether a process runs there.
    pub(super) has_process: bool,
    /// Whether its clock can be set.
    pub(super) has_clock: bool,
}

/// A machine whose agent runs until this value is dropped.
pub(super) struct Machine {
    pub(super) options: MachineOptions,
    fixture: FleetFixture,
    agent: AgentProcess,
    /// Process keys of the profiles that [`add_profile`](Self::add_profile) added to the spool.
    pub(super) added: BTreeSet<String>,
    pub(super) number: u64,
}

impl Machine {
    /// Starts the agent, with its own pid namespace and host name, and a process that it profiles if the options say
    /// so. `number` distinguishes the machine's profiles from those of others. `store` is the URL of the agent's store,
    /// and `environment` has the credentials. `nats` is the URL of the NATS server, and `batch` the time for which the
    /// agent collects profiles before it writes them.
    pub(super) fn start(
        number: u64,
        options: MachineOptions,
        store: &str,
        environment: &[(&'static str, String)],
        (nats, batch): (&str, Duration),
    ) -> Result<Self> {
        let rules = format!(
            "batch = \"{}s\"\n[[service]]\nname = \"*\"\nperiod = \"{PERIOD_SECONDS}s\"\npause = 0",
            batch.as_secs()
        );
        let fixture = FleetFixture::create(store, environment, &rules)?;
        let agent = fixture.fleet_command(&["agent", "--nats", nats]);
        let program = options.has_process.then(|| dist_dir().join("torture/idle"));
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--uts", "--kill-child"]);
        command.args(["nice", "sh", "-c", START, "sh", &machine_name(options.name)]);
        command.arg(program.unwrap_or_default());
        command.arg(dist_dir().join("bin/memprof"));
        command.arg(agent.get_program()).args(agent.get_args());
        for (name, value) in agent.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command.env("MEMPROF_DUMP_DIR", fixture.path("kept"));
        if options.has_clock {
            fs::write(fixture.path("clock"), "+0")?;
            command.envs(clock_environment(&fixture.path("clock"))?);
        }
        let log = File::create(fixture.path("log"))?;
        let agent = AgentProcess::start_with_stderr(command.stdout(log.try_clone()?).stderr(log))?;
        Ok(Self {
            options,
            fixture,
            agent,
            added: BTreeSet::new(),
            number,
        })
    }

    /// Adds a profile to the spool, with the current time and the key of a process that has no other profile.
    pub(super) fn add_profile(&mut self) -> Result<()> {
        let id = self.number * 1_000_000 + self.added.len() as u64;
        let mut dumped = dump_json(id);
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
        let host = machine_name(self.options.name);
        let instance = format!("{host}/{id}.1.{:08x}", self.number);
        let context = &mut dumped["context"];
        context["time"] = json!(now);
        context["start_time"] = json!(now);
        context["host"] = json!(host);
        context["service"] = json!("added");
        context["instance"] = json!(instance);
        self.fixture.add_dump_json(id, &dumped)?;
        self.added.insert(instance);
        Ok(())
    }

    /// Sets the wall clock ahead of the real one, by an offset as libfaketime reads it: `+3h`, `-5m`.
    pub(super) fn set_clock(&self, offset: &str) -> Result<()> {
        // libfaketime reads the file at each call, so a rename replaces it at once.
        let fresh = self.fixture.path("clock.new");
        fs::write(&fresh, offset)?;
        fs::rename(fresh, self.fixture.path("clock")).context("the clock")
    }

    /// Kills the agent with SIGKILL, and waits for its end.
    pub(super) fn kill_agent(&mut self) -> Result<()> {
        self.agent.kill()
    }

    /// Whether the spool of this machine is empty.
    pub(super) fn is_drained(&self) -> bool {
        self.fixture.is_drained()
    }

    /// Lines that the agent has written to its standard output and error so far.
    pub(super) fn read_log_lines(&self) -> Result<Vec<String>> {
        let log = fs::read_to_string(self.fixture.path("log"))?;
        Ok(log.lines().map(str::to_owned).collect())
    }
}

/// Returns the host name of the machine with this number, such as `machine-7`.
pub(super) fn machine_name(number: u64) -> String {
    format!("machine-{number}")
}

/// Environment variables by which libfaketime takes the wall clock from a file, and leaves all other clocks alone.
/// Fails if libfaketime is not installed.
pub(super) fn clock_environment(file: &std::path::Path) -> Result<[(&'static str, PathBuf); 4]> {
    let directories = fs::read_dir("/usr/lib")?.flatten();
    let libraries = directories.map(|entry| entry.path().join("faketime/libfaketime.so.1"));
    let mut libraries = libraries.filter(|path| path.exists());
    let library = libraries.next().context("libfaketime is not installed")?;
    Ok([
        ("LD_PRELOAD", library),
        ("FAKETIME_TIMESTAMP_FILE", file.to_owned()),
        ("FAKETIME_NO_CACHE", "1".into()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
    ])
}
