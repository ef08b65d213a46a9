//! Makes a thread of the target run remote calls.

use std::io;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use libc::{MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE, SYS_mmap, SYS_munmap};
use memprof_ptrace::Refusal;
use memprof_ptrace::maps::mappings;
use memprof_ptrace::remote_call::{FrameLocations, RemoteCall, build_frames};
use memprof_ptrace::threads::waiting_syscall;

use crate::error::AttachError;
use crate::room::require_room_for_attachment;
use crate::safe_point::{NoSafePoint, SafePointThread, stop_at_safe_point};
use crate::shared_page;
use crate::step_deadline::{CALLS_TIMEOUT, StepDeadline, is_ready_to_run};
use crate::target::Target;

pub(crate) const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Threads that may fail to stop before the attempt is given up: each costs a second.
const MAX_UNSTOPPABLE: usize = 4;

const WRITE_ERROR: &str = "failed to write to its memory";

/// Builds the call that maps private anonymous memory at an address. The call fails if something is mapped there.
pub(crate) fn build_map_call(address: u64, length: u64, protection: i32) -> RemoteCall {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    let no_file = u64::MAX;
    RemoteCall::Syscall(
        SYS_mmap,
        [address, length, protection as u64, flags as u64, no_file, 0],
    )
}

/// A thread that makes remote calls.
#[derive(Debug)]
pub(crate) struct CallInProgress {
    pub(crate) tid: u32,
    /// Stack pointer of the thread once it has returned from the calls.
    stack: u64,
    /// Duration of the stop of the thread.
    pub(crate) stop: Duration,
}

/// Stack of remote calls of functions, which may create a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FunctionStack {
    pub(crate) end: u64,
    /// Address of the shared page, in which the calls are noted that the filters of the calling thread, and so those of
    /// a new thread, allow.
    pub(crate) page: u64,
}

/// Makes a thread at a safe point run calls: stops it, writes the frames of the calls, and detaches it. Does not wait
/// for the end of the calls. Calls of functions need a `stack` of their own; `None` if all are system calls. The thread
/// has the signal mask `blocked` meanwhile. Tries other threads if one does not stop, up to four times. Fails if no
/// thread reaches a safe point in time.
pub(crate) fn run_calls(
    target: &mut Target,
    calls: &[RemoteCall],
    stack: Option<FunctionStack>,
    blocked: u64,
) -> Result<CallInProgress, AttachError> {
    let mut avoided = Vec::new();
    loop {
        // A separate thread each time: when it ends, the kernel detaches every thread that it has stopped or
        // requested to stop.
        let call = thread::scope(|scope| {
            let tries = || try_run_calls(target, calls, stack, blocked, &avoided);
            scope.spawn(tries).join()
        });
        match call.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            Ok(call) => return Ok(call),
            Err(NoSafePoint::Unstoppable(tid)) if avoided.len() == MAX_UNSTOPPABLE => {
                let reason = match is_ready_to_run(target.pid, tid) {
                    true => "its threads wait for a processor, for a second each",
                    false => "its threads do not stop (state D)",
                };
                let reason = reason.to_owned();
                return Err(Refusal::NoSafePoint { reason }.into());
            }
            Err(NoSafePoint::Unstoppable(tid)) => avoided.push(tid),
            Err(NoSafePoint::Failed(error)) => return Err(error),
        }
    }
}

/// Makes a thread that is not among the thread IDs `avoided` run `calls`, in one attempt. `stack` is that of calls of
/// functions, and `blocked` the signal mask during the calls. Fails if no such thread reaches a safe point in time, or
/// if one cannot be stopped.
fn try_run_calls(
    target: &mut Target,
    calls: &[RemoteCall],
    stack: Option<FunctionStack>,
    blocked: u64,
    avoided: &[u32],
) -> Result<CallInProgress, NoSafePoint> {
    // Calls on a separate stack leave only the saved context on the thread's own.
    let calls_on_own_stack = if stack.is_some() { 0 } else { calls.len() };
    let thread = stop_at_safe_point(target, calls_on_own_stack, avoided)?;
    let locations = FrameLocations {
        saved: thread.end,
        calls: stack.map(|stack| stack.end),
    };
    let frames = build_frames(
        calls,
        locations,
        blocked,
        target.gadgets,
        &thread.saved_context(),
    );
    let spare_calls = thread.spare_calls;
    let SafePointThread {
        tid,
        stopped,
        registers,
        ..
    } = thread;
    let write_all = || -> io::Result<()> {
        for (address, bytes) in &frames.writes {
            target.memory.write(*address, bytes)?;
        }
        if let Some(FunctionStack { page, .. }) = stack {
            for (offset, word) in shared_page::spare_call_words(spare_calls) {
                target.memory.write(page + offset, &word.to_le_bytes())?;
            }
        }
        Ok(())
    };
    if let Err(cause) = write_all() {
        // The frames are unused memory. Without these registers, the thread's system call could fail with EINTR. The
        // request fails for a thread that was killed.
        let _ = stopped.resume_with(&registers);
        return Err(write_error(target, cause).into());
    }
    let since = stopped.stopped_since();
    let detached = stopped.detach_into_remote_call(&frames.registers);
    detached.map_err(|_| target.process_gone_error())?;
    Ok(CallInProgress {
        tid,
        stack: registers.rsp,
        stop: since.elapsed(),
    })
}

/// Builds the error for a failed write to the target's memory. If the process has ended or executed another program,
/// the error says so.
pub(crate) fn write_error(target: &Target, cause: io::Error) -> AttachError {
    let failed = |()| AttachError::io_error(WRITE_ERROR)(cause);
    target
        .require_same_program()
        .map_or_else(|error| error, failed)
}

/// Builds the call of munmap(2) that unmaps a range of addresses.
pub(crate) fn build_unmap_call(range: &Range<u64>) -> RemoteCall {
    RemoteCall::Syscall(
        SYS_munmap,
        [range.start, range.end - range.start, 0, 0, 0, 0],
    )
}

/// Waits until a thread has mapped all `ranges`, in their order. If the kernel refuses one, unmaps the others and
/// fails. Also fails after 5 s, or after 30 s if the thread waits for a processor.
pub(crate) fn wait_until_mapped(
    target: &mut Target,
    ranges: &[Range<u64>],
    call: &CallInProgress,
) -> Result<(), AttachError> {
    let mut deadline = StepDeadline::new();
    loop {
        // Checked before the mappings: once the thread has returned, its calls were made.
        let is_done = has_returned(target, call);
        let is_mapped = |range: &Range<u64>| target.memory.read_u64(range.start).is_ok();
        // The range that is mapped last is the first to be missing.
        if ranges.iter().rev().all(is_mapped) {
            return Ok(());
        }
        target.require_same_program()?;
        if is_done {
            let message = "the kernel gave it no memory (its cgroup's or the machine's is used up, or \
                           vm.overcommit_memory=2 promises no more)";
            let are_left = unmap_ranges(target, ranges);
            let failed = AttachError::Failed(message.to_owned());
            let refused = require_room_for_attachment(target.pid, &target.maps).err();
            return Err(refused
                .map_or(failed, AttachError::from)
                .with_pages_left(are_left));
        }
        if deadline.has_passed(target.pid, call.tid) {
            return Err(AttachError::Failed(format!(
                "its thread did not map memory for {} s: is it held up (SIGSTOP, a debugger, too many busy threads, no \
                 processor for its priority)? Once it goes on, 150 KiB stay mapped there, without effect, until the \
                 process ends",
                deadline.elapsed_seconds()
            )));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns whether a thread has made its calls and waits again in a system call, with the stack pointer that it had
/// when it was stopped.
pub(crate) fn has_returned(target: &Target, call: &CallInProgress) -> bool {
    waiting_syscall(target.pid, call.tid).is_some_and(|waiting| waiting.stack == call.stack)
}

/// Makes a thread of the target unmap those of the ranges that are mapped, and waits up to 5 s until it has. No code in
/// the ranges may be running. Returns whether some stay mapped, because no thread could unmap them.
pub(crate) fn unmap_ranges(target: &mut Target, ranges: &[Range<u64>]) -> bool {
    let mapped = |target: &Target| -> Vec<Range<u64>> {
        let is_mapped = |range: &&Range<u64>| {
            let mut mappings = mappings(&target.maps);
            mappings.any(|mapping| mapping.range == **range && mapping.inode == 0)
        };
        ranges.iter().filter(is_mapped).cloned().collect()
    };
    // Nothing is left of a process that has ended or executed another program.
    if target.refresh().is_err() {
        return false;
    }
    let calls: Vec<_> = mapped(target).iter().map(build_unmap_call).collect();
    if calls.is_empty() {
        return false;
    }
    if let Ok(call) = run_calls(target, &calls, None, u64::MAX) {
        let start = Instant::now();
        while !has_returned(target, &call) && start.elapsed() < CALLS_TIMEOUT {
            thread::sleep(POLL_INTERVAL);
        }
    }
    target.refresh().is_ok() && !mapped(target).is_empty()
}
