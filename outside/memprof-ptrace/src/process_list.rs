//! Lists the processes of this machine, with whether they can be attached to.

use crate::examine::{ExaminedProcess, Purpose};
use crate::proc_dir::ProcDir;
use crate::process::ProcStatus;
use crate::refusal::{Denial, Refusal};
use crate::tracer::TracerCredentials;

/// A process with the result of its examination.
#[derive(Clone, Debug)]
pub struct ListedProcess {
    /// Pid in this process's pid namespace.
    pub pid: u32,
    /// Contents of /proc/PID/status.
    pub status: ProcStatus,
    /// Command line, its arguments joined by spaces; empty if the process has cleared it.
    pub command: String,
    /// Contents of /proc/PID/maps; empty if this user may not read it.
    pub maps: Vec<u8>,
    /// Contents of /proc/PID/cgroup; empty if it cannot be read.
    pub cgroups: Vec<u8>,
    /// Whether it can be attached to, as far as that is known without reading its memory.
    pub outcome: Result<ExaminedProcess, Refusal>,
    /// Whether its memory can be read, as far as that is known.
    pub is_readable: bool,
}

/// Result of looking at one pid.
#[derive(Debug)]
pub enum ListResult {
    /// A process of this user, or for root of any user.
    Process(Box<ListedProcess>),
    /// A process of another user.
    OtherUser,
    /// A process whose status cannot be read or parsed.
    Unreadable,
    /// A kernel thread, a process that has ended, or this process.
    Omitted,
}

/// Examines processes for a list. Stops none of them, and reads no memory.
#[derive(Clone, Debug)]
pub struct ProcessLister {
    caller: TracerCredentials,
}

impl ProcessLister {
    /// Reads the credentials of this process.
    ///
    /// # Errors
    /// `Unreadable`: there is no /proc.
    pub fn new() -> Result<Self, Refusal> {
        Ok(Self {
            caller: TracerCredentials::current()?,
        })
    }

    /// Lists the pids of all processes, including this one and kernel threads.
    ///
    /// # Errors
    /// `Unreadable`: /proc cannot be listed.
    pub fn list_pids(&self) -> Result<Vec<u32>, Refusal> {
        Ok(ProcDir::list_pids()?.collect())
    }

    /// Examines one process. Omits it if it has ended, or if it is this process or a kernel thread. If another user's
    /// process may not be traced, or /proc hides it, returns only that it is another user's. The kernel may wait for
    /// the process's lock on its mappings, or for its file system, without a limit.
    pub fn examine(&self, pid: u32) -> ListResult {
        let proc_dir = ProcDir::for_pid_cached(pid);
        let status = match proc_dir.parse_file("status", ProcStatus::parse) {
            Ok(status) => status,
            Err(refusal) => return result_for_unread_process(&refusal),
        };
        let examine = |purpose| {
            self.caller
                .examine_process_with_status(purpose, &proc_dir, pid, status.clone())
        };
        let outcome = examine(Purpose::List);
        match outcome {
            Err(
                Refusal::NoSuchProcess | Refusal::Zombie | Refusal::KernelThread | Refusal::Itself,
            ) => ListResult::Omitted,
            Err(Refusal::Denied {
                denial: Denial::OtherUser(_),
                ..
            }) => ListResult::OtherUser,
            outcome => ListResult::Process(Box::new(ListedProcess {
                pid,
                command: proc_dir.command_line(),
                maps: proc_dir.read("maps").unwrap_or_default(),
                cgroups: proc_dir.read("cgroup").unwrap_or_default(),
                is_readable: outcome.is_ok() || examine(Purpose::Read).is_ok(),
                outcome,
                status,
            })),
        }
    }
}

/// Returns the result for a process whose status could not be read, for the reason `refusal`.
fn result_for_unread_process(refusal: &Refusal) -> ListResult {
    match refusal {
        // The process has ended meanwhile.
        Refusal::NoSuchProcess => ListResult::Omitted,
        // /proc hides the files of other users' processes.
        Refusal::Denied { .. } => ListResult::OtherUser,
        _ => ListResult::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn process_without_status_is_omitted_only_if_it_has_ended() {
        let file = || "/proc/7/status".to_owned();
        let hidden = Refusal::Denied {
            file: file(),
            errno: Errno::EPERM,
            denial: Denial::Hidden,
        };
        let malformed = Refusal::Unreadable {
            file: file(),
            cause: "field NSpid is missing or malformed".to_owned(),
        };
        let of = |refusal| result_for_unread_process(&refusal);
        assert!(matches!(of(Refusal::NoSuchProcess), ListResult::Omitted));
        assert!(matches!(of(hidden), ListResult::OtherUser));
        assert!(matches!(of(malformed), ListResult::Unreadable));
    }

    #[test]
    fn this_process_is_omitted() {
        let lister = ProcessLister::new().unwrap();
        let own = lister.examine(std::process::id());
        assert!(matches!(own, ListResult::Omitted));
        let ended = lister.examine(u32::MAX >> 2);
        assert!(matches!(ended, ListResult::Omitted));
    }
}
