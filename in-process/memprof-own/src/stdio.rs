//! Protects descriptors 0, 1 and 2 of a program that closed them, as daemons do. The kernel would give such a number to
//! the next opened file, and the program's next line to standard error would go into that file.

#![cfg_attr(
    test,
    expect(unsafe_code, reason = "fork(2) and descriptors by number")
)]

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::guarded_fd::{FIRST_AFTER_STDIO, GuardedFd};

/// Guard that occupies the numbers of closed standard streams, for code that opens files and cannot move its
/// descriptors. Reading and writing these numbers fails with EBADF (open(2), `O_PATH`), as on a closed descriptor.
#[derive(Debug)]
pub struct StdioGuard {
    _occupied: Vec<GuardedFd<OwnedFd>>,
}

impl StdioGuard {
    /// Occupies the numbers of closed standard streams, so that no file opened later gets one. They are free again when
    /// the guard is dropped.
    ///
    /// # Errors
    /// Those of open(2), such as `EMFILE` if the process has no descriptor left, and of fstat(2).
    pub fn acquire() -> Result<Self, Errno> {
        let mut occupied = Vec::new();
        loop {
            // open(2) returns the lowest free number.
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(CWD, "/", flags, Mode::empty())?;
            if opened.as_raw_fd() >= FIRST_AFTER_STDIO {
                return Ok(Self {
                    _occupied: occupied,
                });
            }
            occupied.push(GuardedFd::new_keeping_number(opened)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::RawFd;

    use super::*;
    use crate::move_above_stdio;

    /// Forks a child that closes `closed` and runs `check`. Returns whether the check holds.
    fn holds_without(closed: &[RawFd], check: fn() -> bool) -> bool {
        // SAFETY: fork(2): the check opens files and allocates; glibc resets its allocator's locks in the child.
        let child = unsafe { libc::fork() };
        if child == 0 {
            for number in closed {
                // SAFETY: close(2) accepts any number; the child neither reads nor writes these.
                unsafe { libc::close(*number) };
            }
            // SAFETY: _exit(2) runs nothing of this process.
            unsafe { libc::_exit(i32::from(!check())) };
        }
        let mut status = -1;
        // SAFETY: waitpid(2) fills the status of a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status == 0
    }

    fn is_closed(number: RawFd) -> bool {
        // SAFETY: fcntl(2) accepts any number.
        unsafe { libc::fcntl(number, libc::F_GETFD) == -1 }
    }

    fn null() -> File {
        File::open("/dev/null").unwrap()
    }

    #[test]
    fn closed_standard_streams_stay_closed() {
        let check = || {
            let moved = move_above_stdio(null()).unwrap();
            let owned = GuardedFd::new(null()).unwrap();
            let numbers = [moved.as_raw_fd(), owned.get().unwrap().as_raw_fd()];
            numbers.iter().all(|number| *number >= FIRST_AFTER_STDIO)
                && (0..FIRST_AFTER_STDIO).any(is_closed)
        };
        assert!(holds_without(&[0, 1, 2], || (0..FIRST_AFTER_STDIO).all(is_closed)));
        for closed in [&[2][..], &[0], &[1], &[0, 2], &[0, 1, 2]] {
            assert!(holds_without(closed, check), "{closed:?}");
        }
    }

    #[test]
    fn occupied_numbers_fail_as_closed_ones_and_are_closed_again() {
        let check = || {
            let guard = StdioGuard::acquire().unwrap();
            let is_refused = |number| {
                // SAFETY: write(2) of one byte.
                let written = unsafe { libc::write(number, [0_u8].as_ptr().cast(), 1) };
                written == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EBADF)
            };
            let holds =
                null().as_raw_fd() >= FIRST_AFTER_STDIO && (0..FIRST_AFTER_STDIO).all(is_refused);
            drop(guard);
            holds && (0..FIRST_AFTER_STDIO).all(is_closed)
        };
        assert!(holds_without(&[0, 1, 2], check));
    }

    #[test]
    fn number_that_the_program_took_over_stays_open() {
        let check = || {
            let guard = StdioGuard::acquire().unwrap();
            let file = null();
            // SAFETY: dup2(2) of an open descriptor.
            assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), 2) }, 2);
            drop(guard);
            is_closed(0) && is_closed(1) && !is_closed(2)
        };
        assert!(holds_without(&[0, 1, 2], check));
    }
}
