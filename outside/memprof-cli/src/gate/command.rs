//! Runs the tested command, and ends it with its process group if `memprof test` gets a signal.

use std::fs;
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use memprof_ptrace::pidfd::PidFd;
use memprof_ptrace::process::ProcStat;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::command_group::CommandGroup;
use crate::interrupts;

/// Time after which the command is killed if it has not ended after a signal.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which the remaining processes of its group are killed.
const GROUP_END_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const WAIT_FAILED: &str = "failed to wait for the command";

/// The end of the tested command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandEnd {
    /// It exited, or was killed by a signal that was not sent to this program.
    Status(ExitStatus),
    /// This program got this signal.
    Interrupted(Signal),
}

/// Runs a command until it ends, or until this program gets a signal. Passes the signal on to the command, and waits
/// for its end.
///
/// # Errors
/// The command cannot be started or waited for.
pub(super) fn run(command: &mut Command) -> anyhow::Result<CommandEnd> {
    let signals = interrupts::block_signals()?;
    let end = run_with_signals_blocked(command, &signals);
    // A signal that arrived after the command's end now ends this program.
    signals
        .thread_unblock()
        .context("failed to unblock signals")?;
    end
}

/// Like [`run`], but expects that the `signals` are blocked in this thread: a descriptor receives them.
fn run_with_signals_blocked(command: &mut Command, signals: &SigSet) -> anyhow::Result<CommandEnd> {
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let signals = SignalFd::with_flags(signals, flags).context("failed to watch for signals")?;
    let group = CommandGroup::choose(command)?;
    let child = command.spawn()?;
    let mut running = RunningCommand {
        process: PidFd::open(child.id()).context(WAIT_FAILED)?,
        child,
        group,
        signals,
    };
    match running.wait_for_event(None)? {
        CommandEvent::Ended(status) => Ok(CommandEnd::Status(status)),
        CommandEvent::Signal { signal, is_shared } => {
            running.forward_signal_and_wait(signal, is_shared)?;
            Ok(CommandEnd::Interrupted(signal))
        }
        CommandEvent::Timeout => unreachable!("there is no limit"),
    }
}

/// Returns whether a process group has processes other than zombies. Zombies do not count, because they remain for ever
/// if the first process of a container reaps none. Reads the status of all processes in /proc.
fn has_processes(group: u32) -> bool {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut stats = entries.filter_map(|entry| {
        let text = fs::read(entry.path().join("stat")).ok()?;
        ProcStat::parse(&text).ok()
    });
    stats.any(|stat| stat.group == group && !stat.is_zombie)
}

/// The tested command while it runs.
#[derive(Debug)]
struct RunningCommand {
    process: PidFd,
    child: Child,
    group: CommandGroup,
    signals: SignalFd,
}

/// Event that ends a wait for the command.
enum CommandEvent {
    Ended(ExitStatus),
    /// `is_shared`: the terminal has sent the signal to the whole group.
    Signal {
        signal: Signal,
        is_shared: bool,
    },
    Timeout,
}

impl RunningCommand {
    /// Waits until the command ends or a signal arrives, for `limit` at most, or without a limit if it is `None`. If
    /// both have happened, returns the signal.
    fn wait_for_event(&mut self, limit: Option<Duration>) -> anyhow::Result<CommandEvent> {
        let limit = limit
            .map(Timespec::try_from)
            .transpose()
            .context(WAIT_FAILED)?;
        let signals = self.signals.as_fd();
        let mut events = [
            PollFd::new(&self.process, PollFlags::IN),
            PollFd::from_borrowed_fd(signals, PollFlags::IN),
        ];
        let count = rustix::io::retry_on_intr(|| poll(&mut events, limit.as_ref()));
        if count.context(WAIT_FAILED)? == 0 {
            return Ok(CommandEvent::Timeout);
        }
        // Checked first, because the command may have ended by the same signal.
        if let Some(info) = self.signals.read_signal().context(WAIT_FAILED)? {
            let signal = Signal::try_from(info.ssi_signo.cast_signed()).context(WAIT_FAILED)?;
            let is_shared = self.group.has_received(signal, info.ssi_code);
            return Ok(CommandEvent::Signal { signal, is_shared });
        }
        Ok(CommandEvent::Ended(self.child.wait().context(WAIT_FAILED)?))
    }

    /// Passes a signal on, unless the command has received it too (`is_shared`), and waits for the end of the command
    /// and of its group. Kills the processes that remain after a timeout, or at a second signal.
    fn forward_signal_and_wait(&mut self, signal: Signal, is_shared: bool) -> anyhow::Result<()> {
        if !is_shared {
            self.send_signal(signal);
            // A stopped process handles the signal only when it is continued.
            self.send_signal(Signal::SIGCONT);
        }
        if !matches!(
            self.wait_for_event(Some(END_TIMEOUT))?,
            CommandEvent::Ended(_)
        ) {
            self.send_signal(Signal::SIGKILL);
            self.child.wait().context(WAIT_FAILED)?;
        }
        // Without a group of its own, the command's remaining processes cannot be found.
        if self.group == CommandGroup::Shared {
            return Ok(());
        }
        // Background processes of a shell ignore SIGINT (POSIX, Shell Command Language, 2.11).
        let deadline = Instant::now() + GROUP_END_TIMEOUT;
        while has_processes(self.child.id()) {
            let signal = self.signals.read_signal();
            if Instant::now() > deadline || matches!(signal, Ok(Some(_))) {
                self.send_signal(Signal::SIGKILL);
                break;
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Sends a signal to the command's group, or to the command alone if it shares the group of this program. Ignores
    /// errors.
    fn send_signal(&self, signal: Signal) {
        self.group.send_signal(&self.process, signal);
    }
}
