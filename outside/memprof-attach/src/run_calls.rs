//! Remote calls: a stopped thread of the process makes them for memprof.

use std::io;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use libc::{MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE, SYS_mmap, SYS_munmap};
use memprof_ptrace::Refusal;
use memprof_ptrace::maps::mappings;
use memprof_ptrace::remote_call::{FrameLocations, RemoteCall, build_frames};
use memprof_ptrace::threads::waiting_syscall;

use crate::error::Error;
use crate::room::require_room;
use crate::safe_point::{NoSafePoint, SafePointThread, stop_at_safe_point};
use crate::target::Target;

/// Until a thread has made its calls, none of which waits.
pub(crate) const CALLS_TIMEOUT: Duration = Duration::from_secs(5);
pub(crate) const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// So many threads are tried that do not stop: each costs a second.
const SLEEPERS: usize = 4;

const WRITING: &str = "failed to write to its memory";

/// Maps memory that belongs to no file, where nothing is mapped.
pub(crate) fn map(address: u64, length: u64, protection: i32) -> RemoteCall {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    let no_file = u64::MAX;
    RemoteCall::Syscall(
        SYS_mmap,
        [address, length, protection as u64, flags as u64, no_file, 0],
    )
}

/// A thread on its way.
#[derive(Debug)]
pub(crate) struct CallInProgress {
    pub(crate) tid: u32,
    /// Where its stack is when it is back.
    stack: u64,
    /// How long it stood still.
    pub(crate) stop: Duration,
}

/// Has a thread at a safe point make calls, and returns while it makes them.
pub(crate) fn run_calls(
    target: &mut Target,
    calls: &[RemoteCall],
    stack: Option<u64>,
    blocked: u64,
) -> Result<CallInProgress, Error> {
    let mut avoided = Vec::new();
    loop {
        // A thread of its own each time: whatever it has stopped, or is about to, is let go when it ends.
        let sent = thread::scope(|scope| {
            let tries = || try_run_calls(target, calls, stack, blocked, &avoided);
            scope.spawn(tries).join()
        });
        match sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            Ok(sent) => return Ok(sent),
            Err(NoSafePoint::Unstoppable(_)) if avoided.len() == SLEEPERS => {
                let reason = "its threads do not stop (state D)".to_owned();
                return Err(Refusal::NoSafePoint { reason }.into());
            }
            Err(NoSafePoint::Unstoppable(tid)) => avoided.push(tid),
            Err(NoSafePoint::Failed(error)) => return Err(error),
        }
    }
}

/// Borrows a thread that is none of the `avoided` ones.
fn try_run_calls(
    target: &mut Target,
    calls: &[RemoteCall],
    stack: Option<u64>,
    blocked: u64,
    avoided: &[u32],
) -> Result<CallInProgress, NoSafePoint> {
    let at_home = if stack.is_some() { 0 } else { calls.len() };
    let borrowed = stop_at_safe_point(target, at_home, avoided)?;
    let places = FrameLocations {
        saved: borrowed.end,
        calls: stack,
    };
    let frames = build_frames(
        calls,
        places,
        blocked,
        target.gadgets,
        &borrowed.saved_context(),
    );
    for (address, bytes) in &frames.writes {
        let written = target.memory.write(*address, bytes);
        written.map_err(|cause| write_error(target, cause))?;
    }
    let SafePointThread {
        tid,
        stopped,
        registers,
        ..
    } = borrowed;
    let since = stopped.stopped_since();
    let left = stopped.detach_into(&frames.registers);
    left.map_err(|_| target.process_gone_error())?;
    Ok(CallInProgress {
        tid,
        stack: registers.rsp,
        stop: since.elapsed(),
    })
}

pub(crate) fn write_error(target: &Target, cause: io::Error) -> Error {
    let failed = |()| Error::io(WRITING)(cause);
    target.require_same().map_or_else(|gone| gone, failed)
}

/// Unmaps memory.
pub(crate) fn unmap(range: &Range<u64>) -> RemoteCall {
    RemoteCall::Syscall(
        SYS_munmap,
        [range.start, range.end - range.start, 0, 0, 0, 0],
    )
}

/// Until a thread that was sent to map memory has mapped all of the ranges, of which the last is mapped last.
pub(crate) fn wait_until_mapped(
    target: &mut Target,
    ranges: &[Range<u64>],
    sent: &CallInProgress,
) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        // Looked at first: once it is back, its calls are made.
        let is_back = is_back(target, sent);
        let is_mapped = |range: &Range<u64>| target.memory.word(range.start).is_ok();
        if ranges.iter().rev().all(is_mapped) {
            return Ok(());
        }
        target.require_same()?;
        if is_back {
            give_back(target, ranges);
            require_room(target.pid, &target.maps)?;
            let message = "the kernel gave it no memory (its cgroup's or the machine's is used up, or \
                           vm.overcommit_memory=2 promises no more); nothing is left behind";
            return Err(Error::Failed(message.to_owned()));
        }
        if begun.elapsed() > CALLS_TIMEOUT {
            let message = "its thread did not map memory for 5 s, and may do so later: is it held up (SIGSTOP, a \
                           debugger, no processor for its priority)?";
            return Err(Error::Failed(message.to_owned()));
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Whether a thread has made its calls.
pub(crate) fn is_back(target: &Target, sent: &CallInProgress) -> bool {
    waiting_syscall(target.pid, sent.tid).is_some_and(|call| call.stack == sent.stack)
}

/// Has what was mapped for an attachment unmapped again, as far as it is there: nothing runs in it.
pub(crate) fn give_back(target: &mut Target, ranges: &[Range<u64>]) {
    if target.refresh().is_err() {
        return;
    }
    let is_there = |range: &&Range<u64>| {
        let mut mappings = mappings(&target.maps);
        mappings.any(|mapping| mapping.range == **range && mapping.inode == 0)
    };
    let calls: Vec<_> = ranges.iter().filter(is_there).map(unmap).collect();
    if !calls.is_empty()
        && let Ok(sent) = run_calls(target, &calls, None, u64::MAX)
    {
        let begun = Instant::now();
        while !is_back(target, &sent) && begun.elapsed() < CALLS_TIMEOUT {
            thread::sleep(LOOK_AGAIN);
        }
        // It fails for a process that has ended.
        let _ = target.refresh();
    }
}
