//! A forked child that makes system calls under the filter of its parent.
#![expect(
    unsafe_code,
    reason = "clone without the C library's handlers, and its child"
)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

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
    pub(super) fn wait_for_exit(&self, timeouts: &[Timespec]) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.exit, PollFlags::IN)];
        for timeout in timeouts {
            loop {
                match poll(&mut polled, Some(timeout)) {
                    Ok(0) => break,
                    Ok(_) => return Ok(true),
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
