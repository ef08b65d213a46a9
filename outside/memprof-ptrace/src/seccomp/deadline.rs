//! Check whether a thread may make threads and processes by its scheduling policy. The kernel refuses it to one of
//! `SCHED_DEADLINE`, whose bandwidth cannot be shared (sched(7)), by the error of a limit that is reached.
#![expect(unsafe_code, reason = "sched_getscheduler(2)")]

use crate::refusal::Refusal;

/// Fails for a thread of the policy `SCHED_DEADLINE` without reset-on-fork. The flag reset-on-fork is a bit of the
/// returned policy, which then differs from `SCHED_DEADLINE`. A thread whose policy cannot be read passes.
///
/// # Errors
/// `Deadline`: the thread has the policy.
pub(super) fn require_policy_that_forks(thread: u32) -> Result<(), Refusal> {
    // SAFETY: sched_getscheduler(2) takes a number.
    match unsafe { libc::sched_getscheduler(thread.cast_signed()) } {
        libc::SCHED_DEADLINE => Err(Refusal::Deadline),
        _ => Ok(()),
    }
}
