//! Waits while a host samples.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use memprof_host::client::{Client, ClientError};
use memprof_host::protocol::HostInfo;
use memprof_host::{DiscoveryScope, discover_hosts};
use memprof_ptrace::pidfd::PidFd;
use memprof_ptrace::{Halt, ProgramEnd, ProgramWatch};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::SHORT_END_TIMEOUT;
use crate::attach::connect_existing_host;
use crate::detach::has_memprof_threads;
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
    /// The host may run and sample, but does not reply any more; the text is a predicate.
    NoReply(String),
}

impl SamplingEnd {
    /// Returns why the sampling ended early, as a predicate. `None` if it did not.
    pub(crate) fn early_reason(&self) -> Option<String> {
        match self {
            Self::Host(reason) | Self::NoReply(reason) => Some(reason.clone()),
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
    /// The program that it executed at that time; `None` without a pid.
    program: Option<ProgramWatch>,
    /// Identity of a host without a pid. `None` with a pid.
    host: Option<HiddenHost>,
}

/// Identity of a host without a visible pid, in whose place another one may listen later.
#[derive(Debug)]
struct HiddenHost {
    /// User who opened the socket, as the kernel reports it.
    uid: u32,
    /// The host's own words, which another process of that user can repeat.
    info: HostInfo,
}

/// Waits while a host samples, for `duration`, with a progress bar on a terminal. Returns the reason for the end of the
/// wait. Calls `poll` four times a second while the host replies; an error of `poll` means that it did not. While the
/// host is halted, a note says so. A host that runs but does not reply may wait for a processor, so it is queried until
/// the time is over.
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
        let halt = process.pid.and_then(Halt::for_pid);
        let replies = match halt {
            _ if has_ended || !process.ensure_connected(client) => false,
            None => {
                halted_polls = 0;
                poll(client).is_ok() || process.reconnect(client)
            }
            Some(halt) => {
                halted_polls += 1;
                // Reported once, and not for the short stops by tracers. It counts as a reply, because the host may go
                // on.
                if halted_polls == 2 {
                    output::clear_progress();
                    output::note(&halt.to_string());
                }
                true
            }
        };
        if !replies {
            let is_connected = client.is_connected();
            if let Some(end) = process.wait_for_end_reason(is_connected, remaining, interrupts)? {
                break end;
            }
            if !process.has_plugin_threads() {
                // Its threads end before the program does, or executes another one.
                let end = process.wait_for_program_end(SHORT_END_TIMEOUT, interrupts)?;
                break end.unwrap_or_else(|| {
                    SamplingEnd::Host("has lost the plugin: something else detached it".to_owned())
                });
            }
            let had_time_to_end = remaining > EXIT_TIMEOUT && interrupts.ending_signal().is_none();
            if !is_connected && had_time_to_end && process.has_no_socket(client.socket_path()) {
                let reason = match process.is_visible() {
                    true => "has closed its control socket",
                    false => "has ended or closed its control socket",
                };
                break SamplingEnd::NoReply(reason.to_owned());
            }
        }
    };
    output::clear_progress();
    Ok(end)
}

impl HostProcess {
    /// Opens the process at the other end of a connection, so that its end is noticed.
    ///
    /// # Errors
    /// The process is not visible in this pid namespace, and the host does not reply with its identity.
    pub(crate) fn from_client(client: &mut Client) -> Result<Self> {
        let peer = client.peer();
        Ok(match peer.pid {
            Some(pid) => Self::open(pid),
            None => Self {
                pid: None,
                descriptor: None,
                program: None,
                host: Some(HiddenHost {
                    uid: peer.uid,
                    info: client.host_info()?,
                }),
            },
        })
    }

    /// Opens a process, so that its end is noticed. If it has ended already, nothing is opened, and no end is noticed.
    pub(super) fn open(pid: u32) -> Self {
        Self {
            pid: Some(pid),
            descriptor: PidFd::open(pid).ok(),
            program: Some(ProgramWatch::open(pid)),
            host: None,
        }
    }

    /// Returns whether the process is visible in this pid namespace. If it is not, its end is not noticed.
    pub(super) fn is_visible(&self) -> bool {
        self.pid.is_some()
    }

    /// Connects again if the host has closed the connection. Returns whether it is open.
    pub(super) fn ensure_connected(&self, client: &mut Client) -> bool {
        client.is_connected() || self.reconnect(client)
    }

    /// Connects to the host again: a host closes idle connections if other clients want to connect. Returns whether
    /// that succeeded; if not, `client` stays as it is.
    fn reconnect(&self, client: &mut Client) -> bool {
        let reconnected = self
            .connect_to_same_host(client.socket_path())
            .ok()
            .flatten();
        // A plugin that was attached anew may have another socket.
        let reconnected = reconnected.or_else(|| self.pid.and_then(connect_existing_host));
        let Some(reconnected) = reconnected else {
            return false;
        };
        *client = reconnected;
        true
    }

    /// Connects to the socket that the host had. Recognizes the host by the pid at the other end or, if the pid is not
    /// visible, by the user and the host's description of itself. Does not examine the process, which this user may not
    /// be allowed to. `None` if another host listens there now.
    fn connect_to_same_host(
        &self,
        socket: &Path,
    ) -> std::result::Result<Option<Client>, ClientError> {
        let mut client = Client::connect(socket)?;
        let peer = client.peer();
        let is_same = match &self.host {
            None => peer.pid == self.pid,
            Some(host) => {
                // The user is checked first: a process of another user could repeat the text by which the host
                // identifies itself.
                peer.pid.is_none() && peer.uid == host.uid && client.host_info()? == host.info
            }
        };
        Ok(is_same.then_some(client))
    }

    /// Returns whether the host has no control socket any more. Returns false if it has one, even if it does not reply
    /// there or refuses the connection. `socket` is the path of the socket that it had.
    fn has_no_socket(&self, socket: &Path) -> bool {
        let is_gone = match self.connect_to_same_host(socket) {
            Ok(connected) => connected.is_none(),
            Err(ClientError::Unreachable(error)) => matches!(
                error.kind(),
                ErrorKind::ConnectionRefused | ErrorKind::NotFound
            ),
            Err(_) => false,
        };
        is_gone && self.pid.is_none_or(has_no_visible_socket)
    }

    /// Returns whether the process has threads of the plugin, which end when it is detached; its code stays. Also true
    /// if this user cannot list the threads.
    fn has_plugin_threads(&self) -> bool {
        self.pid.and_then(has_memprof_threads).unwrap_or(true)
    }

    /// Waits until a signal comes, the process ends, or the time is over. A system call that is interrupted may end the
    /// wait early. Returns whether a signal came, and whether the process has ended.
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
    /// if it still runs. If the host has closed its connection (not `is_connected`), waits for its end: up to
    /// [`EXIT_TIMEOUT`], but not for longer than `remaining`, and not after a signal.
    pub(super) fn wait_for_end_reason(
        &self,
        is_connected: bool,
        remaining: Duration,
        interrupts: &Interrupts,
    ) -> Result<Option<SamplingEnd>> {
        let halt = self.pid.and_then(Halt::for_pid);
        if let Some(halt) = halt.filter(|halt| !halt.has_ended()) {
            return Ok(Some(SamplingEnd::Halt(halt)));
        }
        let timeout = match is_connected {
            true => Duration::ZERO,
            false => remaining.min(EXIT_TIMEOUT),
        };
        self.wait_for_program_end(timeout, interrupts)
    }

    /// Waits until the program ends, a signal comes, or `timeout` is over. Returns how the program ended; `None` if it
    /// still runs. A program that is about to end gets up to [`EXIT_TIMEOUT`].
    pub(super) fn wait_for_program_end(
        &self,
        timeout: Duration,
        interrupts: &Interrupts,
    ) -> Result<Option<SamplingEnd>> {
        let start = Instant::now();
        loop {
            let program_end = self.program.as_ref().and_then(ProgramWatch::program_end);
            let timeout = match program_end {
                Some(ProgramEnd::Executed) => return Ok(Some(SamplingEnd::Exec)),
                Some(ProgramEnd::Exited) if self.descriptor.is_none() => {
                    return Ok(Some(SamplingEnd::Host("has ended".to_owned())));
                }
                // It has given up its memory, and is soon a zombie with a status.
                Some(ProgramEnd::Exited) => EXIT_TIMEOUT,
                None => timeout,
            };
            let remaining = timeout.saturating_sub(start.elapsed());
            let [is_interrupted, has_ended] =
                self.wait_for_event(remaining.min(POLL_INTERVAL), interrupts)?;
            let status = self.descriptor.as_ref().and_then(PidFd::exit_status);
            let reason = match (status, program_end) {
                (Some(status), _) => format!("has ended {}", describe_exit(status)),
                _ if has_ended => "has ended; with what status, only its parent is told".to_owned(),
                _ if !is_interrupted && !remaining.is_zero() => continue,
                (None, Some(_)) => "is about to end".to_owned(),
                (None, None) => return Ok(None),
            };
            return Ok(Some(SamplingEnd::Host(reason)));
        }
    }
}

/// Returns whether no control socket of a process is found, neither by its name nor in the process. Also true if this
/// user may not examine the process, and the socket has another name than usual.
fn has_no_visible_socket(pid: u32) -> bool {
    let found = discover_hosts(DiscoveryScope::Process(pid), |_| ());
    // A process without a socket is listed by its directory.
    let directory = PathBuf::from(format!("/proc/{pid}"));
    let mut unreachable = found.unreachable.iter();
    found.hosts.is_empty() && unreachable.all(|one| one.path == directory)
}

/// Describes the end of a process: "with status 1", "by signal 9".
fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("with status {code}"),
        (None, Some(signal)) => format!("by signal {signal}"),
        (None, None) => format!("({status})"),
    }
}
