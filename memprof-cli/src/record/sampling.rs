//! The time for which a host samples.

use std::fs;
use std::io::{IsTerminal, stderr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use memprof_host::client::Client;
use memprof_ptrace::Halt;
use memprof_ptrace::program::has_plugin;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::interrupts::Interrupts;
use crate::output;

/// Longer than a host takes from the end of its control socket to its own: its dump at the exit has five seconds.
const EXITING: Duration = Duration::from_secs(7);
/// How often the process is looked at.
const TICK: Duration = Duration::from_millis(250);

/// The end of the sampling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its time is over.
    Time,
    /// A signal to memprof.
    Interrupt,
    /// The host is there no more, with the reason as far as it can be seen.
    Host(String),
}

/// Waits, and shows how long it still takes where somebody looks.
pub(super) fn wait(
    duration: Duration,
    client: &mut Client,
    interrupts: &Interrupts,
) -> Result<End> {
    let begun = Instant::now();
    let watched = stderr().is_terminal();
    let pid = client.peer().pid;
    let process = pid.and_then(open);
    let mut halted_looks = 0;
    let end = loop {
        let Some(left) = duration.checked_sub(begun.elapsed()) else {
            break End::Time;
        };
        if watched {
            let done = (begun.elapsed().as_secs_f64() / duration.as_secs_f64() * 30.0) as usize;
            let bar = "#".repeat(done.min(30));
            output::progress(&format!("sampling [{bar:<30}] {:>4}s left", left.as_secs()));
        }
        let [is_interrupted, has_ended] = sleep(left.min(TICK), interrupts, process.as_ref())?;
        if is_interrupted {
            break End::Interrupt;
        }
        if has_ended || !client.is_connected() && !reconnect(client) {
            break End::Host(reason(pid, interrupts, process.as_ref())?);
        }
        match pid.and_then(Halt::of) {
            None => halted_looks = 0,
            Some(halt) => {
                halted_looks += 1;
                // Said once, and not of the short stops of tracers.
                if halted_looks == 2 {
                    output::clear();
                    output::note(&halt.to_string());
                }
            }
        }
    };
    output::clear();
    Ok(end)
}

fn open(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(pid.cast_signed())?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Sleeps, at most until a signal comes or the process ends.
fn sleep(time: Duration, interrupts: &Interrupts, process: Option<&OwnedFd>) -> Result<[bool; 2]> {
    let signal = PollFd::from_borrowed_fd(interrupts.as_fd(), PollFlags::IN);
    let mut waited: Vec<_> = [signal]
        .into_iter()
        .chain(process.map(|process| PollFd::new(process, PollFlags::IN)))
        .collect();
    let time = Timespec::try_from(time).context("the time to wait")?;
    match poll(&mut waited, Some(&time)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno).context("failed to wait"),
    }
    let is_ready = |at: usize| waited.get(at).is_some_and(|one| !one.revents().is_empty());
    Ok([is_ready(0), is_ready(1)])
}

/// The reason why a host is there no more. One that is about to end is waited for.
fn reason(pid: Option<u32>, interrupts: &Interrupts, process: Option<&OwnedFd>) -> Result<String> {
    let maps = pid.and_then(|pid| fs::read(format!("/proc/{pid}/maps")).ok());
    let may_end = maps.is_some_and(|maps| has_plugin(&maps));
    let time = if may_end { EXITING } else { Duration::ZERO };
    let [_, has_ended] = sleep(time, interrupts, process)?;
    Ok(match pid.and_then(exit_status) {
        Some(status) => format!("has ended {status}"),
        None if has_ended => "has ended; with what status, only its parent is told".to_owned(),
        None if may_end => "has lost the plugin: something else detached it".to_owned(),
        None => "has executed another program".to_owned(),
    })
}

/// Connects again: a host gives up idle connections where others want to connect.
fn reconnect(client: &mut Client) -> bool {
    let Some(pid) = client.peer().pid else {
        return false;
    };
    match crate::attach::host(pid) {
        Some(again) => {
            *client = again;
            true
        }
        None => false,
    }
}

/// How a process ended, while its parent has not asked for that yet and this user may see it (proc(5),
/// `/proc/PID/stat`, `exit_code`).
fn exit_status(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    // The 52nd field; the state is the third.
    let status: i32 = fields.nth(52 - 4)?.parse().ok()?;
    (state == "Z").then(|| match status & 0x7f {
        0 => format!("with status {}", status >> 8),
        signal => format!("by signal {signal}"),
    })
}
