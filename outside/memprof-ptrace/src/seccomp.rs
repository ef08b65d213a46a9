//! Whether the seccomp filters of a thread, and its user dispatch, let live what is put into its process.
//!
//! A filter may end the process at a system call that it does not know. Its programs are read from the
//! kernel and run here, for each call that the plugin makes, before anything is touched.

mod calls;
mod dispatch;
mod filter;
mod program;
mod rseq;

use nix::errno::Errno;

pub use filter::filters;
pub use program::{BpfInstruction, FilterAction, SeccompData, UndecidedFilter, evaluate};
pub use rseq::{Rseq, area as rseq_area};

use crate::process::{ProcStatus, SeccompMode};
use crate::refusal::Refusal;
use calls::{OPTIONAL, REQUIRED, RSEQ, SNAPSHOT, SyscallRequirement, UNLOCKS};

/// Fails where a call that the plugin makes is answered so that it could not be loaded, or would end
/// the process. The thread must be one that the caller has stopped by ptrace(2); a new thread that it
/// makes has the same filters.
///
/// # Errors
/// `UserDispatch`; `ForbiddenCall`, `StrictSeccomp`; `UnreadFilter` without `CAP_SYS_ADMIN` or where the caller has a
/// filter too; `UnreadableFilter`.
pub fn require_calls(thread: u32) -> Result<(), Refusal> {
    let locks = ProcStatus::read_thread(thread)?.locked > 0;
    require(thread, |filters| {
        match forbidden(filters, rseq::rseq(thread))? {
            None if locks && evaluate(filters, &UNLOCKS.call)?.kills_process() => {
                Ok(Some(UNLOCKS.name))
            }
            found => Ok(found),
        }
    })
}

/// The same for the calls that a snapshot is made by: clone(2) of the process, wait4(2), and the way home.
///
/// # Errors
/// As [`require_calls`].
pub fn require_snapshot_calls(thread: u32) -> Result<(), Refusal> {
    require(thread, |filters| first_missing(filters, SNAPSHOT))
}

fn require(
    thread: u32,
    forbidden: impl FnOnce(&[Vec<BpfInstruction>]) -> Result<Option<&'static str>, UndecidedFilter>,
) -> Result<(), Refusal> {
    let seccomp = ProcStatus::read_thread(thread)?.seccomp;
    dispatch::require_none(thread)?;
    match seccomp {
        SeccompMode::Off => return Ok(()),
        SeccompMode::Strict => return Err(Refusal::StrictSeccomp),
        SeccompMode::Filter => {}
    }
    let filters = filters(thread).map_err(|errno| match errno {
        Errno::EACCES => Refusal::UnreadFilter,
        errno => Refusal::UnreadableFilter(errno.desc().to_owned()),
    })?;
    match forbidden(&filters) {
        Ok(None) => Ok(()),
        Ok(Some(call)) => Err(Refusal::ForbiddenCall { call }),
        Err(error) => Err(Refusal::UnreadableFilter(error.to_string())),
    }
}

/// The first call that the filters forbid, of those that the plugin makes.
///
/// # Errors
/// A filter asks what is not known before, or is none of seccomp(2)'s.
pub fn forbidden(
    filters: &[Vec<BpfInstruction>],
    rseq: Rseq,
) -> Result<Option<&'static str>, UndecidedFilter> {
    let rseq = (rseq == Rseq::Required).then_some(&RSEQ);
    if let Some(call) = first_missing(filters, REQUIRED.iter().chain(rseq))? {
        return Ok(Some(call));
    }
    for call in OPTIONAL {
        if evaluate(filters, &call.call)?.kills_process() {
            return Ok(Some(call.name));
        }
    }
    Ok(None)
}

fn first_missing(
    filters: &[Vec<BpfInstruction>],
    needs: impl IntoIterator<Item = &'static SyscallRequirement>,
) -> Result<Option<&'static str>, UndecidedFilter> {
    for need in needs {
        if let Some(call) = missing(filters, need)? {
            return Ok(Some(call));
        }
    }
    Ok(None)
}

/// The call without which a need is not met.
fn missing(
    filters: &[Vec<BpfInstruction>],
    need: &'static SyscallRequirement,
) -> Result<Option<&'static str>, UndecidedFilter> {
    let mut last = None;
    for call in need.calls() {
        match evaluate(filters, &call.call)? {
            FilterAction::Allowed => return Ok(None),
            // The C library makes the next call in its place.
            FilterAction::Error(errno) if errno == Errno::ENOSYS as u16 => last = Some(call.name),
            _ => return Ok(Some(call.name)),
        }
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

    /// Answers each of the calls so, and all others otherwise.
    fn filter(calls: &[(libc::c_long, u32)], otherwise: u32) -> Vec<BpfInstruction> {
        let plain = |code: u32, operand| BpfInstruction {
            code: code as u16,
            operand,
            ..BpfInstruction::default()
        };
        let mut filter = vec![plain(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
        for (number, value) in calls {
            filter.push(BpfInstruction {
                code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
                if_true: 0,
                if_false: 1,
                operand: *number as u32,
            });
            filter.push(plain(libc::BPF_RET | libc::BPF_K, *value));
        }
        filter.push(plain(libc::BPF_RET | libc::BPF_K, otherwise));
        filter
    }

    fn errno(errno: Errno) -> u32 {
        libc::SECCOMP_RET_ERRNO | errno as u32
    }

    #[test]
    fn calls_that_a_filter_forbids() {
        let check = |calls: &[(libc::c_long, u32)], expected| {
            let found = forbidden(&[filter(calls, ALLOW)], Rseq::Required);
            assert_eq!(found, Ok(expected), "{calls:x?}");
        };
        check(&[], None);
        check(&[(libc::SYS_reboot, KILL)], None);
        check(&[(libc::SYS_clone3, KILL)], Some("clone3"));
        check(&[(libc::SYS_clone3, errno(Errno::EPERM))], Some("clone3"));
        check(
            &[(libc::SYS_clone3, libc::SECCOMP_RET_TRAP)],
            Some("clone3"),
        );
        check(
            &[(libc::SYS_clone3, libc::SECCOMP_RET_USER_NOTIF)],
            Some("clone3"),
        );
        check(&[(libc::SYS_clone3, libc::SECCOMP_RET_LOG)], None);
        // As systemd's RestrictNamespaces and container runtimes answer it: glibc calls clone then.
        let unknown = (libc::SYS_clone3, errno(Errno::ENOSYS));
        check(&[unknown], None);
        check(&[unknown, (libc::SYS_clone, KILL)], Some("clone"));
        check(
            &[unknown, (libc::SYS_clone, errno(Errno::ENOSYS))],
            Some("clone"),
        );
        // A call that may fail, but not end the process.
        check(&[(libc::SYS_prctl, errno(Errno::EPERM))], None);
        check(
            &[(libc::SYS_prctl, libc::SECCOMP_RET_KILL_THREAD)],
            Some("prctl"),
        );
        // One that pretends to have succeeded.
        check(&[(libc::SYS_mmap, libc::SECCOMP_RET_ERRNO)], Some("mmap"));
    }

    /// glibc ends a process whose new thread cannot call what the one that made it could.
    #[test]
    fn rseq_must_not_fail_where_it_is_used() {
        let filters = [filter(&[(libc::SYS_rseq, errno(Errno::EPERM))], ALLOW)];
        assert_eq!(forbidden(&filters, Rseq::Required), Ok(Some("rseq")));
        assert_eq!(forbidden(&filters, Rseq::Unused), Ok(None));
    }

    #[test]
    fn a_list_of_what_is_allowed() {
        let mut allowed: Vec<_> = REQUIRED
            .iter()
            .flat_map(SyscallRequirement::calls)
            .chain(OPTIONAL)
            .chain(RSEQ.calls())
            .collect();
        allowed.sort_by_key(|call| call.call.number);
        let all: Vec<_> = allowed
            .iter()
            .map(|call| (libc::c_long::from(call.call.number), ALLOW))
            .collect();
        assert_eq!(forbidden(&[filter(&all, KILL)], Rseq::Required), Ok(None));
        // Nobody calls clone where there is clone3.
        for call in allowed.iter().filter(|call| call.name != "clone") {
            let others = all
                .iter()
                .filter(|(number, _)| *number as u32 != call.call.number);
            let others: Vec<_> = others.copied().collect();
            let found = forbidden(&[filter(&others, KILL)], Rseq::Required);
            assert_eq!(found, Ok(Some(call.name)));
        }
    }

    #[test]
    fn the_most_severe_filter_decides() {
        let kills = filter(&[(libc::SYS_socket, KILL)], ALLOW);
        let fails = filter(&[(libc::SYS_socket, errno(Errno::EPERM))], ALLOW);
        for filters in [[kills.clone(), fails.clone()], [fails, kills]] {
            assert_eq!(forbidden(&filters, Rseq::Required), Ok(Some("socket")));
        }
    }
}
