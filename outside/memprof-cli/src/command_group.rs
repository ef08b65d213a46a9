//! The process group of a command that memprof starts, waits for and passes signals on to.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use memprof_ptrace::pidfd::PidFd;
use nix::sys::signal::Signal;

/// The process group that a command runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandGroup {
    /// The command's own, so that a signal reaches all its processes.
    Own,
    /// This program's own, which is in the foreground of a terminal: only then the command may read from the
    /// terminal.
    Shared,
}

impl CommandGroup {
    /// Chooses the group for a command, and makes the command start in it.
    ///
    /// # Errors
    /// /proc/self/stat cannot be read.
    pub(crate) fn choose(command: &mut Command) -> anyhow::Result<Self> {
        let stat = fs::read_to_string("/proc/self/stat").context("/proc/self/stat")?;
        let group = Self::from_stat(&stat);
        if group == Self::Own {
            command.process_group(0);
        }
        Ok(group)
    }

    /// Returns `Shared` if this program's process group is in the foreground of its terminal, by the text of its
    /// /proc/PID/stat. Returns `Own` otherwise, also for a text that lacks the group or the foreground group.
    fn from_stat(stat: &str) -> Self {
        // proc(5) counts the fields from 1; the first one after the name is the state, field 3.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let field = |number: usize| fields.split_ascii_whitespace().nth(number - 3);
        let (group, foreground) = (field(5), field(8));
        match group.is_some() && group == foreground {
            true => Self::Shared,
            false => Self::Own,
        }
    }

    /// Returns whether the command has itself received a signal that this program received with the origin `si_code`
    /// (sigaction(2)). A terminal sends its signals to the whole foreground group; only the SIGHUP when it closes goes
    /// to the session's leader alone.
    pub(crate) fn has_received(self, signal: Signal, si_code: i32) -> bool {
        self == Self::Shared && si_code == libc::SI_KERNEL && signal != Signal::SIGHUP
    }

    /// Sends a signal to the whole group of a command if it has its own, else to the command alone. Errors are
    /// ignored.
    pub(crate) fn send_signal(self, command: &PidFd, signal: Signal) {
        let sent = match self {
            Self::Own => command.send_signal_to_group(signal),
            Self::Shared => command.send_signal(signal),
        };
        // The call fails if all processes have ended, or changed to another user.
        let _ = sent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_terminal_signals_only_the_leader_of_its_session() {
        let check = |signal, si_code, expected| {
            let received = CommandGroup::Shared.has_received(signal, si_code);
            assert_eq!(received, expected, "{signal} {si_code}");
            assert!(!CommandGroup::Own.has_received(signal, si_code));
        };
        check(Signal::SIGINT, libc::SI_KERNEL, true);
        check(Signal::SIGINT, libc::SI_USER, false);
        check(Signal::SIGHUP, libc::SI_KERNEL, false);
    }

    #[test]
    fn command_shares_the_group_only_in_the_foreground() {
        let check =
            |stat: &str, expected| assert_eq!(CommandGroup::from_stat(stat), expected, "{stat}");
        check("7 (memprof) R 1 7 7 34816 7 4194304", CommandGroup::Shared);
        check("7 (a) b) R 1 7 7 34816 7 4194304", CommandGroup::Shared);
        check("7 (memprof) R 1 7 7 34816 9 4194304", CommandGroup::Own);
        check("7 (memprof) R 1 7 7 0 -1 4194304", CommandGroup::Own);
        check("", CommandGroup::Own);
    }
}
