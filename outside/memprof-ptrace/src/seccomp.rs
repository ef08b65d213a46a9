//! Checks that the seccomp filters, the user dispatch, the namespaces and the scheduling policy of a thread allow what
//! the plugin does in its process.
//!
//! A filter may kill the process at a system call that it does not allow. So its programs are read from the kernel
//! and run here, for each call that the plugin makes, before the process is changed.

mod calls;
mod child_namespace;
mod deadline;
mod dispatch;
mod filter;
mod program;
mod rseq;

use nix::errno::Errno;

pub use filter::read_filters;
pub use program::{BpfInstruction, FilterAction, SeccompData, UndecidedFilter, evaluate_filters};
pub use rseq::{Rseq, rseq_area};

use crate::process::{ProcStatus, SeccompMode};
use crate::refusal::Refusal;
use calls::{
    ENABLE_CPUID, ENABLE_TIME_STAMPS, MUNLOCK, OPTIONAL, OWN_DESCRIPTORS, REQUIRED, RSEQ,
    SIGNAL_STACK, SNAPSHOT, SyscallRequirement,
};

/// Fails if a filter would end the process or hold the thread at a call of the plugin, or deny a call without which the
/// plugin cannot be loaded. The caller must have stopped the thread by ptrace(2). Threads that it creates have the same
/// filters.
///
/// # Errors
/// `UserDispatch`: the thread redirects its system calls; `ChildNamespace`: its children are of another pid namespace;
/// `Deadline`: its scheduling policy forbids it to make threads; `ForbiddenCall`: a filter forbids one of the calls;
/// `StrictSeccomp`: the thread has strict mode; `UnreadFilter`: the caller lacks `CAP_SYS_ADMIN` or has a filter
/// too; `UnreadableFilter`: a filter cannot be read for another reason, or its result is unknown.
pub fn require_plugin_calls(thread: u32) -> Result<(), Refusal> {
    child_namespace::require_same_namespaces(thread, &["pid"])?;
    deadline::require_policy_that_forks(thread)?;
    let has_locked_memory = ProcStatus::read_thread(thread)?.locked > 0;
    require_no_forbidden_call(thread, |filters| {
        match forbidden_call(filters, rseq::rseq_use_of_new_threads(thread))? {
            // The plugin calls munlock(2) only if mlockall(2) has locked its memory.
            None if has_locked_memory && evaluate_filters(filters, &MUNLOCK.call)?.is_harmful() => {
                Ok(Some(MUNLOCK.name))
            }
            found => Ok(found),
        }
    })
}

/// Fails if a filter would end the process at a call of a snapshot, or deny the call: clone(2), which copies the
/// process, wait4(2), `exit_group(2)` and `rt_sigreturn(2)`. The caller must have stopped the thread by ptrace(2).
///
/// # Errors
/// Like [`require_plugin_calls`]; `ChildNamespace` also if the thread's children are of another time namespace.
pub fn require_snapshot_calls(thread: u32) -> Result<(), Refusal> {
    child_namespace::require_same_namespaces(thread, &["pid", "time"])?;
    deadline::require_policy_that_forks(thread)?;
    require_no_forbidden_call(thread, |filters| first_denied_call(filters, SNAPSHOT))
}

/// Fails if a filter would end the process at a call that reads a thread's alternate signal stack, or deny the call:
/// sigaltstack(2) and `rt_sigreturn(2)`. The caller must have stopped the thread by ptrace(2).
///
/// # Errors
/// Like [`require_plugin_calls`], without `ChildNamespace` and `Deadline`.
pub fn require_signal_stack_calls(thread: u32) -> Result<(), Refusal> {
    require_no_forbidden_call(thread, |filters| first_denied_call(filters, SIGNAL_STACK))
}

/// Calls that memprof can do without, and makes only where the filters of a thread allow them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpareCalls {
    /// Whether the calls that give a new thread a descriptor table of its own are allowed.
    pub own_descriptors: bool,
    /// Whether the call that lets a new thread execute RDTSC is allowed. The program may have forbidden its creator
    /// RDTSC.
    pub enable_time_stamps: bool,
    /// Whether the call that lets a new thread execute CPUID is allowed.
    pub enable_cpuid: bool,
}

impl SpareCalls {
    /// Checks the calls by the filters of a thread; threads that it creates have these filters too. The caller must
    /// have stopped the thread by ptrace(2). If a filter cannot be read or evaluated, no call counts as allowed.
    pub fn for_thread(thread: u32) -> Self {
        let allows = |calls: &'static [SyscallRequirement]| {
            require_no_forbidden_call(thread, |filters| first_denied_call(filters, calls)).is_ok()
        };
        Self {
            own_descriptors: allows(OWN_DESCRIPTORS),
            enable_time_stamps: allows(ENABLE_TIME_STAMPS),
            enable_cpuid: allows(ENABLE_CPUID),
        }
    }
}

/// Fails if the thread has user dispatch (handles its system calls itself) or strict mode, or if its filters forbid a
/// call. `forbidden` gets the filters, and returns the name of a forbidden call, or `None`. Succeeds for a thread
/// without filters.
fn require_no_forbidden_call(
    thread: u32,
    forbidden: impl FnOnce(&[Vec<BpfInstruction>]) -> Result<Option<&'static str>, UndecidedFilter>,
) -> Result<(), Refusal> {
    let seccomp = ProcStatus::read_thread(thread)?.seccomp;
    dispatch::require_no_user_dispatch(thread)?;
    match seccomp {
        SeccompMode::Off => return Ok(()),
        SeccompMode::Strict => return Err(Refusal::StrictSeccomp),
        SeccompMode::Filter => {}
    }
    let filters = read_filters(thread).map_err(|errno| match errno {
        Errno::EACCES => Refusal::UnreadFilter,
        errno => Refusal::UnreadableFilter(errno.desc().to_owned()),
    })?;
    match forbidden(&filters) {
        Ok(None) => Ok(()),
        Ok(Some(call)) => Err(Refusal::ForbiddenCall { call }),
        Err(error) => Err(Refusal::UnreadableFilter(error.to_string())),
    }
}

/// Returns the name of the first call for which `filters` make the plugin unusable: a required call that they deny, or
/// an optional one at which they end the process or hold the thread. `None` if there is none. `rseq` says whether
/// rseq(2) is required.
///
/// # Errors
/// A filter checks data that is unknown here, or is invalid for seccomp(2).
pub fn forbidden_call(
    filters: &[Vec<BpfInstruction>],
    rseq: Rseq,
) -> Result<Option<&'static str>, UndecidedFilter> {
    let rseq = (rseq == Rseq::Required).then_some(&RSEQ);
    if let Some(call) = first_denied_call(filters, REQUIRED.iter().chain(rseq))? {
        return Ok(Some(call));
    }
    for call in OPTIONAL {
        if evaluate_filters(filters, &call.call)?.is_harmful() {
            return Ok(Some(call.name));
        }
    }
    Ok(None)
}

/// Returns the name of the denied call of the first unmet requirement; `None` if all are met. Fails if a filter's
/// result is unknown.
fn first_denied_call(
    filters: &[Vec<BpfInstruction>],
    needs: impl IntoIterator<Item = &'static SyscallRequirement>,
) -> Result<Option<&'static str>, UndecidedFilter> {
    for need in needs {
        if let Some(call) = denied_call(filters, need)? {
            return Ok(Some(call));
        }
    }
    Ok(None)
}

/// Returns the name of the denied call if a requirement is unmet; `None` if it is met. Of alternative calls, the next
/// one counts only if the filters answer the one before with `ENOSYS`. Fails if a filter's result is unknown.
fn denied_call(
    filters: &[Vec<BpfInstruction>],
    need: &'static SyscallRequirement,
) -> Result<Option<&'static str>, UndecidedFilter> {
    let mut last = None;
    for call in need.calls() {
        match evaluate_filters(filters, &call.call)? {
            FilterAction::Allowed => return Ok(None),
            // After ENOSYS the C library makes the next call in its place.
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

    /// Filter that returns these actions for these calls, and `otherwise` for all others.
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
    fn forbidden_calls_are_named() {
        let check = |calls: &[(libc::c_long, u32)], expected| {
            let found = forbidden_call(&[filter(calls, ALLOW)], Rseq::Required);
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
        // Action of systemd's RestrictNamespaces and container runtimes, after which glibc calls clone.
        let unknown = (libc::SYS_clone3, errno(Errno::ENOSYS));
        check(&[unknown], None);
        check(&[unknown, (libc::SYS_clone, KILL)], Some("clone"));
        check(
            &[unknown, (libc::SYS_clone, errno(Errno::ENOSYS))],
            Some("clone"),
        );
        // A call that may fail, but must not end the process.
        check(&[(libc::SYS_prctl, errno(Errno::EPERM))], None);
        check(
            &[(libc::SYS_prctl, libc::SECCOMP_RET_KILL_THREAD)],
            Some("prctl"),
        );
        check(
            &[(libc::SYS_mkdir, libc::SECCOMP_RET_USER_NOTIF)],
            Some("mkdir"),
        );
        // An action that pretends success.
        check(&[(libc::SYS_mmap, libc::SECCOMP_RET_ERRNO)], Some("mmap"));
    }

    /// glibc ends a process in which a new thread cannot call rseq(2) although its creator could.
    #[test]
    fn rseq_is_required_if_the_thread_uses_it() {
        let filters = [filter(&[(libc::SYS_rseq, errno(Errno::EPERM))], ALLOW)];
        assert_eq!(forbidden_call(&filters, Rseq::Required), Ok(Some("rseq")));
        assert_eq!(forbidden_call(&filters, Rseq::Unused), Ok(None));
    }

    #[test]
    fn filter_that_allows_only_listed_calls_passes() {
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
        assert_eq!(
            forbidden_call(&[filter(&all, KILL)], Rseq::Required),
            Ok(None)
        );
        // glibc does not call clone if clone3 works.
        for call in allowed.iter().filter(|call| call.name != "clone") {
            let others = all
                .iter()
                .filter(|(number, _)| *number as u32 != call.call.number);
            let others: Vec<_> = others.copied().collect();
            let found = forbidden_call(&[filter(&others, KILL)], Rseq::Required);
            assert_eq!(found, Ok(Some(call.name)));
        }
    }

    #[test]
    fn most_severe_filter_decides() {
        let kills = filter(&[(libc::SYS_socket, KILL)], ALLOW);
        let fails = filter(&[(libc::SYS_socket, errno(Errno::EPERM))], ALLOW);
        for filters in [[kills.clone(), fails.clone()], [fails, kills]] {
            assert_eq!(forbidden_call(&filters, Rseq::Required), Ok(Some("socket")));
        }
    }
}
