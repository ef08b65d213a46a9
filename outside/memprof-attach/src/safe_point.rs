//! Finds a thread at a safe point: it waits in a system call that it can restart, and holds no lock that creating a
//! thread needs. If no thread waits for a while, a [running](crate::running_thread) one is stopped.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::thread;
use std::time::{Duration, Instant};

use memprof_ptrace::Refusal;
use memprof_ptrace::control_block::can_call_glibc;
use memprof_ptrace::frame_memory::{StackOwner, find_frame_memory};
use memprof_ptrace::process::ProcStatus;
use memprof_ptrace::remote_call::{self, SavedContext};
use memprof_ptrace::seccomp::{SpareCalls, require_plugin_calls, rseq_area};
use memprof_ptrace::stop::{StopError, StoppedThread};
use memprof_ptrace::syscall_restart::{
    self, CALL_LENGTH, RestartClass, restart_class, would_see_eintr,
};
use memprof_ptrace::threads::list_threads;
use memprof_ptrace::xstate::XState;

use crate::error::AttachError;
use crate::stack_scan::require_clean_stack;
use crate::target::Target;

/// Timeout for a thread to reach a safe point.
const SAFE_POINT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time to list threads in each round; the next round continues with the threads after them.
const LIST_TIME_LIMIT: Duration = Duration::from_millis(50);
const POLL_INTERVAL: Duration = Duration::from_micros(300);
/// Time after which running threads are tried too.
const RUNNING_THREADS_DELAY: Duration = Duration::from_millis(100);
/// Running threads tried in each round, and the time between rounds: each is stopped for its inspection.
const MAX_RUNNING_PER_ROUND: usize = 2;
const RUNNING_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Offset of `rseq_cs` in `struct rseq`.
const RSEQ_CS_OFFSET: u64 = 8;

/// Code segment (cs) of 64-bit code.
const USER_CODE_SEGMENT: u64 = 0x33;

/// A thread stopped at a safe point.
#[derive(Debug)]
pub(crate) struct SafePointThread {
    pub(crate) tid: u32,
    pub(crate) stopped: StoppedThread,
    pub(crate) registers: libc::user_regs_struct,
    pub(crate) state: XState,
    pub(crate) blocked: u64,
    /// Highest address at which its call frames may end.
    pub(crate) end: u64,
    /// Calls that its filters allow a new thread too.
    pub(crate) spare_calls: SpareCalls,
}

impl SafePointThread {
    /// Returns the context to restore after the remote calls.
    pub(crate) fn saved_context(&self) -> SavedContext<'_> {
        SavedContext {
            registers: self.registers,
            xstate: &self.state,
            blocked: self.blocked,
        }
    }
}

/// Reason why no thread was stopped at a safe point.
#[derive(Debug)]
pub(crate) enum NoSafePoint {
    /// The thread with this ID does not stop (state D). It would stop as soon as it wakes, and is detached only when
    /// the tracing thread of this process ends, because ptrace(2) detaches stopped threads only.
    Unstoppable(u32),
    /// No thread can be used.
    Failed(AttachError),
}

impl From<AttachError> for NoSafePoint {
    fn from(error: AttachError) -> Self {
        Self::Failed(error)
    }
}

/// Reason why a thread cannot make remote calls.
#[derive(Debug)]
enum UnsafeReason {
    /// The state changes with time; tried again.
    Retry(&'static str),
    /// The thread sleeps uninterruptibly (state D).
    Unstoppable,
    /// Its seccomp filters forbid the calls, permanently.
    Refused(Refusal),
    /// The reason holds for all threads.
    Fatal(AttachError),
}

/// Stops the first thread at a safe point that is not among the thread IDs `avoided` and has room for the frames of
/// `calls` remote calls. Tries running threads only after 100 ms.
///
/// Fails after 2 s: with the refusal of a thread's seccomp filter, if there was one, else with the reason of the thread
/// that was tried last. Fails at once with `Unstoppable` if a thread does not stop, which the caller then adds to
/// `avoided`, and with `Failed` if the reason holds for all threads.
pub(crate) fn stop_at_safe_point(
    target: &mut Target,
    calls: usize,
    avoided: &[u32],
) -> Result<SafePointThread, NoSafePoint> {
    let start = Instant::now();
    let mut last_refusal = Refusal::NoSafePoint {
        reason: "no thread waits in a system call that it could make again".to_owned(),
    };
    let mut first = 0;
    for round in 0.. {
        let tries_running = start.elapsed() > RUNNING_THREADS_DELAY;
        let (waiting, running) = list_candidate_threads(target, &mut first, round)?;
        let running = running.into_iter().take(if tries_running {
            MAX_RUNNING_PER_ROUND
        } else {
            0
        });
        let waiting = waiting
            .into_iter()
            .map(|tid| (tid, CandidateState::InSyscall));
        let candidates: Vec<_> = waiting
            .chain(running.map(|tid| (tid, CandidateState::Running)))
            .collect();
        target.refresh()?;
        if tries_running {
            let Target {
                running,
                memory,
                maps,
                pid,
                ..
            } = target;
            running.refresh(*pid, memory, maps);
        }
        for (tid, state_when_listed) in candidates.iter().filter(|(tid, _)| !avoided.contains(tid))
        {
            match stop_thread_if_safe(target, *tid, *state_when_listed, calls) {
                Ok(stopped) => return Ok(stopped),
                Err(UnsafeReason::Retry(reason)) => {
                    // A filter's refusal stays: it is permanent, and says more.
                    let reason = reason.to_owned();
                    if let Refusal::NoSafePoint { .. } = last_refusal {
                        last_refusal = Refusal::NoSafePoint { reason };
                    }
                }
                Err(UnsafeReason::Refused(refusal)) => last_refusal = refusal,
                Err(UnsafeReason::Unstoppable) => return Err(NoSafePoint::Unstoppable(*tid)),
                Err(UnsafeReason::Fatal(error)) => return Err(error.into()),
            }
        }
        if start.elapsed() > SAFE_POINT_TIMEOUT {
            break;
        }
        thread::sleep(if tries_running {
            RUNNING_POLL_INTERVAL
        } else {
            POLL_INTERVAL
        });
    }
    Err(AttachError::from(last_refusal).into())
}

/// State of a thread when it was listed.
#[derive(Clone, Copy, Debug)]
enum CandidateState {
    /// Waiting in a system call.
    InSyscall,
    /// Running in user code.
    Running,
}

/// Returns the IDs of the threads to try. The first list has waiting threads, the best first: one for each class of
/// calls, because a thousand may wait in the same call. The second list has running threads. Each round starts with
/// other threads. `first` advances by the number of listed threads. Fails if the process has ended.
fn list_candidate_threads(
    target: &Target,
    first: &mut usize,
    round: usize,
) -> Result<(Vec<u32>, Vec<u32>), AttachError> {
    let threads = list_threads(target.pid, *first, LIST_TIME_LIMIT);
    let threads = threads.map_err(|_| target.process_gone_error())?;
    *first += threads.len();
    let mut waiting: Vec<(RestartClass, u32)> = threads
        .iter()
        .filter_map(|thread| {
            let call = thread.call?;
            Some((restart_class(call.number, call.arguments)?, thread.tid))
        })
        .collect();
    waiting.sort_unstable();
    let groups = waiting.chunk_by(|(one, _), (other, _)| one == other);
    let waiting = groups.map(|group| group[round % group.len()].1).collect();
    let running = threads.iter().filter(|thread| thread.is_runnable);
    let mut running: Vec<u32> = running.map(|thread| thread.tid).collect();
    let count = running.len().max(1);
    running.rotate_left(round % count);
    Ok((waiting, running))
}

/// Stops a thread. If it is at no safe point, resumes it and fails with the reason. `state_when_listed` says whether a
/// safe point is a wait in a system call, or code of the program. `calls` is the number of calls for whose frames the
/// stack must have room.
fn stop_thread_if_safe(
    target: &mut Target,
    tid: u32,
    state_when_listed: CandidateState,
    calls: usize,
) -> Result<SafePointThread, UnsafeReason> {
    let stopped = StoppedThread::stop(tid).map_err(|error| match error {
        StopError::Ended => UnsafeReason::Retry("its threads end"),
        StopError::Uninterruptible => UnsafeReason::Unstoppable,
        StopError::Refused(code) => UnsafeReason::Fatal(AttachError::Io {
            what: format!("failed to trace thread {tid}"),
            cause: io::Error::from_raw_os_error(code),
        }),
    })?;
    if stopped.pending_signal().is_some() {
        return Err(UnsafeReason::Retry("signals arrive"));
    }
    match inspect_thread(target, tid, state_when_listed, &stopped, calls) {
        Ok((registers, state, blocked, end)) => Ok(SafePointThread {
            tid,
            stopped,
            registers,
            state,
            blocked,
            end,
            spare_calls: SpareCalls::for_thread(tid),
        }),
        Err(reason) => {
            let restarted = stopped.registers().ok().filter(would_see_eintr);
            let restarted = restarted.and_then(|registers| {
                let code = target
                    .memory
                    .read_array(registers.rip.wrapping_sub(CALL_LENGTH as u64));
                syscall_restart::restarted_registers(&registers, code.ok()?)
            });
            // Without these registers, the thread would see its call fail with EINTR. In other cases, dropping
            // `stopped` resumes the thread.
            if let Some(registers) = restarted {
                // The request fails for a thread that was killed.
                let _ = stopped.resume_with(&registers);
            }
            Err(reason)
        }
    }
}

/// Registers, vector registers, signal mask, and highest address for call frames.
type ThreadSnapshot = (libc::user_regs_struct, XState, u64, u64);

/// Reason if a thread ends while it is inspected.
const THREAD_ENDED: UnsafeReason = UnsafeReason::Retry("its threads end");

/// Reads the state of a stopped thread, and finds memory for the frames of `calls` calls. Returns the registers with
/// which the thread continues after the calls, its vector registers, its signal mask, and the end of the memory. Fails
/// unless the thread is at a safe point. `state_when_listed` says whether it must wait in a system call or run code of
/// the program.
fn inspect_thread(
    target: &mut Target,
    tid: u32,
    state_when_listed: CandidateState,
    stopped: &StoppedThread,
    calls: usize,
) -> Result<ThreadSnapshot, UnsafeReason> {
    // Checked while the thread is stopped: it cannot execute another program then.
    target.require_same_program().map_err(UnsafeReason::Fatal)?;
    let status = ProcStatus::read_thread(tid).map_err(|_| THREAD_ENDED)?;
    if status.has_pending_fault() {
        return Err(UnsafeReason::Retry("a signal of a fault is pending"));
    }
    let registers = stopped.registers().map_err(|_| THREAD_ENDED)?;
    if registers.cs != USER_CODE_SEGMENT {
        return Err(UnsafeReason::Retry("it runs code of 32 bits"));
    }
    if !can_call_glibc(&target.memory, tid, tid == target.pid, registers.fs_base) {
        return Err(UnsafeReason::Retry(
            "a thread has no control block of the C library's (made by clone(2) alone?)",
        ));
    }
    let registers_after = match state_when_listed {
        CandidateState::InSyscall => require_repeatable_wait(target, &registers)?,
        CandidateState::Running => require_program_code(target, tid, &registers)?,
    };
    // Each thread has its own filters, and a new thread inherits those of its creator.
    require_plugin_calls(tid).map_err(UnsafeReason::Refused)?;
    let state = stopped.xstate().map_err(|_| THREAD_ENDED)?;
    let blocked = stopped.signal_mask().map_err(|_| THREAD_ENDED)?;
    let saved = SavedContext {
        registers: registers_after,
        xstate: &state,
        blocked,
    };
    let owner = StackOwner {
        is_main: tid == target.pid,
        stack_end: remote_call::top_below_red_zone(&saved),
        control_block: registers.fs_base,
    };
    let length = remote_call::call_frames_size(calls, &saved);
    let end = find_frame_memory(&target.memory, &target.maps, owner, length);
    let end = end.ok_or(UnsafeReason::Retry("a thread's stack has no room"))?;
    Ok((registers_after, state, blocked, end))
}

/// Fails unless a running thread is in code of the program where it may make remote calls. Returns the registers
/// with which it continues, which are unchanged.
fn require_program_code(
    target: &mut Target,
    tid: u32,
    registers: &libc::user_regs_struct,
) -> Result<libc::user_regs_struct, UnsafeReason> {
    if registers.orig_rax.cast_signed() >= 0 {
        return Err(UnsafeReason::Retry("its threads make system calls"));
    }
    // The kernel cannot restart a restartable sequence that the thread leaves for a remote call (rseq(2)).
    let area = rseq_area(tid)
        .map_err(|_| UnsafeReason::Retry("a thread runs, maybe in a restartable sequence"))?;
    let sequence = area.map(|area| target.memory.read_u64(area + RSEQ_CS_OFFSET));
    if sequence.transpose().map_err(|_| THREAD_ENDED)?.unwrap_or(0) != 0 {
        return Err(UnsafeReason::Retry(
            "a thread runs in a restartable sequence",
        ));
    }
    let restorer = target.gadgets.restorer;
    let Target {
        running, memory, ..
    } = target;
    let checked = running.require_safe_point(memory, registers, restorer);
    checked.map_err(UnsafeReason::Retry)?;
    Ok(*registers)
}

/// Fails unless a thread waits in a system call that it can repeat, outside of signal handlers and allocators.
/// Returns the registers with which the thread repeats the call after the remote calls.
fn require_repeatable_wait(
    target: &Target,
    registers: &libc::user_regs_struct,
) -> Result<libc::user_regs_struct, UnsafeReason> {
    let r = registers;
    let arguments = [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9];
    let class = restart_class(r.orig_rax as i64, arguments);
    let class = class.ok_or(UnsafeReason::Retry("its threads do not wait long enough"))?;
    let code = target
        .memory
        .read_array(r.rip.wrapping_sub(CALL_LENGTH as u64));
    let code: [u8; CALL_LENGTH] = code.map_err(|_| THREAD_ENDED)?;
    // `syscall`.
    if !code.ends_with(&[0x0f, 0x05]) {
        return Err(UnsafeReason::Retry(
            "a thread waits elsewhere than at a syscall instruction",
        ));
    }
    // Allocators do not wait for descriptors or children, or read data of other programs.
    let reads_others = class == RestartClass::Read && is_stream(target.pid, r.rdi);
    let is_allocator_likely =
        ![RestartClass::Transparent, RestartClass::Events].contains(&class) && !reads_others;
    require_clean_stack(target, r.rsp, is_allocator_likely).map_err(UnsafeReason::Retry)?;
    let restarted = syscall_restart::restarted_registers(registers, code);
    restarted.ok_or(UnsafeReason::Retry(
        "a thread sleeps in a system call that cannot be identified from outside",
    ))
}

/// Returns whether a descriptor of a process is a pipe, a socket or a terminal. A thread that waits for one is not in
/// the loader or an allocator, which read only files.
fn is_stream(pid: u32, descriptor: u64) -> bool {
    let link = fs::read_link(format!("/proc/{pid}/fd/{descriptor}"));
    let streams = ["pipe:", "socket:", "/dev/pts/", "/dev/tty"];
    link.is_ok_and(|link| {
        streams
            .iter()
            .any(|kind| link.as_os_str().as_bytes().starts_with(kind.as_bytes()))
    })
}
