//! The two calls by which a thread is traced.
#![expect(
    unsafe_code,
    reason = "ptrace(2) and waitpid(2), whose arguments are bare numbers"
)]

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use libc::{c_long, pid_t};

const LOOK_AGAIN: Duration = Duration::from_micros(20);

/// Why a thread does not stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopError {
    /// It has ended.
    Ended,
    /// ptrace(2) was refused, with this errno.
    Refused(i32),
    /// It sleeps where nothing wakes it (state D). It is let go when this thread of ours ends.
    Uninterruptible,
}

/// Waits until a thread stands still: its status.
pub(crate) fn wait(tid: pid_t, until: Instant) -> Result<i32, StopError> {
    loop {
        let mut status = 0;
        // SAFETY: waitpid(2) fills the status.
        let waited = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
        match waited {
            0 if Instant::now() > until => return Err(StopError::Uninterruptible),
            0 => thread::sleep(LOOK_AGAIN),
            found if found == tid && libc::WIFSTOPPED(status) => return Ok(status),
            _ => return Err(StopError::Ended),
        }
    }
}

/// Asks the kernel for something about a thread that this thread of ours traces.
pub(crate) fn request(what: u32, tid: pid_t, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: ptrace(2): each caller passes what its request reads or fills, which lives until then.
    let done: c_long = unsafe { libc::ptrace(what, tid, address, data) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
