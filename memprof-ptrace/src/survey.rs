//! The processes of this machine, and which of them can be attached to.

use crate::caller::Caller;
use crate::directory::Directory;
use crate::examine::{Examined, Purpose};
use crate::process::Status;
use crate::refusal::{Denial, Refusal};

/// A process that can be attached to, or why not.
#[derive(Clone, Debug)]
pub struct Surveyed {
    /// Its pid here.
    pub pid: u32,
    /// What /proc/PID/status says.
    pub status: Status,
    /// What it was called with, joined by blanks; empty where it has removed that.
    pub command: String,
    /// Whether it can be attached to, as far as is known without its memory.
    pub outcome: Result<Examined, Refusal>,
}

/// The processes that are shown.
#[derive(Debug)]
pub struct Survey {
    /// Those of this user, for root those of all users: the one with the most resident memory first.
    pub processes: Vec<Surveyed>,
    /// The number of processes of other users.
    pub of_others: usize,
}

/// Looks at every process but this one, and stops none. Threads of the kernel and processes that have
/// ended are left out.
///
/// # Errors
/// `Unreadable`: there is no /proc.
pub fn survey() -> Result<Survey, Refusal> {
    let caller = Caller::own()?;
    let mut survey = Survey {
        processes: Vec::new(),
        of_others: 0,
    };
    for pid in Directory::all()? {
        let of = Directory::of(pid);
        // It ended meanwhile.
        let Ok(status) = of.parse("status", Status::parse) else {
            continue;
        };
        let outcome = caller.examine_known(Purpose::List, &of, pid, status.clone());
        match outcome {
            Err(
                Refusal::NoSuchProcess | Refusal::Zombie | Refusal::KernelThread | Refusal::Itself,
            ) => {}
            Err(Refusal::Denied {
                denial: Denial::OtherUser(_),
                ..
            }) => survey.of_others += 1,
            outcome => survey.processes.push(Surveyed {
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
