//! The tested command, which ends with its process group where `memprof test` is asked to end.

use std::fs;
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use memprof_ptrace::process::ProcStat;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::command_group::CommandGroup;
use crate::interrupts;

/// Until the command is killed that was asked to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Until the processes are killed that it leaves then.
const REST_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The end of the tested command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandEnd {
    /// By itself.
    Status(ExitStatus),
    /// Because this program got this signal.
    Interrupted(Signal),
}

/// Runs a command to its end, or to a signal that asks this program to end. That signal is passed on.
///
/// # Errors
/// It cannot be started or waited for.
pub(super) fn run(command: &mut Command) -> anyhow::Result<CommandEnd> {
    let signals = interrupts::block()?;
    let end = run_blocking(command, &signals);
    // One that came when the command had ended ends this program.
    signals
        .thread_unblock()
        .context("failed to unblock signals")?;
    end
}

fn run_blocking(command: &mut Command, signals: &SigSet) -> anyhow::Result<CommandEnd> {
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let signals = SignalFd::with_flags(signals, flags).context("failed to watch for signals")?;
    let group = CommandGroup::choose(command)?;
    let child = command.spawn()?;
    let mut tested = Tested {
        child,
        group,
        signals,
    };
    match tested.wait(None)? {
        Event::Ended(status) => Ok(CommandEnd::Status(status)),
        Event::Signal { signal, is_shared } => {
            tested.end(signal, is_shared)?;
            Ok(CommandEnd::Interrupted(signal))
        }
        Event::Timeout => unreachable!("there is no limit"),
    }
}

/// Whether a process group has processes that have not ended. Zombies stay where the first process of a container
/// reaps none.
fn has_processes(group: u32) -> bool {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut stats = entries.filter_map(|entry| {
        let text = fs::read(entry.path().join("stat")).ok()?;
        ProcStat::parse(&text).ok()
    });
    stats.any(|stat| stat.group == group && !stat.is_zombie)
}

#[derive(Debug)]
struct Tested {
    child: Child,
    group: CommandGroup,
    signals: SignalFd,
}

enum Event {
    Ended(ExitStatus),
    /// `is_shared`: the terminal has sent it to the whole group.
    Signal {
        signal: Signal,
        is_shared: bool,
    },
    Timeout,
}

impl Tested {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Waits until the command ends or a signal comes, and for `limit` at most.
    fn wait(&mut self, limit: Option<Duration>) -> anyhow::Result<Event> {
        let failed = "failed to wait for the command";
        let pid = rustix::process::Pid::from_child(&self.child);
        let process = pidfd_open(pid, PidfdFlags::empty()).context(failed)?;
        let limit = limit.map(Timespec::try_from).transpose().context(failed)?;
        let signals = self.signals.as_fd();
        let mut events = [
            PollFd::new(&process, PollFlags::IN),
            PollFd::from_borrowed_fd(signals, PollFlags::IN),
        ];
        let count = rustix::io::retry_on_intr(|| poll(&mut events, limit.as_ref()));
        if count.context(failed)? == 0 {
            return Ok(Event::Timeout);
        }
        // First, because it may have ended by the same signal.
        if let Some(info) = self.signals.read_signal().context(failed)? {
            let signal = Signal::try_from(info.ssi_signo.cast_signed()).context(failed)?;
            let is_shared = self.group.has_received(info.ssi_code);
            return Ok(Event::Signal { signal, is_shared });
        }
        Ok(Event::Ended(self.child.wait().context(failed)?))
    }

    /// Passes a signal on, and kills what is left after a while or by a second signal.
    fn end(&mut self, signal: Signal, is_shared: bool) -> anyhow::Result<()> {
        if !is_shared {
            self.send(signal);
            // A stopped process takes the signal when it goes on.
            self.send(Signal::SIGCONT);
        }
        if !matches!(self.wait(Some(END_TIMEOUT))?, Event::Ended(_)) {
            self.send(Signal::SIGKILL);
            self.child
                .wait()
                .context("failed to wait for the command")?;
        }
        if self.group == CommandGroup::Shared {
            return Ok(());
        }
        // Background processes of a shell ignore SIGINT (POSIX, Shell Command Language, 2.11).
        let deadline = Instant::now() + REST_TIMEOUT;
        while has_processes(self.child.id()) {
            let signal = self.signals.read_signal();
            if Instant::now() > deadline || matches!(signal, Ok(Some(_))) {
                self.send(Signal::SIGKILL);
                break;
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn send(&self, signal: Signal) {
        self.group.send(self.pid(), signal);
    }
}
