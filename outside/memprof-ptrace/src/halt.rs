//! Reason why a process cannot reply: it is stopped, frozen or has ended.

use std::fmt;
use std::time::{Duration, Instant};

use crate::freezer::FreezerCgroups;
use crate::proc_dir::ProcDir;
use crate::process::{ProcStatus, ProcessState};

/// Time between two checks of a process.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// A process in which no thread runs, with the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halt {
    pid: u32,
    cause: HaltCause,
}

/// Cause why no thread of a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HaltCause {
    /// SIGSTOP, SIGTSTP, SIGTTIN or SIGTTOU, which stop all threads.
    Signal,
    /// Stopped by the tracer with that pid; `None` if it is outside of this pid namespace.
    Tracer(Option<u32>),
    Cgroup,
    End,
}

impl Halt {
    /// Finds out why no thread of process `pid` runs, by the state of its main thread and of its cgroup. `None` if the
    /// process runs, if its status cannot be read (the process may have ended and been waited for), or if its main
    /// thread has ended and others have not.
    pub fn for_pid(pid: u32) -> Option<Self> {
        let directory = ProcDir::for_pid(pid);
        let status = match directory.parse_file("status", ProcStatus::parse) {
            Ok(status) => status,
            Err(_) => return None,
        };
        let is_frozen = || {
            let cgroups = directory.read("cgroup").unwrap_or_default();
            FreezerCgroups::read().is_frozen(&String::from_utf8_lossy(&cgroups))
        };
        let cause = match status.state {
            ProcessState::Stopped => HaltCause::Signal,
            ProcessState::Traced => {
                HaltCause::Tracer(status.tracer.map(ProcStatus::process_of_thread))
            }
            ProcessState::Zombie if status.threads <= 1 => HaltCause::End,
            ProcessState::Zombie => return None,
            ProcessState::Alive if is_frozen() => HaltCause::Cgroup,
            ProcessState::Alive => return None,
        };
        Some(Self { pid, cause })
    }

    /// Returns whether the process has ended and its parent has not waited for it.
    pub fn has_ended(&self) -> bool {
        self.cause == HaltCause::End
    }
}

/// Checks a process repeatedly while something waits for it.
#[derive(Debug)]
pub struct HaltWatch {
    pid: u32,
    next: Instant,
    was_halted: bool,
}

impl HaltWatch {
    /// Starts the watch of process `pid`. The first check is due after 200 ms, because most waits are shorter.
    pub fn new(pid: u32) -> Self {
        Self {
            pid,
            next: Instant::now() + POLL_INTERVAL,
            was_halted: false,
        }
    }

    /// Checks the process if a check is due, 200 ms after the previous one. Returns the halt if both checks found one:
    /// a single one is ignored, because a tracer such as memprof itself stops a process for a moment. `None` otherwise.
    pub fn poll(&mut self) -> Option<Halt> {
        if Instant::now() < self.next {
            return None;
        }
        self.next = Instant::now() + POLL_INTERVAL;
        let halt = Halt::for_pid(self.pid);
        let was_halted = std::mem::replace(&mut self.was_halted, halt.is_some());
        halt.filter(|_| was_halted)
    }
}

impl fmt::Display for Halt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.pid;
        match self.cause {
            HaltCause::Signal => write!(
                out,
                "it is stopped (SIGSTOP); continue it first (kill -CONT {pid})"
            ),
            HaltCause::Tracer(Some(tracer)) => write!(
                out,
                "it is held still by process {tracer}, which traces it (a debugger?); have that one continue it"
            ),
            HaltCause::Tracer(None) => out.write_str(
                "it is held still by a process outside of this container, which traces it (a debugger?); have that one \
                 continue it",
            ),
            HaltCause::Cgroup => out.write_str(
                "it is frozen by its cgroup; thaw it first (docker unpause, systemctl thaw)",
            ),
            HaltCause::End => out.write_str("it has ended"),
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
    fn tracer_is_named_if_it_is_visible() {
        let words = |tracer| {
            let cause = HaltCause::Tracer(tracer);
            Halt { pid: 7, cause }.to_string()
        };
        assert!(words(Some(12)).contains("by process 12, which traces it"));
        assert!(words(None).contains("by a process outside of this container, which traces it"));
    }

    #[test]
    fn halted_processes_are_reported_with_the_cause() {
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = sleeper.id();
        let process = Pid::from_raw(pid.cast_signed());
        let wait = |event| {
            waitid(Id::Pid(process), event | WaitPidFlag::WNOWAIT).unwrap();
        };
        let halt = || Halt::for_pid(pid).map(|halt| halt.cause);
        assert_eq!(halt(), None);
        kill(process, Signal::SIGSTOP).unwrap();
        wait(WaitPidFlag::WSTOPPED);
        assert_eq!(halt(), Some(HaltCause::Signal));
        let words = Halt::for_pid(pid).unwrap().to_string();
        assert_eq!(
            words,
            format!("it is stopped (SIGSTOP); continue it first (kill -CONT {pid})")
        );
        kill(process, Signal::SIGCONT).unwrap();
        wait(WaitPidFlag::WCONTINUED);
        assert_eq!(halt(), None);
        kill(process, Signal::SIGKILL).unwrap();
        wait(WaitPidFlag::WEXITED);
        assert_eq!(halt(), Some(HaltCause::End));
        sleeper.wait().unwrap();
        assert_eq!(halt(), None);
    }
}
