//! Stops all threads of a process.

use std::fs;
use std::io;
use std::time::Instant;

use crate::memory::Memory;
use crate::stop::{PendingStop, StopError, StoppedThread};
use crate::syscall_restart::{self, CALL_LENGTH, would_see_eintr};

/// Reason why not all threads were stopped.
#[derive(Debug)]
pub enum StopAllError {
    /// The process has ended, or this user may not inspect it.
    Unreadable(io::Error),
    /// A thread, by its ID, was not stopped.
    Thread(u32, StopError),
}

/// Stops every thread of a process, including threads that it creates meanwhile. Adds them to `stopped` with their
/// IDs, also on failure.
///
/// # Errors
/// `Thread`: a thread cannot be traced, or does not stop before the deadline; `Unreadable`: the process's list of
/// threads cannot be read.
pub fn stop_all(
    pid: u32,
    deadline: Instant,
    stopped: &mut Vec<(u32, StoppedThread)>,
) -> Result<(), StopAllError> {
    let mut known: Vec<u32> = Vec::new();
    // Repeated until no thread is new: a running thread may create another one.
    loop {
        let tids = list_tids(pid).map_err(StopAllError::Unreadable)?;
        let is_new = |tid: &u32| known.binary_search(tid).is_err();
        let new: Vec<u32> = tids.into_iter().filter(is_new).collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut pending = Vec::new();
        let mut failed = None;
        for tid in new {
            known.push(tid);
            match PendingStop::request_stop(tid) {
                Ok(stop) => pending.push((tid, stop)),
                Err(StopError::Ended) => {}
                Err(error) => failed = Some(StopAllError::Thread(tid, error)),
            }
        }
        known.sort_unstable();
        for (tid, stop) in pending {
            match stop.wait(deadline) {
                Ok(thread) => stopped.push((tid, thread)),
                Err(StopError::Ended) => {}
                Err(error) => failed = Some(StopAllError::Thread(tid, error)),
            }
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
    }
}

/// Detaches a thread, by which it resumes. If its system call would fail with EINTR only because of the stop, the
/// thread restarts the call, unless `memory` cannot be read. Ignores a thread that was killed.
pub fn resume_with_restart(memory: &Memory, stopped: StoppedThread) {
    let registers = stopped.registers().ok().filter(would_see_eintr);
    let restarted = registers.and_then(|registers| {
        let code = memory.read_array(registers.rip.wrapping_sub(CALL_LENGTH as u64));
        syscall_restart::restarted_registers(&registers, code.ok()?)
    });
    if let Some(restarted) = restarted {
        // The request fails for a thread that was killed.
        let _ = stopped.resume_with(&restarted);
    }
    // Any other thread is detached by the drop of `stopped`.
}

/// Lists the thread IDs of a process, unsorted, from /proc/PID/task. Fails if the process has ended.
fn list_tids(pid: u32) -> io::Result<Vec<u32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    let tids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(tids.collect())
}
