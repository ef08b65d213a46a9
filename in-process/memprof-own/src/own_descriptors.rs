//! Lets a thread leave the program's descriptor table, and still use the program's standard error.
#![expect(unsafe_code, reason = "close_range(2)")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::containing_object::find_object_containing;
use crate::descriptor_table::DescriptorTable;
use crate::lock_free_once::LockFreeOnce;
use crate::privileges::has_no_seccomp_filter;

/// Gives the calling thread, and threads that it creates from now on, a descriptor table without the program's files.
/// The thread keeps the program's table in four cases: it has a seccomp filter, which may end the process for the
/// system call; /proc does not show whether it has one; the C library does not serve `malloc`; or the kernel is older
/// than 5.9.
pub fn leave_program_descriptor_table() {
    if !has_no_seccomp_filter() || !libc_serves_malloc() {
        return;
    }
    // SAFETY: close_range(2) with CLOSE_RANGE_UNSHARE closes nothing in the table of other threads.
    let left = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            0,
            u32::MAX,
            libc::CLOSE_RANGE_UNSHARE,
        )
    };
    if left == 0 {
        DescriptorTable::occupy_standard_streams();
    }
}

/// Returns whether the C library serves `malloc`. Another allocator may use the same descriptor numbers in all threads:
/// tcmalloc's libunwind reads and writes a pipe, and in another table its numbers would belong to other files.
fn libc_serves_malloc() -> bool {
    static IS_OF_LIBC: LockFreeOnce<bool> = LockFreeOnce::new();
    if let Some(is_of_libc) = IS_OF_LIBC.get() {
        return *is_of_libc;
    }
    let object_of =
        |function: *const ()| find_object_containing(function.addr()).map(|info| info.dli_fbase);
    // No allocator replaces `getauxval`, so its object is the C library.
    let libc = object_of(libc::getauxval as *const ());
    let is_of_libc = libc.is_some() && object_of(libc::malloc as *const ()) == libc;
    *IS_OF_LIBC.get_or_set(is_of_libc)
}

/// Calls `act` with the program's standard error. In a thread that has left the program's descriptor table, the stream
/// is open only during the call. Does not call `act` if the stream cannot be copied from the main thread's table: the
/// program has closed it, the main thread has exited, or the kernel refuses.
pub fn with_program_stderr(act: impl FnOnce(BorrowedFd<'_>)) {
    if DescriptorTable::current() == DescriptorTable::Program {
        act(io::stderr().as_fd());
        return;
    }
    // The kernel copies the descriptor from the main thread's table.
    let process = pidfd_open(getpid(), PidfdFlags::empty());
    let stderr = process
        .and_then(|process| pidfd_getfd(process, libc::STDERR_FILENO, PidfdGetfdFlags::empty()));
    if let Ok(stderr) = stderr {
        act(stderr.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Read;
    use std::os::fd::{AsRawFd, RawFd};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;
    use crate::guarded_fd::FIRST_AFTER_STDIO;

    /// Returns the file to which a descriptor leads, in a directory of /proc, such as `thread-self`. `None` if the
    /// descriptor is closed.
    fn link(directory: &str, number: RawFd) -> Option<std::path::PathBuf> {
        fs::read_link(format!("/proc/{directory}/fd/{number}")).ok()
    }

    /// Runs `check` on a thread with a table of its own.
    fn apart<T: Send + 'static>(check: impl FnOnce() -> T + Send + 'static) -> T {
        let run = || {
            leave_program_descriptor_table();
            assert_ne!(DescriptorTable::current(), DescriptorTable::Program);
            check()
        };
        thread::spawn(run).join().unwrap()
    }

    #[test]
    fn threads_share_own_table_but_no_descriptor_with_the_program() {
        let theirs = File::open("/proc/version").unwrap();
        let number = theirs.as_raw_fd();
        apart(move || {
            assert_eq!(link("thread-self", number), None);
            let own = File::open("/proc/uptime").unwrap();
            let table = DescriptorTable::current();
            assert_eq!(own.as_raw_fd(), FIRST_AFTER_STDIO);
            let own = own.as_raw_fd();
            let seen = move || (DescriptorTable::current(), link("thread-self", own));
            let (inherited, seen) = thread::spawn(seen).join().unwrap();
            assert_eq!(inherited, table);
            assert_eq!(seen, link("thread-self", own));
            assert_ne!(seen, link("self", own));
        });
        assert_eq!(DescriptorTable::current(), DescriptorTable::Program);
        assert_eq!(link("thread-self", number), Some("/proc/version".into()));
    }

    #[test]
    fn file_that_the_program_closes_is_held_by_no_own_table() {
        let (mut kept, closed) = UnixStream::pair().unwrap();
        let (ended, wait) = std::sync::mpsc::channel::<()>();
        let (began, ready) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            leave_program_descriptor_table();
            began.send(()).unwrap();
            let _: Result<(), _> = wait.recv();
        });
        ready.recv().unwrap();
        drop(closed);
        assert_eq!(kept.read(&mut [0]).unwrap(), 0, "the end of the stream");
        drop(ended);
        thread.join().unwrap();
    }

    #[test]
    fn own_standard_streams_refuse_lines_and_the_programs_is_reached() {
        apart(|| {
            for number in 0..FIRST_AFTER_STDIO {
                // SAFETY: write(2) of one byte.
                let written = unsafe { libc::write(number, [0_u8].as_ptr().cast(), 1) };
                let errno = io::Error::last_os_error().raw_os_error();
                assert_eq!((written, errno), (-1, Some(libc::EBADF)), "{number}");
            }
            let expected = link("self", libc::STDERR_FILENO);
            let mut seen = None;
            with_program_stderr(|stderr| seen = link("thread-self", stderr.as_raw_fd()));
            assert_eq!(seen, expected);
            assert!(seen.is_some());
        });
        with_program_stderr(|stderr| assert_eq!(stderr.as_raw_fd(), libc::STDERR_FILENO));
    }
}
