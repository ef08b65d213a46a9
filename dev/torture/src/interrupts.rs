//! `memprof record`, `leaks --prove` and `holders`, ended by signals at any moment: the process that they work on is left
//! as it was found.

use std::fmt;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use super::SuiteLength;
use super::leaks::PlantedProgram;
use xtask::dist::dist;

const COMMANDS: [Interrupted; 3] = [
    Interrupted {
        words: &["record", "--for", "300ms", "--pid"],
        is_attached: true,
        // The process allocates too little for a sample.
        whole: NO_DATA,
    },
    Interrupted {
        words: &["leaks", "--prove", "--max-pause", "10s"],
        is_attached: false,
        whole: 0,
    },
    Interrupted {
        words: &["holders", "--max-pause", "10s"],
        is_attached: false,
        whole: 0,
    },
];
const SIGNALS: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGKILL,
];
/// `memprof record` where nothing was sampled.
const NO_DATA: i32 = 5;
/// Until a process is as it was.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(5);
/// A recording that is killed while it samples.
const LONG_RECORDING: Interrupted = Interrupted {
    words: &["record", "--for", "10s", "--pid"],
    is_attached: true,
    whole: NO_DATA,
};
/// Longer than the lease of that recording: its time and two minutes.
const LEASE_TIMEOUT: Duration = Duration::from_secs(140);
const LEASE_POLL_INTERVAL: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A command that is ended early.
struct Interrupted {
    /// The process's pid follows.
    words: &'static [&'static str],
    /// Whether it puts the plugin into the process.
    is_attached: bool,
    /// Its exit code when it is not ended early.
    whole: i32,
}

/// What the interrupts came to.
#[derive(Debug, Default)]
struct Tally {
    interrupts: u32,
    /// Those that came when the command had ended.
    late: u32,
    /// From the end of memprof until the process is as it was; after SIGKILL to a recording, by `memprof detach`.
    slowest: Duration,
}

pub(super) fn run(form: SuiteLength) -> Result<String> {
    let times = form.pick(12, 200);
    let mut tally = Tally::default();
    for command in &COMMANDS {
        command
            .interrupt_often(times, &mut tally)
            .with_context(|| command.to_string())?;
    }
    let lease = match form {
        SuiteLength::Short => "not waited for".to_owned(),
        SuiteLength::Long => format!("over after {:.0} s", wait_for_lease()?.as_secs_f64()),
    };
    let [record, leaks, holders] = COMMANDS.map(|command| command.words[0]);
    Ok(format!(
        "{} interrupts of {record}, {leaks} and {holders} by {} signals, {} of them after its end: 0 zombies, 0 attached, \
         0 files left, as before after {} ms at most; the lease of a killed recording: {lease}",
        tally.interrupts,
        SIGNALS.len(),
        tally.late,
        tally.slowest.as_millis()
    ))
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words[0])
    }
}

impl Interrupted {
    fn interrupt_often(&self, times: u32, tally: &mut Tally) -> Result<()> {
        let mut target = PlantedProgram::start("")?;
        let begun = Instant::now();
        let output = self
            .start(&target, &std::env::temp_dir())?
            .wait_with_output()?;
        ensure!(output.status.code() == Some(self.whole), "{output:?}");
        let whole = begun.elapsed();
        let random = RandomState::new();
        for round in 0..times {
            let signal = SIGNALS[round as usize % SIGNALS.len()];
            let life = whole.mul_f64(random.hash_one(round) as f64 / u64::MAX as f64);
            let clean = self.interrupt(&mut target, signal, life, tally);
            let clean = clean.with_context(|| format!("{signal} after {life:?}"))?;
            tally.slowest = tally.slowest.max(clean);
        }
        Ok(())
    }

    fn start(&self, target: &PlantedProgram, temporary: &Path) -> Result<Child> {
        // Signals have their default actions, whatever started this program.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT,TERM,HUP");
        command.arg(dist().join("bin/memprof")).args(self.words);
        command.arg(target.pid().to_string());
        command.env("TMPDIR", temporary).process_group(0);
        command.stdin(Stdio::null());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command.spawn()?)
    }

    /// Returns how long it took until the process was as before.
    fn interrupt(
        &self,
        target: &mut PlantedProgram,
        signal: Signal,
        life: Duration,
        tally: &mut Tally,
    ) -> Result<Duration> {
        let temporary = tempfile::tempdir()?;
        let memprof = self.start(target, temporary.path())?;
        thread::sleep(life);
        killpg(Pid::from_raw(memprof.id().cast_signed()), signal)?;
        let output = memprof.wait_with_output()?;
        let ended = Instant::now();
        tally.interrupts += 1;
        let status = output.status;
        let is_late = status.code() == Some(self.whole);
        let by_signal = [status.signal(), status.code().map(|code| code - 128)];
        ensure!(
            is_late || by_signal.contains(&Some(signal as i32)),
            "{output:?}"
        );
        tally.late += u32::from(is_late);
        target.answers()?;
        if self.is_attached && signal == Signal::SIGKILL {
            detach(target.pid())?;
        }
        while let Some(difference) = difference(target.pid())? {
            ensure!(ended.elapsed() < CLEAN_TIMEOUT, "{difference}: {output:?}");
            thread::sleep(POLL_INTERVAL);
        }
        let clean = ended.elapsed();
        let mut files = fs::read_dir(temporary.path())?;
        ensure!(
            signal == Signal::SIGKILL || files.next().is_none(),
            "a file is left: {output:?}"
        );
        Ok(clean)
    }
}

/// What a process has that it had not before; `None` for nothing.
fn difference(pid: u32) -> Result<Option<String>> {
    let mut plugin_threads = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        // It may have ended.
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        plugin_threads.extend(name.starts_with("memprof-").then_some(name));
        let children = fs::read_to_string(task.join("children")).unwrap_or_default();
        if !children.is_empty() {
            return Ok(Some(format!("it has children: {children}")));
        }
    }
    if !plugin_threads.is_empty() {
        return Ok(Some(format!(
            "it has threads of the plugin: {plugin_threads:?}"
        )));
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let is_traced = !status.contains("TracerPid:\t0\n");
    Ok(is_traced.then(|| format!("it is traced: {status}")))
}

/// Removes the plugin that a killed recording may have left.
fn detach(pid: u32) -> Result<()> {
    let begun = Instant::now();
    loop {
        let mut command = Command::new(dist().join("bin/memprof"));
        let output = command.args(["detach", &pid.to_string()]).output()?;
        // A dump that the recording asked for may be under way, or the plugin be about to start.
        if output.status.success() || difference(pid)?.is_none() {
            return Ok(());
        }
        ensure!(begun.elapsed() < CLEAN_TIMEOUT, "{output:?}");
        thread::sleep(POLL_INTERVAL);
    }
}

/// Kills a recording that samples, and waits until its plugin leaves by itself.
fn wait_for_lease() -> Result<Duration> {
    let mut target = PlantedProgram::start("")?;
    let temporary = tempfile::tempdir()?;
    let mut memprof = LONG_RECORDING.start(&target, temporary.path())?;
    while !samples(target.pid())? {
        if let Some(status) = memprof.try_wait()? {
            bail!("the recording has ended: {status}");
        }
    }
    memprof.kill()?;
    memprof.wait()?;
    let begun = Instant::now();
    while let Some(difference) = difference(target.pid())? {
        ensure!(begun.elapsed() < LEASE_TIMEOUT, "{difference}");
        thread::sleep(LEASE_POLL_INTERVAL);
    }
    target.answers()?;
    Ok(begun.elapsed())
}

fn samples(pid: u32) -> Result<bool> {
    let mut command = Command::new(dist().join("bin/memprof"));
    let output = command
        .args(["status", "--json", "-t", &pid.to_string()])
        .output()?;
    let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    Ok(status["profiling"] == "active")
}
