//! The reason why a process that does not answer cannot.

use std::fmt;
use std::time::{Duration, Instant};

use crate::freezer::FreezerCgroups;
use crate::proc_dir::ProcDir;
use crate::process::{ProcStatus, ProcessState};

/// Between two looks at a process.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// A process none of whose threads goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halt {
    pid: u32,
    by: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// SIGSTOP and its relatives, which stop all threads.
    Signal,
    /// The process with that pid.
    Tracer(u32),
    Cgroup,
    End,
}

impl Halt {
    /// Looks at the main thread, and at the cgroup. `None` where the process goes on, where that is not to be seen, and
    /// where its main thread has ended before others.
    pub fn of(pid: u32) -> Option<Self> {
        let directory = ProcDir::for_pid(pid);
        let status = match directory.parse("status", ProcStatus::parse) {
            Ok(status) => status,
            Err(_) => return None,
        };
        let is_frozen = || {
            let cgroups = directory.read("cgroup").unwrap_or_default();
            FreezerCgroups::mounted().is_frozen(&String::from_utf8_lossy(&cgroups))
        };
        let by = match status.state {
            ProcessState::Stopped => Cause::Signal,
            ProcessState::Traced => Cause::Tracer(status.tracer.unwrap_or(0)),
            ProcessState::Zombie if status.threads <= 1 => Cause::End,
            ProcessState::Zombie => return None,
            ProcessState::Alive if is_frozen() => Cause::Cgroup,
            ProcessState::Alive => return None,
        };
        Some(Self { pid, by })
    }

    /// Whether it has ended, and waits for its parent.
    pub fn is_end(&self) -> bool {
        self.by == Cause::End
    }
}

/// A process that is waited for, looked at now and then.
#[derive(Debug)]
pub struct HaltWatch {
    pid: u32,
    next: Instant,
    was_halted: bool,
}

impl HaltWatch {
    /// The first look is taken a little later: most waits are short.
    pub fn new(pid: u32) -> Self {
        Self {
            pid,
            next: Instant::now() + POLL_INTERVAL,
            was_halted: false,
        }
    }

    /// Looks if it is time for that. `None` unless it was halted at the look before too: a tracer stops a process for a
    /// moment, as memprof itself does.
    pub fn look(&mut self) -> Option<Halt> {
        if Instant::now() < self.next {
            return None;
        }
        self.next = Instant::now() + POLL_INTERVAL;
        let halt = Halt::of(self.pid);
        let was_halted = std::mem::replace(&mut self.was_halted, halt.is_some());
        halt.filter(|_| was_halted)
    }
}

impl fmt::Display for Halt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.pid;
        match self.by {
            Cause::Signal => write!(
                out,
                "it is stopped (SIGSTOP); continue it first (kill -CONT {pid})"
            ),
            Cause::Tracer(tracer) => write!(
                out,
                "it is held still by process {tracer}, which traces it (a debugger?); have that one continue it"
            ),
            Cause::Cgroup => out.write_str(
                "it is frozen by its cgroup; thaw it first (docker unpause, systemctl thaw)",
            ),
            Cause::End => out.write_str("it has ended"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn processes_that_cannot_go_on_are_told_with_the_reason() {
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = sleeper.id();
        let process = Pid::from_raw(pid.cast_signed());
        let wait = |event| {
            waitid(Id::Pid(process), event | WaitPidFlag::WNOWAIT).unwrap();
        };
        let halt = || Halt::of(pid).map(|halt| halt.by);
        assert_eq!(halt(), None);
        kill(process, Signal::SIGSTOP).unwrap();
        wait(WaitPidFlag::WSTOPPED);
        assert_eq!(halt(), Some(Cause::Signal));
        let words = Halt::of(pid).unwrap().to_string();
        assert_eq!(
            words,
            format!("it is stopped (SIGSTOP); continue it first (kill -CONT {pid})")
        );
        kill(process, Signal::SIGCONT).unwrap();
        wait(WaitPidFlag::WCONTINUED);
        assert_eq!(halt(), None);
        kill(process, Signal::SIGKILL).unwrap();
        wait(WaitPidFlag::WEXITED);
        assert_eq!(halt(), Some(Cause::End));
        sleeper.wait().unwrap();
        assert_eq!(halt(), None);
    }
}
