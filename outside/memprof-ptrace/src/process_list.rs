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

/// Processes that the user may see.
#[derive(Debug)]
pub struct ProcessList {
    /// Processes of this user, or for root of all users, by resident memory in descending order.
    pub processes: Vec<ListedProcess>,
    /// Number of processes of other users.
    pub other_user_count: usize,
}

/// Examines every process but this one, and stops none. Skips kernel threads and processes that have ended.
///
/// # Errors
/// `Unreadable`: there is no /proc.
pub fn list_processes() -> Result<ProcessList, Refusal> {
    let caller = TracerCredentials::current()?;
    let mut list = ProcessList {
        processes: Vec::new(),
        other_user_count: 0,
    };
    for pid in ProcDir::list_pids()? {
        let proc_dir = ProcDir::for_pid_once(pid);
        // The process has ended meanwhile.
        let Ok(status) = proc_dir.parse("status", ProcStatus::parse) else {
            continue;
        };
        let outcome = caller.examine_with_status(Purpose::List, &proc_dir, pid, status.clone());
        match outcome {
            Err(
                Refusal::NoSuchProcess | Refusal::Zombie | Refusal::KernelThread | Refusal::Itself,
            ) => {}
            Err(Refusal::Denied {
                denial: Denial::OtherUser(_),
                ..
            }) => list.other_user_count += 1,
            outcome => {
                let examine_to_read =
                    || caller.examine_with_status(Purpose::Read, &proc_dir, pid, status.clone());
                list.processes.push(ListedProcess {
                    pid,
                    command: proc_dir.command(),
                    maps: proc_dir.read("maps").unwrap_or_default(),
                    cgroups: proc_dir.read("cgroup").unwrap_or_default(),
                    is_readable: outcome.is_ok() || examine_to_read().is_ok(),
                    status,
                    outcome,
                });
            }
        }
    }
    list.processes
        .sort_by_key(|process| std::cmp::Reverse(process.status.resident));
    Ok(list)
}
