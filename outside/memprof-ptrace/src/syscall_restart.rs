//! Which system calls a thread may be taken out of, and how it makes them again.
//!
//! The kernel makes an interrupted call again by itself only where it then delivers a signal or lets
//! the thread go on with the registers that it stopped with; and it never does for a call that ends
//! with EINTR, as `epoll_wait(2)`, recv(2) with a timeout, and sigtimedwait(2) do (signal(7)).
#![expect(non_upper_case_globals, reason = "the kernel's names of calls")]

use libc::{
    SYS_accept, SYS_accept4, SYS_clock_nanosleep, SYS_connect, SYS_epoll_pwait, SYS_epoll_pwait2,
    SYS_epoll_wait, SYS_futex, SYS_io_getevents, SYS_io_uring_enter, SYS_msgrcv, SYS_msgsnd,
    SYS_nanosleep, SYS_pause, SYS_poll, SYS_ppoll, SYS_pselect6, SYS_read, SYS_readv, SYS_recvfrom,
    SYS_recvmmsg, SYS_recvmsg, SYS_restart_syscall, SYS_rt_sigsuspend, SYS_rt_sigtimedwait,
    SYS_select, SYS_semop, SYS_semtimedop, SYS_sendmsg, SYS_sendto, SYS_wait4, SYS_waitid,
    SYS_write, SYS_writev, user_regs_struct,
};

/// `mov $NUMBER,%eax` right before `syscall`, as libc calls the kernel.
pub const CALL_LENGTH: usize = 7;

const EINTR: i64 = -4;
const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: i64 = -513;
const ERESTARTNOHAND: i64 = -514;
const ERESTART_RESTARTBLOCK: i64 = -516;

const FUTEX_WAIT_BITSET: u64 = 9;
const FUTEX_WAIT_REQUEUE_PI: u64 = 11;
const FUTEX_FLAGS: u64 = 0x180;

/// Further calls that the kernel does not make again by itself, some of them with a timeout only, and which have done
/// nothing where they fail with EINTR.
const FAILS_BEFORE_IT_DOES: [i64; 12] = [
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

/// How good a call is to take a thread out of; the first is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RestartClass {
    /// Made again, it waits for the same, and no longer.
    Transparent,
    /// Waits for descriptors, and made again for its whole time again.
    Events,
    /// Made again, it may wait for its whole time again.
    RestartsTimeout,
    /// Reads something, perhaps for the loader or an allocator.
    Read,
    /// Waits for another thread. Not the operation by which locks wait, that of malloc among them.
    CondvarWait,
}

/// Whether a thread may be taken out of a call: one that has done nothing when it is interrupted.
pub fn restart_class(number: i64, arguments: [u64; 6]) -> Option<RestartClass> {
    let operation = arguments[1] & !FUTEX_FLAGS;
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

/// The registers with which a thread that stopped in a call makes the call again. `code` are the
/// [`CALL_LENGTH`] bytes before its instruction pointer. They are the same registers where the call
/// had ended by itself.
///
/// `None` where the call cannot be told: the kernel knows how an interrupted sleep goes on, but
/// forgets it at the next `rt_sigreturn(2)`.
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
        SYS_restart_syscall => u64::from(syscall_number_before(code)?),
        _ => stopped.orig_rax,
    };
    registers.rip -= 2;
    registers.orig_rax = u64::MAX;
    sleep_for_the_rest(&mut registers);
    Some(registers)
}

/// Has an interrupted sleep ask for what the kernel wrote that is left of it, where the program has a place for that:
/// the kernel's own note of the end is gone by then. One without such a place begins anew.
fn sleep_for_the_rest(registers: &mut user_regs_struct) {
    let is_absolute = registers.rsi as i32 & libc::TIMER_ABSTIME != 0;
    match registers.rax as i64 {
        SYS_nanosleep if registers.rsi != 0 => registers.rdi = registers.rsi,
        SYS_clock_nanosleep if registers.r10 != 0 && !is_absolute => registers.rdx = registers.r10,
        _ => {}
    }
}

/// Whether the thread, let go as it is, would see its call fail although the kernel could not tell
/// it of any signal.
pub fn would_see_eintr(stopped: &user_regs_struct) -> bool {
    stopped.rax as i64 == EINTR && is_interrupted(stopped)
}

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
            restart_class(number, arguments).is_some() || FAILS_BEFORE_IT_DOES.contains(&number)
        }
        _ => false,
    }
}

fn syscall_number_before(code: [u8; CALL_LENGTH]) -> Option<u32> {
    let [0xb8, number @ .., 0x0f, 0x05] = code else {
        return None;
    };
    Some(u32::from_le_bytes(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(number: i64, result: i64) -> user_regs_struct {
        // SAFETY: a struct of numbers.
        #[expect(unsafe_code, reason = "libc has no default for it")]
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        registers.orig_rax = number as u64;
        registers.rax = result as u64;
        registers.rip = 0x1002;
        registers
    }

    #[test]
    fn an_interrupted_call_is_made_again() {
        let check = |number, result, expected: Option<(u64, i64)>| {
            let code = [0xb8, 7, 0, 0, 0, 0x0f, 0x05];
            let again = restarted_registers(&stopped(number, result), code);
            assert_eq!(again.map(|r| (r.rip, r.rax as i64)), expected, "{number}");
        };
        check(SYS_epoll_wait, EINTR, Some((0x1000, SYS_epoll_wait)));
        check(SYS_accept, ERESTARTSYS, Some((0x1000, SYS_accept)));
        check(SYS_pause, ERESTARTNOHAND, Some((0x1000, SYS_pause)));
        // poll(2) and sleeps: the kernel's own note is gone, so from the start.
        check(SYS_poll, ERESTART_RESTARTBLOCK, Some((0x1000, SYS_poll)));
        // It was interrupted before: the code before the call tells which it was.
        check(
            SYS_restart_syscall,
            ERESTART_RESTARTBLOCK,
            Some((0x1000, SYS_poll)),
        );
        // Ended by itself: with events, without, with another error.
        check(SYS_epoll_wait, 3, Some((0x1002, 3)));
        check(SYS_epoll_wait, 0, Some((0x1002, 0)));
        check(SYS_read, -11, Some((0x1002, -11)));
        // None to take a thread out of, but it must not see that it was looked at.
        check(libc::SYS_semop, EINTR, Some((0x1000, libc::SYS_semop)));
        // EINTR of a call that did something before.
        check(libc::SYS_close, EINTR, Some((0x1002, EINTR)));
        // Not in a call.
        check(-1, ERESTARTSYS, Some((0x1002, ERESTARTSYS)));
    }

    #[test]
    fn a_sleep_goes_on_for_what_is_left_of_it() {
        let check = |number, by_kernel, rsi, r10, expected: (u64, u64)| {
            let mut sleeping = stopped(by_kernel, ERESTART_RESTARTBLOCK);
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
        // Nowhere to write it; until a time; another call.
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
    fn a_sleep_whose_call_is_unknown_is_left_to_the_kernel() {
        let registers = stopped(SYS_restart_syscall, ERESTART_RESTARTBLOCK);
        let code = [0x44, 0x89, 0xc0, 0x89, 0xf8, 0x0f, 0x05];
        assert!(restarted_registers(&registers, code).is_none());
    }

    #[test]
    fn a_thread_that_loses_no_time_is_taken_first() {
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
    fn locks_are_not_waited_for() {
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
