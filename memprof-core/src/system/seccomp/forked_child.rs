//! A forked child that makes system calls under the filter of its parent.
#![expect(
    unsafe_code,
    reason = "clone without the C library's handlers, and its child"
)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::time::{Duration, Instant};

use libc::{c_int, c_long, pid_t};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// `struct clone_args` of clone3(2), as in Linux 5.3.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

/// A child of this process, whose exit sends no signal.
#[derive(Debug)]
pub(super) struct ForkedChild {
    pid: pid_t,
    /// A pidfd, which becomes readable when the child exits.
    exit: OwnedFd,
}

impl ForkedChild {
    /// Forks a child that calls `run` and exits. `run` must only make system calls, because threads that do not exist
    /// in the child may hold any lock. Not by fork(3), which would run the program's fork handlers. Tries clone3 and
    /// then clone, as the C library does to create a thread, because filters allow what creates threads.
    pub(super) fn fork(run: impl FnOnce()) -> io::Result<Self> {
        let mut descriptor: c_int = -1;
        let descriptor_address = &raw mut descriptor;
        let args = CloneArgs {
            flags: libc::CLONE_PIDFD as u64,
            pidfd: descriptor_address as u64,
            ..CloneArgs::default()
        };
        // SAFETY: clone3(2) gets its struct and the size of it. Without CLONE_VM the child has a copy of the
        // memory, and it only makes system calls, so no lock of another thread matters.
        let mut child =
            unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
        if child == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
            let flags = c_long::from(libc::CLONE_PIDFD);
            // SAFETY: clone(2) without CLONE_VM: the child has a copy of the memory; the third argument is the
            // address that receives the pidfd, `descriptor`, which outlives the call.
            child =
                unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, descriptor_address, 0, 0) };
        }
        match child {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                run();
                exit_child()
            }
            child => Ok(Self {
                pid: child as pid_t,
                // SAFETY: the kernel created the pidfd for this process, and only this value owns it.
                exit: unsafe { OwnedFd::from_raw_fd(descriptor) },
            }),
        }
    }

    /// Pid of the child.
    pub(super) fn pid(&self) -> pid_t {
        self.pid
    }

    /// Waits until the child has exited, but not longer than all `timeouts`, one after the other. Returns whether it
    /// has.
    pub(super) fn wait_for_exit(&self, timeouts: &[Duration]) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.exit, PollFlags::IN)];
        for timeout in timeouts {
            let start = Instant::now();
            loop {
                let remaining = timeout.saturating_sub(start.elapsed());
                let remaining = Timespec {
                    tv_sec: remaining.as_secs().cast_signed(),
                    tv_nsec: remaining.subsec_nanos().into(),
                };
                match poll(&mut polled, Some(&remaining)) {
                    Ok(0) => break,
                    Ok(_) => return Ok(true),
                    // The program may get signals all the time.
                    Err(Errno::INTR) if start.elapsed() >= *timeout => break,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(false)
    }

    /// Reaps the child, which has exited.
    pub(super) fn reap(&self) {
        // SAFETY: waitpid(2) of this process's own child; no other thread waits for it, because its exit signal is 0.
        unsafe { libc::waitpid(self.pid, ptr::null_mut(), libc::__WALL) };
    }
}

/// Closes all descriptors below `end` in a forked child, because a child that the filter holds must not keep the
/// program's files and sockets open. Every program closes descriptors, so its filter allows close(2).
pub(super) fn close_descriptors(end: c_long) {
    for descriptor in 0..end {
        // SAFETY: close(2) in the child, which uses no descriptor.
        unsafe { libc::syscall(libc::SYS_close, descriptor) };
    }
}

/// Ends the child without exit handlers. If a filter refuses every call for that, sleeps for ever.
fn exit_child() -> ! {
    // A filter may refuse exit_group(2) with an error. The child has one thread, so exit(2) ends it too.
    for number in [libc::SYS_exit_group, libc::SYS_exit] {
        // SAFETY: both end the child without running exit handlers.
        unsafe { libc::syscall(number, 0) };
    }
    loop {
        // SAFETY: ppoll(2) of no descriptor reads nothing; without a timeout it waits for ever.
        unsafe { libc::syscall(libc::SYS_ppoll, 0, 0, 0, 0, 0) };
    }
}

#[cfg(test)]
mod tests {
    use std::mem;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    /// Handler of the signal, which does nothing.
    extern "C" fn ignore(_: c_int) {}

    #[test]
    fn signals_do_not_lengthen_the_wait() {
        const TIMEOUT: Duration = Duration::from_millis(50);
        /// Longest time for which signals arrive: with a wait that each of them starts anew, the test fails then.
        const SIGNAL_TIME: Duration = Duration::from_secs(5);
        // SAFETY: sigaction(2): all zeros are an empty mask and no flags; nothing else in the tests uses the signal.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = ignore as *const () as usize;
        // SAFETY: sigaction(2) reads `action`, whose handler makes no call.
        let installed =
            unsafe { libc::sigaction(libc::SIGURG, &raw const action, ptr::null_mut()) };
        assert_eq!(installed, 0);
        let child = ForkedChild::fork(|| {
            // SAFETY: ppoll(2) of no descriptor reads nothing; without a timeout it waits for ever.
            unsafe { libc::syscall(libc::SYS_ppoll, 0, 0, 0, 0, 0) };
        })
        .unwrap();
        // SAFETY: pthread_self(3) has no preconditions.
        let waiting = unsafe { libc::pthread_self() };
        let is_over = AtomicBool::new(false);
        let start = Instant::now();
        let (waited, elapsed) = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) && start.elapsed() < SIGNAL_TIME {
                    // SAFETY: the thread waits for this one to end.
                    unsafe { libc::pthread_kill(waiting, libc::SIGURG) };
                    thread::yield_now();
                }
            });
            let waited = child.wait_for_exit(&[TIMEOUT]);
            is_over.store(true, Ordering::Relaxed);
            (waited, start.elapsed())
        });
        // SAFETY: kill(2) takes numbers; the child is not reaped yet.
        unsafe { libc::kill(child.pid(), libc::SIGKILL) };
        let has_ended = child.wait_for_exit(&[Duration::from_secs(60)]);
        child.reap();
        assert!(matches!(waited, Ok(false)), "{waited:?}");
        assert!(elapsed < SIGNAL_TIME, "{elapsed:?}");
        assert!(matches!(has_ended, Ok(true)), "{has_ended:?}");
    }
}
