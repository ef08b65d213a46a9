//! A copy of a process that never runs. clone(2) creates it with the memory of that moment; the pages are shared
//! until one of both processes writes to them.
#![expect(
    unsafe_code,
    reason = "kill(2) and waitpid(2), whose arguments are bare numbers"
)]

use std::fs::{self, File};
use std::io::{self, Write};
use std::time::{Duration, Instant};

use libc::pid_t;

use crate::ptrace_request::{ptrace_request, wait_for_stop};

/// The highest `oom_score_adj` (`proc_pid_oom_score_adj(5)`).
pub const MAX_OOM_SCORE_ADJ: i64 = 1000;

/// Timeout for the copy to stop, on a busy machine.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A stopped copy of a process. It is killed when this value is dropped, and by the kernel if the tracing thread
/// ends. Its parent is the copied process, which has a zombie until it waits for it.
#[derive(Debug)]
pub struct ProcessCopy(pid_t);

impl ProcessCopy {
    /// Takes over a child that a traced thread has created by clone(2), and waits up to 10 s until the child stops
    /// before its first instruction. Makes the child the first process that the kernel kills where memory runs out. The
    /// kernel also kills it when this process ends. Fails with `ESRCH` if the child was killed or does not stop in
    /// time, and kills it.
    pub(crate) fn adopt(pid: pid_t) -> io::Result<Self> {
        let copy = Self(pid);
        wait_for_stop(pid, Instant::now() + STOP_TIMEOUT)
            .map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        let options = libc::PTRACE_O_EXITKILL as usize;
        ptrace_request(libc::PTRACE_SETOPTIONS, pid, 0, options)?;
        // From now on, each page that the process writes exists twice. Where memory runs out, the kernel is to end the
        // copy, not the process. Raising the value needs no privilege; without /proc, or where it is read-only, the
        // copy has that of the process.
        let score = File::options()
            .write(true)
            .open(format!("/proc/{pid}/oom_score_adj"));
        let _ = score.and_then(|mut score| write!(score, "{MAX_OOM_SCORE_ADJ}"));
        Ok(copy)
    }

    /// Returns whether the copy was killed, e.g. by the kernel where memory ran out: it has no program any more, and
    /// its memory cannot be read.
    pub fn has_ended(&self) -> bool {
        fs::read_link(format!("/proc/{}/exe", self.0)).is_err()
    }

    /// Kills the copy, and waits until its memory is released. The copy stays a zombie, for which its parent cannot
    /// wait, until this value is dropped.
    pub fn kill(&self) {
        // SAFETY: kill(2) takes numbers; the tracee's pid is not reused before waitpid(2).
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        let options = libc::WEXITED | libc::WNOWAIT | libc::__WALL;
        let (id, no_info) = (self.0.cast_unsigned(), std::ptr::null_mut());
        // SAFETY: waitid(2) takes numbers and a null pointer, for which it returns nothing.
        unsafe { libc::waitid(libc::P_PID, id, no_info, options) };
    }

    /// Returns the pid in this process's pid namespace.
    pub fn pid(&self) -> u32 {
        self.0.cast_unsigned()
    }
}

impl Drop for ProcessCopy {
    fn drop(&mut self) {
        // SAFETY: kill(2) takes numbers; the tracee's pid is not reused before waitpid(2).
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        // SAFETY: waitpid(2) takes numbers and a null pointer, for which it returns no status.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), libc::__WALL) };
    }
}
