//! The time for which a host samples.

use std::fs;
use std::io::{IsTerminal, stderr};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use memprof_host::client::Client;
use memprof_ptrace::Halt;
use memprof_ptrace::executable::has_plugin;
use memprof_ptrace::pidfd::PidFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::early_profile::EarlyProfile;
use crate::interrupts::Interrupts;
use crate::output;

/// Longer than a host takes from the end of its control socket to its own: its dump at the exit has five seconds.
const EXITING: Duration = Duration::from_secs(7);
/// Interval between two looks at the process.
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
    /// The host cannot answer.
    Halt(Halt),
}

/// The process of a host, from before its recording on.
#[derive(Debug)]
pub(super) struct HostProcess {
    /// `None` in a PID namespace that cannot be seen from here.
    pid: Option<u32>,
    /// `None` before Linux 5.3.
    descriptor: Option<PidFd>,
}

/// Waits, and shows how long it still takes where somebody looks.
pub(super) fn sleep_with_progress(
    duration: Duration,
    client: &mut Client,
    process: &HostProcess,
    interrupts: &Interrupts,
    early: &mut EarlyProfile,
) -> Result<End> {
    let begun = Instant::now();
    let watched = stderr().is_terminal();
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
        let [is_interrupted, has_ended] = process.sleep(left.min(TICK), interrupts)?;
        if is_interrupted {
            break End::Interrupt;
        }
        if has_ended || !client.is_connected() && !reconnect(client) {
            break process.end(false, interrupts)?.unwrap_or_else(|| {
                End::Host("has lost the plugin: something else detached it".to_owned())
            });
        }
        match process.pid.and_then(Halt::for_pid) {
            None => {
                halted_looks = 0;
                if let Err(error) = early.fetch_if_due(client)
                    && !reconnect(client)
                {
                    break process
                        .end(client.is_connected(), interrupts)?
                        .ok_or(error)?;
                }
            }
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

impl HostProcess {
    pub(super) fn of(client: &Client) -> Self {
        let pid = client.peer().pid;
        let descriptor = pid.and_then(|pid| PidFd::open(pid).ok());
        Self { pid, descriptor }
    }

    /// Sleeps, at most until a signal comes or the process ends.
    fn sleep(&self, time: Duration, interrupts: &Interrupts) -> Result<[bool; 2]> {
        let signal = PollFd::from_borrowed_fd(interrupts.as_fd(), PollFlags::IN);
        let process = self.descriptor.iter();
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

    /// The reason why a host does not answer; `None` if it goes on with the plugin. One that has closed its connection
    /// may be about to end, which is waited for.
    pub(super) fn end(&self, is_connected: bool, interrupts: &Interrupts) -> Result<Option<End>> {
        let halt = || {
            self.pid
                .and_then(Halt::for_pid)
                .filter(|halt| !halt.has_ended())
        };
        if let Some(halt) = halt() {
            return Ok(Some(End::Halt(halt)));
        }
        let maps = self
            .pid
            .and_then(|pid| fs::read(format!("/proc/{pid}/maps")).ok());
        let may_end = maps.is_some_and(|maps| has_plugin(&maps));
        let time = match may_end && !is_connected {
            true => EXITING,
            false => Duration::ZERO,
        };
        let [_, has_ended] = self.sleep(time, interrupts)?;
        let status = self.descriptor.as_ref().and_then(PidFd::exit_status);
        let words = match status {
            Some(status) => format!("has ended {}", words(status)),
            None if has_ended => "has ended; with what status, only its parent is told".to_owned(),
            None if may_end => return Ok(None),
            None => "has executed another program".to_owned(),
        };
        Ok(Some(End::Host(words)))
    }
}

fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("with status {code}"),
        (None, Some(signal)) => format!("by signal {signal}"),
        (None, None) => format!("({status})"),
    }
}

/// Connects again: a host gives up idle connections where others want to connect.
fn reconnect(client: &mut Client) -> bool {
    let Some(pid) = client.peer().pid else {
        return false;
    };
    match crate::attach::connect_existing(pid) {
        Some(again) => {
            *client = again;
            true
        }
        None => false,
    }
}
