//! A second process, which cleans up in a searched process should this one be killed: the copy of the searched process
//! ends with its tracer, and only the searched process itself can be made to reap it.
//!
//! It is memprof again (`memprof reap PID PARENT`), so that it has nothing of this process's but its standard input, whose end
//! tells that this process has ended.

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

/// Sent where the search has ended, well or not.
const DONE: u8 = 1;
/// Until the second process has ended, which is a look into /proc where nothing is to be done. It works on for longer
/// where the searched process is stopped.
const END_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The second process, for as long as copies are made.
#[derive(Debug)]
pub(crate) struct ReaperGuard(Child);

impl ReaperGuard {
    /// Starts it, before the first copy is made.
    pub(crate) fn start(pid: u32) -> anyhow::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("memprof").arg("reap").arg(pid.to_string());
        command.arg(std::process::id().to_string());
        // A Ctrl-C is for the terminal's process group.
        command.process_group(0).stdin(Stdio::piped());
        let started = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let started = started.context("failed to start the process that cleans up after this one");
        Ok(Self(started?))
    }
}

impl Drop for ReaperGuard {
    fn drop(&mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            // It fails where the second process was killed.
            let _ = input.write_all(&[DONE]);
        }
        let begun = Instant::now();
        while begun.elapsed() < END_TIMEOUT && matches!(self.0.try_wait(), Ok(None)) {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// `memprof reap PID PARENT`: waits for the end of its parent, and reaps the copies of `pid` that it has left.
pub(crate) fn run(pid: u32, parent: u32) -> Outcome {
    // What ends a whole service or session is sent to this process too.
    let mut ends = SigSet::empty();
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ] {
        ends.add(signal);
    }
    ends.thread_block().context("failed to block signals")?;
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
    // Its files are closed before what it traces is killed, and that before its children get another parent.
    while end == SearchEnd::Killed && getppid().as_raw().cast_unsigned() == parent {
        thread::sleep(POLL_INTERVAL);
    }
    let left = reap_copies(pid, since, end);
    Ok(u8::from(left > 0).into())
}
