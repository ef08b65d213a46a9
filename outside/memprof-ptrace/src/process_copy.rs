//! A copy of a process that never runs: made by clone(2), it has the memory of that moment, and shares the
//! pages until one of both writes.
#![expect(
    unsafe_code,
    reason = "kill(2) and waitpid(2), whose arguments are bare numbers"
)]

use std::io;
use std::time::{Duration, Instant};

use libc::pid_t;

use crate::ptrace_request::{request, wait};

/// Until it stands still, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// A copy of a process. It is killed when it is dropped, and by the kernel should this thread of ours end; the
/// process that was copied is its parent, and has a zombie until it waits for it.
#[derive(Debug)]
pub struct ProcessCopy(pid_t);

impl ProcessCopy {
    /// Takes a child that was made under ptrace(2), and is about to stop before its first instruction.
    pub(crate) fn adopt(pid: pid_t) -> io::Result<Self> {
        let twin = Self(pid);
        wait(pid, Instant::now() + PATIENCE)
            .map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        let options = libc::PTRACE_O_EXITKILL as usize;
        request(libc::PTRACE_SETOPTIONS, pid, 0, options)?;
        Ok(twin)
    }

    /// Its pid here.
    pub fn pid(&self) -> u32 {
        self.0.cast_unsigned()
    }
}

impl Drop for ProcessCopy {
    fn drop(&mut self) {
        // SAFETY: kill(2) and waitpid(2) take numbers; the pid is ours until we have waited for it.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        // SAFETY: as above; nobody asks for the status.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), libc::__WALL) };
    }
}
