//! All threads of a process, stopped.

use std::fs;
use std::io;
use std::time::Instant;

use crate::memory::Memory;
use crate::stop::{PendingStop, StopError, StoppedThread};
use crate::syscall_restart::{self, CALL_LENGTH, would_see_eintr};

/// Why not all threads stand still.
#[derive(Debug)]
pub enum StopAllError {
    /// The process has ended, or is not for this user to look into.
    Unreadable(io::Error),
    /// A thread does not stop.
    Thread(u32, StopError),
}

/// Stops every thread of a process, one that makes threads meanwhile too, and adds them to `stopped` with their
/// numbers; also where it fails.
///
/// # Errors
/// `Thread`: one is not to be traced, or does not stop before `until`. `Unreadable`.
pub fn stop_all(
    pid: u32,
    until: Instant,
    stopped: &mut Vec<(u32, StoppedThread)>,
) -> Result<(), StopAllError> {
    let mut known: Vec<u32> = Vec::new();
    // Until none is new: one that still runs may make another.
    loop {
        let tids = tids(pid).map_err(StopAllError::Unreadable)?;
        let is_new = |tid: &u32| known.binary_search(tid).is_err();
        let new: Vec<u32> = tids.into_iter().filter(is_new).collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut asked = Vec::new();
        let mut failed = None;
        for tid in new {
            known.push(tid);
            match PendingStop::request_stop(tid) {
                Ok(stopping) => asked.push((tid, stopping)),
                Err(StopError::Ended) => {}
                Err(why) => failed = Some(StopAllError::Thread(tid, why)),
            }
        }
        known.sort_unstable();
        for (tid, stopping) in asked {
            match stopping.wait(until) {
                Ok(thread) => stopped.push((tid, thread)),
                Err(StopError::Ended) => {}
                Err(why) => failed = Some(StopAllError::Thread(tid, why)),
            }
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
    }
}

/// Lets a thread go so that no system call of its fails because it stood still.
pub fn resume(memory: &Memory, stopped: StoppedThread) {
    let registers = stopped.registers().ok().filter(would_see_eintr);
    let again = registers.and_then(|registers| {
        let code = memory.bytes(registers.rip.wrapping_sub(CALL_LENGTH as u64));
        syscall_restart::restarted_registers(&registers, code.ok()?)
    });
    if let Some(again) = again {
        // It fails for a thread that was killed.
        let _ = stopped.resume_with(&again);
    }
}

fn tids(pid: u32) -> io::Result<Vec<u32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    let tids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(tids.collect())
}
