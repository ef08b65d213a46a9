//! System calls in which a thread may be interrupted for remote calls, and the registers with which it restarts them.
//!
//! The kernel restarts an interrupted call only if it then delivers a signal, or if the thread continues with the
//! registers that it was stopped with. It never restarts a call that ends with EINTR, as `epoll_wait(2)`, recv(2)
//! with a timeout, and sigtimedwait(2) do (signal(7)).
#![expect(non_upper_case_globals, reason = "the kernel's names of calls")]

use libc::{
    SYS_accept, SYS_accept4, SYS_clock_nanosleep, SYS_connect, SYS_epoll_pwait, SYS_epoll_pwait2,
    SYS_epoll_wait, SYS_futex, SYS_io_getevents, SYS_io_uring_enter, SYS_msgrcv, SYS_msgsnd,
    SYS_nanosleep, SYS_pause, SYS_poll, SYS_ppoll, SYS_pselect6, SYS_read, SYS_readv, SYS_recvfrom,
    SYS_recvmmsg, SYS_recvmsg, SYS_restart_syscall, SYS_rt_sigsuspend, SYS_rt_sigtimedwait,
    SYS_select, SYS_semop, SYS_semtimedop, SYS_sendmsg, SYS_sendto, SYS_wait4, SYS_waitid,
    SYS_write, SYS_writev, user_regs_struct,
};

/// Length of `mov $NUMBER,%eax; syscall`, with which libc enters the kernel, in bytes.
pub const CALL_LENGTH: usize = 7;

/// Results of an interrupted call, as in `rax`: include/linux/errno.h of the kernel.
const EINTR: i64 = -4;
const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: i64 = -513;
const ERESTARTNOHAND: i64 = -514;
const ERESTART_RESTARTBLOCK: i64 = -516;

/// Futex operations, and flags that are combined with them (linux/futex.h).
const FUTEX_WAIT_BITSET: u64 = 9;
const FUTEX_WAIT_REQUEUE_PI: u64 = 11;
const FUTEX_FLAGS: u64 = 0x180;

/// Further calls that the kernel does not restart (some of them only with a timeout), and that have had no effect if
/// they fail with EINTR.
const NO_EFFECT_ON_EINTR: [i64; 12] = [
    SYS_semop,
    SYS_semtimedop,
    SYS_msgsnd,
    SYS_msgrcv,
    SYS_connect,
    SYS_sendto,
    SYS_sendmsg,
    SYS_write,
    SYS_writev,
    SYS_readv,
    SYS_recvmmsg,
    SYS_io_uring_enter,
];

/// Kinds of interruptible calls, from the best to interrupt to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RestartClass {
    /// Restarted, it waits for the same event, and until the same time.
    Transparent,
    /// Waits for descriptors; restarted, it may wait for its whole timeout again.
    Events,
    /// Another wait that may last for its whole timeout again after a restart.
    RestartsTimeout,
    /// Reads data, perhaps for the loader or an allocator.
    Read,
    /// Waits for another thread by a futex operation that condition variables use. Excludes the operation that locks
    /// use, those of malloc among them.
    CondvarWait,
}

/// Returns the kind of a call that has had no effect if it is interrupted; `None` if a thread must not be
/// interrupted in it.
pub fn restart_class(number: i64, arguments: [u64; 6]) -> Option<RestartClass> {
    let operation = arguments[1] & !FUTEX_FLAGS;
    // Timeouts in milliseconds: the third argument of poll(2), the fourth of epoll_wait(2). That of epoll_pwait2(2) is
    // a pointer.
    let waits_for_ever = arguments[2] as i32 == -1;
    let awaits_events_for_ever = match number {
        SYS_epoll_pwait2 => arguments[3] == 0,
        _ => (arguments[3] as i32) < 0,
    };
    Some(match number {
        SYS_poll if !waits_for_ever => RestartClass::RestartsTimeout,
        SYS_epoll_wait | SYS_epoll_pwait | SYS_epoll_pwait2 if !awaits_events_for_ever => {
            RestartClass::Events
        }
        SYS_epoll_wait | SYS_epoll_pwait | SYS_epoll_pwait2 | SYS_poll | SYS_ppoll | SYS_select
        | SYS_pselect6 | SYS_accept | SYS_accept4 | SYS_wait4 | SYS_waitid | SYS_pause
        | SYS_rt_sigsuspend => RestartClass::Transparent,
        SYS_nanosleep | SYS_clock_nanosleep | SYS_rt_sigtimedwait | SYS_io_getevents
        | SYS_restart_syscall => RestartClass::RestartsTimeout,
        SYS_read | SYS_recvfrom | SYS_recvmsg => RestartClass::Read,
        SYS_futex if [FUTEX_WAIT_BITSET, FUTEX_WAIT_REQUEUE_PI].contains(&operation) => {
            RestartClass::CondvarWait
        }
        _ => return None,
    })
}

/// Returns the registers with which a stopped thread restarts its system call. `code` are the [`CALL_LENGTH`] bytes
/// before its instruction pointer. The registers are unchanged if the thread is in no call, or its call has had its
/// effect.
///
/// `None` if the thread is in `restart_syscall(2)`, which continues another call, and `code` does not show the number
/// of the other call. The kernel knows the other call, but forgets it at the next `rt_sigreturn(2)`.
pub fn restarted_registers(
    stopped: &user_regs_struct,
    code: [u8; CALL_LENGTH],
) -> Option<user_regs_struct> {
    let mut registers = *stopped;
    let number = stopped.orig_rax as i64;
    if number < 0 || !is_interrupted(stopped) {
        return Some(registers);
    }
    registers.rax = match number {
        SYS_restart_syscall => u64::from(syscall_number_in(code)?),
        _ => stopped.orig_rax,
    };
    // Back to the `syscall` instruction of two bytes. With -1 the thread is in no call, so the kernel restarts none.
    registers.rip -= 2;
    registers.orig_rax = u64::MAX;
    use_remaining_time(&mut registers);
    Some(registers)
}

/// Makes a restarted sleep last only for the time that remained, which the kernel wrote to the program's buffer: the
/// kernel's own record of the end is lost by then. `rax` must be the number of the system call. A sleep without a
/// buffer, or until an absolute time, stays as it is.
fn use_remaining_time(registers: &mut user_regs_struct) {
    let is_absolute = registers.rsi as i32 & libc::TIMER_ABSTIME != 0;
    match registers.rax as i64 {
        SYS_nanosleep if registers.rsi != 0 => registers.rdi = registers.rsi,
        SYS_clock_nanosleep if registers.r10 != 0 && !is_absolute => registers.rdx = registers.r10,
        _ => {}
    }
}

/// Returns whether the stopped thread, if it continued with these registers, would see its call fail with EINTR
/// although no signal was delivered.
pub fn would_see_eintr(stopped: &user_regs_struct) -> bool {
    stopped.rax as i64 == EINTR && is_interrupted(stopped)
}

/// Returns whether the stop has interrupted a call that had no effect yet, judged by its number and result.
fn is_interrupted(stopped: &user_regs_struct) -> bool {
    let arguments = [
        stopped.rdi,
        stopped.rsi,
        stopped.rdx,
        stopped.r10,
        stopped.r8,
        stopped.r9,
    ];
    match stopped.rax as i64 {
        ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND | ERESTART_RESTARTBLOCK => true,
        EINTR => {
            let number = stopped.orig_rax as i64;
            restart_class(number, arguments).is_some() || NO_EFFECT_ON_EINTR.contains(&number)
        }
        _ => false,
    }
}

/// Returns the number of the call in code of the form `mov $NUMBER,%eax; syscall`; `None` for other code.
fn syscall_number_in(code: [u8; CALL_LENGTH]) -> Option<u32> {
    let [0xb8, number @ .., 0x0f, 0x05] = code else {
        return None;
    };
    Some(u32::from_le_bytes(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped_in(number: i64, result: i64) -> user_regs_struct {
        // SAFETY: all-zero is a valid value of a struct of numbers.
        #[expect(unsafe_code, reason = "libc has no default for it")]
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        registers.orig_rax = number as u64;
        registers.rax = result as u64;
        registers.rip = 0x1002;
        registers
    }

    #[test]
    fn interrupted_call_is_restarted() {
        let check = |number, result, expected: Option<(u64, i64)>| {
            let code = [0xb8, 7, 0, 0, 0, 0x0f, 0x05];
            let again = restarted_registers(&stopped_in(number, result), code);
            assert_eq!(again.map(|r| (r.rip, r.rax as i64)), expected, "{number}");
        };
        check(SYS_epoll_wait, EINTR, Some((0x1000, SYS_epoll_wait)));
        check(SYS_accept, ERESTARTSYS, Some((0x1000, SYS_accept)));
        check(SYS_pause, ERESTARTNOHAND, Some((0x1000, SYS_pause)));
        // poll(2) and sleeps: the kernel's record of the end is lost, so they start again.
        check(SYS_poll, ERESTART_RESTARTBLOCK, Some((0x1000, SYS_poll)));
        // The call was interrupted before: the code before it says which one it was.
        check(
            SYS_restart_syscall,
            ERESTART_RESTARTBLOCK,
            Some((0x1000, SYS_poll)),
        );
        // Completed: with events, without, with another error.
        check(SYS_epoll_wait, 3, Some((0x1002, 3)));
        check(SYS_epoll_wait, 0, Some((0x1002, 0)));
        check(SYS_read, -11, Some((0x1002, -11)));
        // A call in which no thread is interrupted; memprof must not be visible to it.
        check(libc::SYS_semop, EINTR, Some((0x1000, libc::SYS_semop)));
        // EINTR of a call that had an effect before.
        check(libc::SYS_close, EINTR, Some((0x1002, EINTR)));
        // Not in a call.
        check(-1, ERESTARTSYS, Some((0x1002, ERESTARTSYS)));
    }

    #[test]
    fn sleep_continues_for_its_remaining_time() {
        let check = |number, by_kernel, rsi, r10, expected: (u64, u64)| {
            let mut sleeping = stopped_in(by_kernel, ERESTART_RESTARTBLOCK);
            (sleeping.rdi, sleeping.rsi) = (0x10, rsi);
            (sleeping.rdx, sleeping.r10) = (0x30, r10);
            let [low, high, ..] = (number as u32).to_le_bytes();
            let again =
                restarted_registers(&sleeping, [0xb8, low, high, 0, 0, 0x0f, 0x05]).unwrap();
            assert_eq!((again.rdi, again.rdx), expected, "{number} {rsi} {r10}");
        };
        check(SYS_nanosleep, SYS_nanosleep, 0x20, 0, (0x20, 0x30));
        check(SYS_nanosleep, SYS_restart_syscall, 0x20, 0, (0x20, 0x30));
        check(
            SYS_clock_nanosleep,
            SYS_clock_nanosleep,
            0,
            0x40,
            (0x10, 0x40),
        );
        check(
            SYS_clock_nanosleep,
            SYS_restart_syscall,
            0,
            0x40,
            (0x10, 0x40),
        );
        // No buffer for the remaining time; an absolute time; another call.
        check(SYS_nanosleep, SYS_nanosleep, 0, 0x40, (0x10, 0x30));
        check(SYS_clock_nanosleep, SYS_clock_nanosleep, 0, 0, (0x10, 0x30));
        check(
            SYS_clock_nanosleep,
            SYS_clock_nanosleep,
            1,
            0x40,
            (0x10, 0x30),
        );
        check(SYS_poll, SYS_poll, 0x20, 0x40, (0x10, 0x30));
    }

    #[test]
    fn sleep_without_known_call_is_left_to_the_kernel() {
        let registers = stopped_in(SYS_restart_syscall, ERESTART_RESTARTBLOCK);
        let code = [0x44, 0x89, 0xc0, 0x89, 0xf8, 0x0f, 0x05];
        assert!(restarted_registers(&registers, code).is_none());
    }

    #[test]
    fn calls_without_lost_time_are_preferred() {
        let check = |number, timeout: i64, expected| {
            let arguments = [0, 0, 0, timeout as u64, 0, 0];
            assert_eq!(restart_class(number, arguments), Some(expected), "{number}");
        };
        check(SYS_epoll_wait, -1, RestartClass::Transparent);
        check(SYS_epoll_wait, 0xffff_ffff, RestartClass::Transparent);
        check(SYS_epoll_wait, 6000, RestartClass::Events);
        check(SYS_epoll_pwait, 6000, RestartClass::Events);
        check(SYS_epoll_pwait2, 0, RestartClass::Transparent);
        check(SYS_epoll_pwait2, 0x7fff_0000_1000, RestartClass::Events);
        assert!(
            RestartClass::Transparent < RestartClass::Events
                && RestartClass::Events < RestartClass::RestartsTimeout
        );
    }

    #[test]
    fn lock_waits_are_not_interrupted() {
        let private = 128;
        let check = |operation, expected| {
            let arguments = [0, operation, 0, 0, 0, 0];
            assert_eq!(restart_class(SYS_futex, arguments), expected, "{operation}");
        };
        check(private, None);
        check(0, None);
        check(9 | private, Some(RestartClass::CondvarWait));
        check(9 | private | 256, Some(RestartClass::CondvarWait));
        check(6, None);
        assert_eq!(restart_class(libc::SYS_write, [0; 6]), None);
        assert_eq!(restart_class(libc::SYS_mmap, [0; 6]), None);
    }
}
