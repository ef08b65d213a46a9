//! The reaper: a second process that cleans up in a searched process if this one is killed. The kernel kills the
//! copy of the searched process when its tracer ends, but only the searched process can wait for it.
//!
//! The reaper is memprof again (`memprof reap PID PARENT`). It shares only its standard input with this process; end
//! of input means that this process has ended.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use memprof_leaks::{SearchEnd, reap_copies};
use memprof_ptrace::process::ProcStat;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::getppid;

use crate::exit::Outcome;

/// Byte that is sent when the search has ended, whether it succeeded or not.
const DONE: u8 = 1;
/// Timeout for the reaper to end. It normally only checks /proc. If the searched process is stopped, it works on for
/// longer.
const END_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A running reaper, while copies are made.
#[derive(Debug)]
pub(crate) struct ReaperGuard(Child);

impl ReaperGuard {
    /// Starts the reaper of the process `pid`, in its own process group. Call this before the first copy of that
    /// process is made: the reaper reaps only copies that started later than itself.
    pub(crate) fn start(pid: u32) -> anyhow::Result<Self> {
        // This program, even if its file was replaced or removed.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("memprof").arg("reap").arg(pid.to_string());
        command.arg(std::process::id().to_string());
        // A Ctrl-C is sent to the terminal's foreground process group, to which the reaper must not belong.
        command.process_group(0).stdin(Stdio::piped());
        let started = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let started = started.context("failed to start the process that cleans up after this one");
        Ok(Self(started?))
    }
}

impl Drop for ReaperGuard {
    /// Lets the reaper end by a byte on its standard input, and waits for its end up to `END_TIMEOUT`.
    fn drop(&mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            // The write fails if the reaper was killed.
            let _ = input.write_all(&[DONE]);
        }
        let start = Instant::now();
        while start.elapsed() < END_TIMEOUT && matches!(self.0.try_wait(), Ok(None)) {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Runs `memprof reap PID PARENT`: waits until the parent ends or reports the end of its search, then makes `pid` wait
/// for the copies of it that are left. Blocks signals meanwhile. The exit code is 1 if some copies remain.
pub(crate) fn run(pid: u32, parent: u32) -> Outcome {
    // A signal to a whole service or session is sent to this process too.
    let mut signals = SigSet::empty();
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ] {
        signals.add(signal);
    }
    signals.thread_block().context("failed to block signals")?;
    // The copies to reap are started later than this process.
    let own = std::fs::read("/proc/self/stat").context("/proc/self/stat")?;
    let since = ProcStat::parse(&own).context("/proc/self/stat")?.start_time;
    let mut message = Vec::new();
    io::stdin()
        .read_to_end(&mut message)
        .context("standard input")?;
    let end = match message.as_slice() {
        [] => SearchEnd::Killed,
        _ => SearchEnd::Done,
    };
    // The kernel closes the parent's files first, then kills its tracees, and only then gives its children another
    // parent.
    while end == SearchEnd::Killed && getppid().as_raw().cast_unsigned() == parent {
        thread::sleep(POLL_INTERVAL);
    }
    let remaining = reap_copies(pid, since, end);
    Ok(u8::from(remaining > 0).into())
}
