//! Alternate signal stacks (sigaltstack(2)): only the kernel has the pointer to a stack that the program has allocated
//! and handed over. Each thread is requested to read its own by a remote call, one after the other, while the rest of
//! the process runs.

use std::thread;
use std::time::{Duration, Instant};

use memprof_ptrace::remote_call::{FrameLocations, RemoteCall, build_frames};
use memprof_ptrace::seccomp::require_signal_stack_calls;

use super::{CopyTarget, POLL_INTERVAL, read_proc_file, threads};
use crate::error::Error;

/// Longest wait for one thread.
const CALL_TIMEOUT: Duration = Duration::from_millis(100);
/// Longest wait for all threads.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Most attempts for each thread.
const MAX_ATTEMPTS: u32 = 10;
/// Bytes between the call's frames and the `stack_t` below them.
const RESULT_DISTANCE: u64 = 64;

/// Alternate signal stacks of a process.
#[derive(Debug, Default)]
pub(crate) struct SignalStacks {
    /// Start addresses.
    pub(crate) starts: Vec<u64>,
    /// Number of threads whose stack could not be read.
    pub(crate) unread: u64,
}

impl CopyTarget {
    /// Finds where the alternate signal stacks of the threads start. Blocks up to a second, and stops one thread at a
    /// time. Tries again later with threads that are at no safe point.
    pub(crate) fn read_signal_stacks(&self) -> SignalStacks {
        let mut stacks = SignalStacks::default();
        let deadline = Instant::now() + TOTAL_TIMEOUT;
        let mut pending = threads::list_tids(self.pid).unwrap_or_default();
        // A thread that is at no safe point may be at one later.
        for _ in 0..MAX_ATTEMPTS {
            pending.retain(|tid| {
                let is_late = Instant::now() > deadline;
                match (!is_late).then(|| self.read_signal_stack(*tid)) {
                    Some(Ok(start)) => {
                        stacks.starts.extend(start);
                        false
                    }
                    Some(Err(_)) | None => true,
                }
            });
            if pending.is_empty() || Instant::now() > deadline {
                break;
            }
            thread::sleep(POLL_INTERVAL);
        }
        stacks.unread = pending.len() as u64;
        stacks
    }

    /// Stops a thread, and makes it call sigaltstack(2). Returns the start of the thread's alternate signal stack;
    /// `None` if it has none. Fails if the thread is at no point where it can make a call, or has ended.
    fn read_signal_stack(&self, tid: u32) -> Result<Option<u64>, Error> {
        if !self.is_same_program() {
            return Err(Error::NoThread("it executes another program"));
        }
        let maps = read_proc_file(self.pid, "maps")?;
        let mut threads = threads::stop_thread(self.pid, tid)?;
        let (thread, stopped) = threads.pick_thread_for(require_signal_stack_calls, |thread| {
            self.has_frame_memory(&maps, thread)
        })?;
        let context = thread.saved_context();
        let memory = self.frame_memory_end(&maps, &context, tid);
        let saved = memory.ok_or(Error::NoThread("its stacks have no room"))?;
        let locations = FrameLocations { saved, calls: None };
        let call = |result| RemoteCall::Syscall(libc::SYS_sigaltstack, [0, result, 0, 0, 0, 0]);
        let build =
            |result| build_frames(&[call(result)], locations, u64::MAX, self.gadgets, &context);
        // The room for a copy's frames includes one more frame, which is larger than a `stack_t`.
        let lowest = build(0).writes.iter().map(|(address, _)| *address).min();
        let result = (lowest.unwrap_or(saved) - RESULT_DISTANCE) & !15;
        let frames = build(result);
        for (address, bytes) in &frames.writes {
            let written = self.memory.write(*address, bytes);
            written.map_err(Error::with_action("failed to write to a stack"))?;
        }
        let deadline = Instant::now() + CALL_TIMEOUT;
        let stopped = stopped
            .run_system_call(&frames.registers, libc::SYS_sigaltstack, deadline)
            .map_err(Error::with_action("failed to read a signal stack"))?;
        // The fields of `stack_t`: `ss_sp`, `ss_flags` and `ss_size`.
        let words: [u64; 3] =
            [0, 8, 16].map(|offset| self.memory.read_u64(result + offset).unwrap_or(0));
        drop(stopped);
        let [start, flags, _size] = words;
        let is_disabled = flags as u32 & libc::SS_DISABLE as u32 != 0;
        Ok((!is_disabled && start != 0).then_some(start))
    }
}
