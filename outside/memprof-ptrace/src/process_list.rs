//! The processes of this machine, and which of them can be attached to.

use crate::examine::{ExaminedProcess, Purpose};
use crate::proc_dir::ProcDir;
use crate::process::ProcStatus;
use crate::refusal::{Denial, Refusal};
use crate::tracer::TracerCredentials;

/// A process that can be attached to, or why not.
#[derive(Clone, Debug)]
pub struct ListedProcess {
    /// Its pid here.
    pub pid: u32,
    /// What /proc/PID/status says.
    pub status: ProcStatus,
    /// What it was called with, joined by blanks; empty where it has removed that.
    pub command: String,
    /// Whether it can be attached to, as far as is known without its memory.
    pub outcome: Result<ExaminedProcess, Refusal>,
}

/// The processes that are shown.
#[derive(Debug)]
pub struct ProcessList {
    /// Those of this user, for root those of all users: the one with the most resident memory first.
    pub processes: Vec<ListedProcess>,
    /// The number of processes of other users.
    pub of_others: usize,
}

/// Looks at every process but this one, and stops none. Threads of the kernel and processes that have
/// ended are left out.
///
/// # Errors
/// `Unreadable`: there is no /proc.
pub fn list_processes() -> Result<ProcessList, Refusal> {
    let caller = TracerCredentials::current()?;
    let mut survey = ProcessList {
        processes: Vec::new(),
        of_others: 0,
    };
    for pid in ProcDir::list_pids()? {
        let of = ProcDir::for_pid(pid);
        // It ended meanwhile.
        let Ok(status) = of.parse("status", ProcStatus::parse) else {
            continue;
        };
        let outcome = caller.examine_with_status(Purpose::List, &of, pid, status.clone());
        match outcome {
            Err(
                Refusal::NoSuchProcess | Refusal::Zombie | Refusal::KernelThread | Refusal::Itself,
            ) => {}
            Err(Refusal::Denied {
                denial: Denial::OtherUser(_),
                ..
            }) => survey.of_others += 1,
            outcome => survey.processes.push(ListedProcess {
                pid,
                status,
                command: of.command(),
                outcome,
            }),
        }
    }
    survey
        .processes
        .sort_by_key(|process| std::cmp::Reverse(process.status.resident));
    Ok(survey)
}
