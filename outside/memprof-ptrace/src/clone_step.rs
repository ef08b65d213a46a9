//! The stops of a thread that makes a system call for memprof.
#![cfg_attr(test, expect(unsafe_code, reason = "a zeroed struct of numbers"))]

use std::io;

use libc::user_regs_struct;

/// Stop signal at a system call (ptrace(2), `PTRACE_O_TRACESYSGOOD`).
const SYSCALL_STOP_SIGNAL: i32 = libc::SIGTRAP | 0x80;

/// A stop of a thread between the start of its remote call and the end of clone(2).
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CloneStep {
    /// clone(2) has created a child.
    Cloned,
    /// The thread enters a system call or leaves it.
    SystemCall,
    /// A signal is about to be delivered: SIGSTOP, which cannot be blocked. It must be passed on at once, because
    /// only the kernel knows whether a SIGCONT came meanwhile (kernel/signal.c, `JOBCTL_STOP_DEQUEUED`).
    Signal(i32),
    /// A signal stopped or continued the process. The thread keeps running under ptrace, and stops when it is
    /// detached.
    GroupStop,
}

impl CloneStep {
    /// Converts the wait status of a stop (waitpid(2)): its upper 16 bits hold the ptrace event or 0, the 8 bits below
    /// the stop signal.
    pub(crate) fn from_status(status: i32) -> Self {
        match (status >> 16, libc::WSTOPSIG(status)) {
            (libc::PTRACE_EVENT_CLONE, _) => Self::Cloned,
            (0, SYSCALL_STOP_SIGNAL) => Self::SystemCall,
            (0, signal) => Self::Signal(signal),
            // `PTRACE_EVENT_STOP`: the tracer has enabled no event but that of clone(2).
            _ => Self::GroupStop,
        }
    }
}

/// Returns the error of clone(2), by the registers of a thread that is stopped at a system call. `None` if the
/// registers are those of another call, if clone(2) has not run yet or has created a child, or if the kernel restarts
/// clone(2).
pub(crate) fn clone_error(registers: &user_regs_struct) -> Option<io::Error> {
    /// Values of `rax` that are no error here: the one before the call has begun (arch/x86/entry), and that of a
    /// call which is restarted after a signal (include/linux/errno.h).
    const NOT_ERRORS: [i32; 2] = [libc::ENOSYS, 513];
    let is_clone = registers.orig_rax == libc::SYS_clone as u64;
    let errno = i32::try_from(registers.rax.wrapping_neg()).ok()?;
    // The kernel returns an error as -errno, at most 4095 (`MAX_ERRNO` of include/linux/err.h).
    let is_error = is_clone && (1..4096).contains(&errno) && !NOT_ERRORS.contains(&errno);
    is_error.then(|| io::Error::from_raw_os_error(errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clone_steps_are_read_from_wait_status() {
        let check = |event: i32, signal: i32, expected| {
            let status = event << 16 | signal << 8 | 0x7f;
            assert_eq!(CloneStep::from_status(status), expected);
        };
        check(libc::PTRACE_EVENT_CLONE, libc::SIGTRAP, CloneStep::Cloned);
        check(0, libc::SIGTRAP | 0x80, CloneStep::SystemCall);
        check(0, libc::SIGSTOP, CloneStep::Signal(libc::SIGSTOP));
        for signal in [libc::SIGSTOP, libc::SIGTRAP] {
            check(libc::PTRACE_EVENT_STOP, signal, CloneStep::GroupStop);
        }
    }

    #[test]
    fn only_an_errno_of_clone_is_an_error() {
        let check = |call: i64, result: i64, expected: Option<i32>| {
            // SAFETY: all-zero is a valid value of a struct of numbers.
            let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
            registers.orig_rax = call.cast_unsigned();
            registers.rax = result.cast_unsigned();
            let error = clone_error(&registers).and_then(|error| error.raw_os_error());
            assert_eq!(error, expected, "{call} {result}");
        };
        let eagain = -i64::from(libc::EAGAIN);
        check(libc::SYS_clone, eagain, Some(libc::EAGAIN));
        check(libc::SYS_clone, -i64::from(libc::ENOSYS), None);
        check(libc::SYS_clone, -513, None);
        check(libc::SYS_clone, 4711, None);
        check(libc::SYS_clone, 0, None);
        check(libc::SYS_rt_sigreturn, eagain, None);
    }
}
