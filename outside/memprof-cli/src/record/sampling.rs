//! Waits while a host samples.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use memprof_host::client::Client;
use memprof_ptrace::Halt;
use memprof_ptrace::executable::has_plugin;
use memprof_ptrace::pidfd::PidFd;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::interrupts::Interrupts;
use crate::output;

/// Timeout for a host to end after it has closed its control socket: its exit dump may take five seconds.
const EXIT_TIMEOUT: Duration = Duration::from_secs(7);
/// Time between two checks of the process.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Reason for the end of the sampling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SamplingEnd {
    /// The time is over.
    Time,
    /// A signal was sent to memprof.
    Interrupt,
    /// The host has ended or lost the plugin; the text is a predicate.
    Host(String),
    /// The process has executed another program.
    Exec,
    /// The host is halted and cannot reply.
    Halt(Halt),
}

impl SamplingEnd {
    /// Returns why the sampling ended early, as a predicate. `None` if it did not.
    pub(crate) fn early_reason(&self) -> Option<String> {
        match self {
            Self::Host(reason) => Some(reason.clone()),
            Self::Exec => Some("has executed another program".to_owned()),
            Self::Halt(halt) => Some(format!("does not answer: {halt}")),
            Self::Time | Self::Interrupt => None,
        }
    }
}

/// The process of a host, opened before its recording.
#[derive(Debug)]
pub(crate) struct HostProcess {
    /// `None` if the process is in a pid namespace that is not visible here.
    pid: Option<u32>,
    /// `None` before Linux 5.3.
    descriptor: Option<PidFd>,
}

/// Waits for the duration, with a progress bar on a terminal, and returns why the wait ended. Calls `poll` again and
/// again while the host replies; while it is halted, a note says so. An error of `poll` means that the host did not
/// reply.
pub(crate) fn wait_for_end(
    duration: Duration,
    client: &mut Client,
    process: &HostProcess,
    interrupts: &Interrupts,
    mut poll: impl FnMut(&mut Client) -> Result<()>,
) -> Result<SamplingEnd> {
    let start = Instant::now();
    let mut halted_polls = 0;
    let end = loop {
        let Some(remaining) = duration.checked_sub(start.elapsed()) else {
            break SamplingEnd::Time;
        };
        let done = (start.elapsed().as_secs_f64() / duration.as_secs_f64() * 30.0) as usize;
        let bar = "#".repeat(done.min(30));
        output::show_progress(&format!(
            "sampling [{bar:<30}] {:>4}s left",
            remaining.as_secs()
        ));
        let [is_interrupted, has_ended] =
            process.wait_for_event(remaining.min(POLL_INTERVAL), interrupts)?;
        if is_interrupted {
            break SamplingEnd::Interrupt;
        }
        if has_ended || !client.is_connected() && !reconnect(client) {
            break process.end_reason(false, interrupts)?.unwrap_or_else(|| {
                SamplingEnd::Host("has lost the plugin: something else detached it".to_owned())
            });
        }
        match process.pid.and_then(Halt::for_pid) {
            None => {
                halted_polls = 0;
                if let Err(error) = poll(client)
                    && !reconnect(client)
                {
                    break process
                        .end_reason(client.is_connected(), interrupts)?
                        .ok_or(error)?;
                }
            }
            Some(halt) => {
                halted_polls += 1;
                // Reported once, and not for the short stops by tracers.
                if halted_polls == 2 {
                    output::clear_progress();
                    output::note(&halt.to_string());
                }
            }
        }
    };
    output::clear_progress();
    Ok(end)
}

impl HostProcess {
    /// Opens a pidfd of the process at the other end of a connection, so that its end is noticed. There is none if its
    /// pid is unknown, or it has ended.
    pub(crate) fn from_client(client: &Client) -> Self {
        let pid = client.peer().pid;
        let descriptor = pid.and_then(|pid| PidFd::open(pid).ok());
        Self { pid, descriptor }
    }

    /// Waits until a signal comes, the process ends, or the time is over. Returns whether a signal came, and whether
    /// the process has ended.
    fn wait_for_event(&self, time: Duration, interrupts: &Interrupts) -> Result<[bool; 2]> {
        let signal = PollFd::from_borrowed_fd(interrupts.as_fd(), PollFlags::IN);
        let process = self.descriptor.iter();
        let mut waited: Vec<_> = [signal]
            .into_iter()
            .chain(process.map(|process| PollFd::new(process, PollFlags::IN)))
            .collect();
        let time = Timespec::try_from(time).context("the time to wait")?;
        match rustix::event::poll(&mut waited, Some(&time)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).context("failed to wait"),
        }
        let is_ready = |index: usize| {
            waited
                .get(index)
                .is_some_and(|one| !one.revents().is_empty())
        };
        Ok([is_ready(0), is_ready(1)])
    }

    /// Returns the reason why a host does not reply: it is halted, has ended, or has executed another program. `None`
    /// if it still runs with the plugin. If the host has closed its connection (not `is_connected`), waits up to
    /// [`EXIT_TIMEOUT`] for its end.
    pub(super) fn end_reason(
        &self,
        is_connected: bool,
        interrupts: &Interrupts,
    ) -> Result<Option<SamplingEnd>> {
        let halt = || {
            self.pid
                .and_then(Halt::for_pid)
                .filter(|halt| !halt.has_ended())
        };
        if let Some(halt) = halt() {
            return Ok(Some(SamplingEnd::Halt(halt)));
        }
        let maps = self
            .pid
            .and_then(|pid| fs::read(format!("/proc/{pid}/maps")).ok());
        let may_end = maps.is_some_and(|maps| has_plugin(&maps));
        let time = match may_end && !is_connected {
            true => EXIT_TIMEOUT,
            false => Duration::ZERO,
        };
        let [_, has_ended] = self.wait_for_event(time, interrupts)?;
        let status = self.descriptor.as_ref().and_then(PidFd::exit_status);
        let reason = match status {
            Some(status) => format!("has ended {}", describe_exit(status)),
            None if has_ended => "has ended; with what status, only its parent is told".to_owned(),
            None if may_end => return Ok(None),
            None => return Ok(Some(SamplingEnd::Exec)),
        };
        Ok(Some(SamplingEnd::Host(reason)))
    }
}

/// Describes the end of a process: "with status 1", "by signal 9".
fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("with status {code}"),
        (None, Some(signal)) => format!("by signal {signal}"),
        (None, None) => format!("({status})"),
    }
}

/// Connects again: a host closes idle connections if others want to connect. Returns whether it succeeded.
fn reconnect(client: &mut Client) -> bool {
    let Some(pid) = client.peer().pid else {
        return false;
    };
    match crate::attach::connect_existing(pid) {
        Some(reconnected) => {
            *client = reconnected;
            true
        }
        None => false,
    }
}
