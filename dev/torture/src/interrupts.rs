//! Suite `interrupts`: `memprof record`, `leaks --prove` and `holders` get signals at random moments. Their target
//! process is then as before.

use std::fmt;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};
use serde_json::Value;
use testkit::limit_time;

use super::SuiteLength;
use super::leaks::PlantedProgram;
use xtask::dist::dist_dir;

const COMMANDS: [InterruptedCommand; 3] = [
    InterruptedCommand {
        args: &["record", "--for", "300ms", "--pid"],
        attaches: true,
        // The process allocates too little for a sample.
        exit_code: NO_DATA_EXIT_CODE,
    },
    InterruptedCommand {
        args: &["leaks", "--prove", "--max-pause", "10s"],
        attaches: false,
        exit_code: 0,
    },
    InterruptedCommand {
        args: &["holders", "--max-pause", "10s"],
        attaches: false,
        exit_code: 0,
    },
];
const SIGNALS: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGKILL,
];
/// Exit code of `memprof record` without samples.
const NO_DATA_EXIT_CODE: i32 = 5;
/// Time until a command ends, and its time after a signal.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
/// Time until the process is as before.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(5);
/// Recording that is killed while it samples.
const LONG_RECORDING: InterruptedCommand = InterruptedCommand {
    args: &["record", "--for", "10s", "--pid"],
    attaches: true,
    exit_code: NO_DATA_EXIT_CODE,
};
/// Timeout for the lease of that recording, which is its time and two minutes.
const LEASE_TIMEOUT: Duration = Duration::from_secs(140);
const LEASE_POLL_INTERVAL: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

struct InterruptedCommand {
    /// Arguments before the pid.
    args: &'static [&'static str],
    /// Whether it loads the plugin into the process.
    attaches: bool,
    /// Exit code without an interrupt.
    exit_code: i32,
}

/// Number of interrupts, and their effect.
#[derive(Debug, Default)]
struct Tally {
    interrupts: u32,
    /// Signals that arrived after the command had exited.
    late: u32,
    /// Longest time from memprof's exit until the process was as before; after SIGKILL to a recording, by
    /// `memprof detach`.
    longest_cleanup: Duration,
}

/// Runs the suite `interrupts`, and returns its figures in one line. Fails if a command leaves something in its target
/// process, or if that process does not answer.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let times = length.pick(12, 200);
    let mut tally = Tally::default();
    for command in &COMMANDS {
        command
            .interrupt_often(times, &mut tally)
            .with_context(|| command.to_string())?;
    }
    ensure!(
        tally.late < tally.interrupts,
        "all {} signals came after the end of their command",
        tally.late
    );
    let lease = match length {
        SuiteLength::Short => "not waited for".to_owned(),
        SuiteLength::Long => format!("over after {:.0} s", wait_for_lease()?.as_secs_f64()),
    };
    let [record, leaks, holders] = COMMANDS.map(|command| command.args[0]);
    Ok(format!(
        "{} interrupts of {record}, {leaks} and {holders} by {} signals, {} of them after its end: 0 zombies, 0 attached, \
         0 files left, as before after {} ms at most; the lease of a killed recording: {lease}",
        tally.interrupts,
        SIGNALS.len(),
        tally.late,
        tally.longest_cleanup.as_millis()
    ))
}

impl fmt::Display for InterruptedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.args[0])
    }
}

impl InterruptedCommand {
    /// Interrupts the command `times` times, after random delays within its usual run time, and counts that in `tally`.
    /// Fails as [`interrupt`](Self::interrupt) does.
    fn interrupt_often(&self, times: u32, tally: &mut Tally) -> Result<()> {
        let mut target = PlantedProgram::start("")?;
        let start = Instant::now();
        let output = wait_for_output(self.start(&target, &std::env::temp_dir())?)?;
        ensure!(output.status.code() == Some(self.exit_code), "{output:?}");
        let run_time = start.elapsed();
        let random = RandomState::new();
        for round in 0..times {
            let signal = SIGNALS[round as usize % SIGNALS.len()];
            let delay = run_time.mul_f64(random.hash_one(round) as f64 / u64::MAX as f64);
            let cleanup_time = self.interrupt(&mut target, signal, delay, tally);
            let cleanup_time = cleanup_time.with_context(|| format!("{signal} after {delay:?}"))?;
            tally.longest_cleanup = tally.longest_cleanup.max(cleanup_time);
        }
        Ok(())
    }

    /// Starts the command on a process, in a process group of its own, with `temporary` as the directory of its
    /// temporary files.
    fn start(&self, target: &PlantedProgram, temporary: &Path) -> Result<Child> {
        // This program may have been started with ignored signals, which its children inherit.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT,TERM,HUP");
        command.arg(dist_dir().join("bin/memprof")).args(self.args);
        command.arg(target.pid().to_string());
        command.env("TMPDIR", temporary).process_group(0);
        command.stdin(Stdio::null());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command.spawn()?)
    }

    /// Runs the command and sends a signal after `delay`. After SIGKILL to a command that attaches, also runs
    /// `memprof detach`. Returns the time from the end of the command until its target process was as before. Fails if
    /// that is longer than [`CLEAN_TIMEOUT`], if the command ends neither by the signal nor as usual, or if it leaves a
    /// file after a signal other than SIGKILL.
    fn interrupt(
        &self,
        target: &mut PlantedProgram,
        signal: Signal,
        delay: Duration,
        tally: &mut Tally,
    ) -> Result<Duration> {
        let temporary = tempfile::tempdir()?;
        let memprof = self.start(target, temporary.path())?;
        thread::sleep(delay);
        killpg(Pid::from_raw(memprof.id().cast_signed()), signal)?;
        let output = wait_for_output(memprof)?;
        let exit_time = Instant::now();
        tally.interrupts += 1;
        let status = output.status;
        let is_late = status.code() == Some(self.exit_code);
        // By the signal itself, or with the exit code by which a shell reports it.
        let by_signal = [status.signal(), status.code().map(|code| code - 128)];
        ensure!(
            is_late || by_signal.contains(&Some(signal as i32)),
            "{output:?}"
        );
        tally.late += u32::from(is_late);
        target.ping()?;
        if self.attaches && signal == Signal::SIGKILL {
            detach_with_retries(target.pid())?;
        }
        while let Some(leftover) = find_leftover(target.pid())? {
            ensure!(
                exit_time.elapsed() < CLEAN_TIMEOUT,
                "{leftover}: {output:?}"
            );
            thread::sleep(POLL_INTERVAL);
        }
        let cleanup_time = exit_time.elapsed();
        let mut files = fs::read_dir(temporary.path())?;
        ensure!(
            signal == Signal::SIGKILL || files.next().is_none(),
            "a file is left: {output:?}"
        );
        Ok(cleanup_time)
    }
}

/// Waits until a command ends, and returns its output. Kills it, and fails, after [`COMMAND_TIMEOUT`]. The output must
/// be small enough for the pipes, which nothing reads before.
fn wait_for_output(mut command: Child) -> Result<Output> {
    let pid = rustix::process::Pid::from_child(&command);
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    // Unlike `testkit::processes::wait_for_exit`, this returns at once, because the caller measures from the end on.
    let timeout = Timespec::try_from(COMMAND_TIMEOUT)?;
    let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
    if poll(&mut polled, Some(&timeout))? == 0 {
        command.kill()?;
        bail!("it hangs: {:?}", command.wait_with_output()?);
    }
    Ok(command.wait_with_output()?)
}

/// Describes what memprof left in a process: a child, a thread of the plugin or a tracer. `None` if nothing.
fn find_leftover(pid: u32) -> Result<Option<String>> {
    let mut plugin_threads = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        // The thread may have exited since.
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

/// Removes the plugin that a killed recording may have left in the process. Runs `memprof detach` until it succeeds or
/// nothing of memprof is left; fails after [`CLEAN_TIMEOUT`].
fn detach_with_retries(pid: u32) -> Result<()> {
    let start = Instant::now();
    loop {
        let mut command = Command::new(dist_dir().join("bin/memprof"));
        command.args(["detach", &pid.to_string()]);
        let output = limit_time(&command, COMMAND_TIMEOUT).output()?;
        // A dump that the recording requested may run, or the plugin may just start.
        if output.status.success() || find_leftover(pid)?.is_none() {
            return Ok(());
        }
        ensure!(start.elapsed() < CLEAN_TIMEOUT, "{output:?}");
        thread::sleep(POLL_INTERVAL);
    }
}

/// Kills a recording that samples, and waits until its plugin unloads at the end of the lease. Returns the time that
/// this took. Fails after [`LEASE_TIMEOUT`].
fn wait_for_lease() -> Result<Duration> {
    let mut target = PlantedProgram::start("")?;
    let temporary = tempfile::tempdir()?;
    let mut memprof = LONG_RECORDING.start(&target, temporary.path())?;
    while !is_sampled(target.pid())? {
        if let Some(status) = memprof.try_wait()? {
            bail!("the recording has ended: {status}");
        }
    }
    memprof.kill()?;
    memprof.wait()?;
    let start = Instant::now();
    while let Some(leftover) = find_leftover(target.pid())? {
        ensure!(start.elapsed() < LEASE_TIMEOUT, "{leftover}");
        thread::sleep(LEASE_POLL_INTERVAL);
    }
    target.ping()?;
    Ok(start.elapsed())
}

/// Whether `memprof status` says that a process is sampled; false if the process does not answer yet.
fn is_sampled(pid: u32) -> Result<bool> {
    let mut command = Command::new(dist_dir().join("bin/memprof"));
    command.args(["status", "--json", "-t", &pid.to_string()]);
    let output = limit_time(&command, COMMAND_TIMEOUT).output()?;
    let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    Ok(status["profiling"] == "active")
}
