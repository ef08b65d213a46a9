//! Wrappers of ptrace(2) and waitpid(2) for a traced thread.
#![expect(
    unsafe_code,
    reason = "ptrace(2) and waitpid(2), whose arguments are bare numbers"
)]

use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use libc::{c_long, pid_t};

use crate::process::ProcStat;

const POLL_INTERVAL: Duration = Duration::from_micros(20);
const ZOMBIE_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Reason why a thread does not stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopError {
    /// The thread has ended.
    Ended,
    /// ptrace(2) was refused, with this errno.
    Refused(i32),
    /// The thread sleeps uninterruptibly (state D). It is detached when the tracing thread of this process ends.
    Uninterruptible,
}

/// Waits until a traced thread is stopped, by polling. Returns its wait status (waitpid(2)). Fails with `Ended` if the
/// thread ends, and with `Uninterruptible` if it is not stopped at the deadline.
pub(crate) fn wait_for_stop(tid: pid_t, deadline: Instant) -> Result<i32, StopError> {
    let mut next_check = Instant::now() + ZOMBIE_CHECK_INTERVAL;
    loop {
        let mut status = 0;
        // SAFETY: waitpid(2) writes an integer to `status`.
        let waited = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
        match waited {
            0 if Instant::now() > deadline => return Err(StopError::Uninterruptible),
            // waitpid(2) does not report the end of a main thread before all others have ended, and those may be
            // stopped too.
            0 if Instant::now() > next_check => {
                if has_ended(tid) {
                    return Err(StopError::Ended);
                }
                next_check = Instant::now() + ZOMBIE_CHECK_INTERVAL;
            }
            0 => thread::sleep(POLL_INTERVAL),
            found if found == tid && libc::WIFSTOPPED(status) => return Ok(status),
            _ => return Err(StopError::Ended),
        }
    }
}

/// Returns whether a thread has ended, even if nothing has waited for it yet. False if its file in /proc cannot be read
/// for another reason.
pub(crate) fn has_ended(tid: pid_t) -> bool {
    match fs::read(format!("/proc/{tid}/stat")) {
        Ok(stat) => ProcStat::parse(&stat).is_ok_and(|stat| stat.is_zombie),
        Err(error) => {
            error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
        }
    }
}

/// Makes a ptrace(2) request for a thread that this thread traces, or is about to trace. `operation`, `address` and
/// `data` are those of ptrace(2), whose errno is the error. Not for requests that return a value.
pub(crate) fn ptrace_request(
    operation: u32,
    tid: pid_t,
    address: usize,
    data: usize,
) -> io::Result<()> {
    ptrace_request_value(operation, tid, address, data).map(drop)
}

/// Makes a ptrace(2) request that returns a number, for a thread that this thread traces. Fails with the errno of
/// ptrace(2) if the number is negative.
pub(crate) fn ptrace_request_value(
    operation: u32,
    tid: pid_t,
    address: usize,
    data: usize,
) -> io::Result<c_long> {
    // SAFETY: each caller passes the buffer that its request reads or writes (ptrace(2)), which lives until then.
    let result: c_long = unsafe { libc::ptrace(operation, tid, address, data) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}
