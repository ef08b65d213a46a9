//! A thread that can be borrowed: it waits in a call that it can make again, and holds no lock that the
//! making of a thread needs. Where none waits for a while, one that [runs](crate::running_thread).

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::thread;
use std::time::{Duration, Instant};

use memprof_ptrace::Refusal;
use memprof_ptrace::control_block::is_of_c_library;
use memprof_ptrace::frame_memory::{StackOwner, find_frame_memory};
use memprof_ptrace::remote_call::{self, SavedContext, is_signal_frame};
use memprof_ptrace::seccomp::{require_calls, rseq_area};
use memprof_ptrace::stop::{StopError, StoppedThread};
use memprof_ptrace::syscall_restart::{
    self, CALL_LENGTH, RestartClass, restart_class, would_see_eintr,
};
use memprof_ptrace::threads::threads;
use memprof_ptrace::xstate::XState;

use crate::error::Error;
use crate::target::Target;

/// So long it may take until a thread comes by.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_micros(300);
/// After so long, threads that run are looked at too.
const WAITED: Duration = Duration::from_millis(100);
/// So many at a time, and so often: each is stopped for the look.
const RUNNING: usize = 2;
const LET_RUN: Duration = Duration::from_millis(2);
/// How much of a stack is searched for a signal handler.
const SEARCHED: u64 = 256 << 10;
/// How much of it for allocators, in words: older frames are what a function has not cleared.
const RECENT: usize = 512;

/// Where `struct rseq` tells of the sequence.
const RSEQ_CS: u64 = 8;

/// Code of 64 bits.
const USER_CODE: u64 = 0x33;

/// A thread that stands still at a safe point.
#[derive(Debug)]
pub(crate) struct SafePointThread {
    pub(crate) tid: u32,
    pub(crate) stopped: StoppedThread,
    pub(crate) registers: libc::user_regs_struct,
    pub(crate) state: XState,
    pub(crate) blocked: u64,
    /// Where its frames may end.
    pub(crate) end: u64,
}

impl SafePointThread {
    /// As it goes on.
    pub(crate) fn saved_context(&self) -> SavedContext<'_> {
        SavedContext {
            registers: self.registers,
            state: &self.state,
            blocked: self.blocked,
        }
    }
}

/// Why none was borrowed.
#[derive(Debug)]
pub(crate) enum NoSafePoint {
    /// This thread does not stop (state D). It would stop as soon as it wakes, and is let go only when this
    /// thread of ours ends: ptrace(2) lets go of what has stopped.
    Unstoppable(u32),
    /// There is none to borrow.
    Failed(Error),
}

impl From<Error> for NoSafePoint {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Why a thread cannot be borrowed.
#[derive(Debug)]
enum UnsafeReason {
    /// At this moment.
    Retry(&'static str),
    /// It sleeps where nothing wakes it (state D).
    Unstoppable,
    /// Ever: its seccomp filters.
    Refused(Refusal),
    /// Nor any other one.
    Fatal(Error),
}

/// Stops the first thread at a safe point whose own stack has room for the frames of `calls` calls.
pub(crate) fn stop_at_safe_point(
    target: &mut Target,
    calls: usize,
    avoided: &[u32],
) -> Result<SafePointThread, NoSafePoint> {
    let begun = Instant::now();
    let mut why = Refusal::NoSafePoint {
        reason: "no thread waits in a system call that it could make again".to_owned(),
    };
    for round in 0.. {
        let runs = begun.elapsed() > WAITED;
        let (waiting, running) = candidates(target, round)?;
        let running = running.into_iter().take(if runs { RUNNING } else { 0 });
        let waiting = waiting
            .into_iter()
            .map(|tid| (tid, CandidateState::InSyscall));
        let candidates: Vec<_> = waiting
            .chain(running.map(|tid| (tid, CandidateState::Running)))
            .collect();
        target.refresh()?;
        if runs {
            let Target {
                running,
                memory,
                maps,
                pid,
                ..
            } = target;
            running.refresh(*pid, memory, maps);
        }
        for (tid, found) in candidates.iter().filter(|(tid, _)| !avoided.contains(tid)) {
            match stop(target, *tid, *found, calls) {
                Ok(borrowed) => return Ok(borrowed),
                Err(UnsafeReason::Retry(reason)) => {
                    let reason = reason.to_owned();
                    if let Refusal::NoSafePoint { .. } = why {
                        why = Refusal::NoSafePoint { reason };
                    }
                }
                Err(UnsafeReason::Refused(refusal)) => why = refusal,
                Err(UnsafeReason::Unstoppable) => return Err(NoSafePoint::Unstoppable(*tid)),
                Err(UnsafeReason::Fatal(error)) => return Err(error.into()),
            }
        }
        if begun.elapsed() > PATIENCE {
            break;
        }
        thread::sleep(if runs { LET_RUN } else { LOOK_AGAIN });
    }
    Err(Error::from(why).into())
}

/// How a thread was found.
#[derive(Clone, Copy, Debug)]
enum CandidateState {
    /// In a call that waits.
    InSyscall,
    /// In no call.
    Running,
}

/// The threads to try that wait, the best first: one of each kind, because a thousand may wait for the same; and
/// those that run. In each round others come first.
fn candidates(target: &Target, round: usize) -> Result<(Vec<u32>, Vec<u32>), Error> {
    let threads = threads(target.pid).map_err(|_| target.process_gone_error())?;
    let mut waiting: Vec<(RestartClass, u32)> = threads
        .iter()
        .filter_map(|thread| {
            let call = thread.call?;
            Some((restart_class(call.number, call.arguments)?, thread.tid))
        })
        .collect();
    waiting.sort_unstable();
    let kinds = waiting.chunk_by(|(one, _), (other, _)| one == other);
    let waiting = kinds.map(|kind| kind[round % kind.len()].1).collect();
    let running = threads.iter().filter(|thread| thread.is_runnable);
    let mut running: Vec<u32> = running.map(|thread| thread.tid).collect();
    let count = running.len().max(1);
    running.rotate_left(round % count);
    Ok((waiting, running))
}

/// Stops a thread, and lets it go where it is not safe.
fn stop(
    target: &mut Target,
    tid: u32,
    found: CandidateState,
    calls: usize,
) -> Result<SafePointThread, UnsafeReason> {
    let stopped = StoppedThread::interrupt(tid).map_err(|why| match why {
        StopError::Ended => UnsafeReason::Retry("its threads end"),
        StopError::Uninterruptible => UnsafeReason::Unstoppable,
        StopError::Refused(code) => UnsafeReason::Fatal(Error::Io {
            what: format!("failed to trace thread {tid}"),
            cause: io::Error::from_raw_os_error(code),
        }),
    })?;
    if stopped.signal().is_some() {
        return Err(UnsafeReason::Retry("signals arrive"));
    }
    match inspect(target, tid, found, &stopped, calls) {
        Ok((registers, state, blocked, end)) => Ok(SafePointThread {
            tid,
            stopped,
            registers,
            state,
            blocked,
            end,
        }),
        Err(not) => {
            let made_again = stopped.registers().ok().filter(would_see_eintr);
            let made_again = made_again.and_then(|registers| {
                let code = target
                    .memory
                    .bytes(registers.rip.wrapping_sub(CALL_LENGTH as u64));
                syscall_restart::restarted_registers(&registers, code.ok()?)
            });
            if let Some(registers) = made_again {
                // It fails for a thread that was killed.
                let _ = stopped.resume_with(&registers);
            }
            Err(not)
        }
    }
}

type ThreadSnapshot = (libc::user_regs_struct, XState, u64, u64);

const KILLED: UnsafeReason = UnsafeReason::Retry("its threads end");

fn inspect(
    target: &mut Target,
    tid: u32,
    found: CandidateState,
    stopped: &StoppedThread,
    calls: usize,
) -> Result<ThreadSnapshot, UnsafeReason> {
    let registers = stopped.registers().map_err(|_| KILLED)?;
    if registers.cs != USER_CODE {
        return Err(UnsafeReason::Retry("it runs code of 32 bits"));
    }
    if !is_of_c_library(&target.memory, tid, tid == target.pid, registers.fs_base) {
        return Err(UnsafeReason::Retry(
            "a thread has no control block of the C library's (made by clone(2) alone?)",
        ));
    }
    let again = match found {
        CandidateState::InSyscall => require_waiting(target, &registers)?,
        CandidateState::Running => require_program_code(target, tid, &registers)?,
    };
    // Each thread has filters of its own, and the new thread has those of this one.
    require_calls(tid).map_err(UnsafeReason::Refused)?;
    let state = stopped.state().map_err(|_| KILLED)?;
    let blocked = stopped.signal_mask().map_err(|_| KILLED)?;
    let home = SavedContext {
        registers: again,
        state: &state,
        blocked,
    };
    let owner = StackOwner {
        is_main: tid == target.pid,
        end_on_stack: remote_call::stack_limit(&home),
        control_block: registers.fs_base,
    };
    let length = remote_call::frames_size(calls, &home);
    let end = find_frame_memory(&target.memory, &target.maps, owner, length);
    let end = end.ok_or(UnsafeReason::Retry("a thread's stack has no room"))?;
    Ok((again, state, blocked, end))
}

/// Whether a thread runs where it may be borrowed; as it goes on.
fn require_program_code(
    target: &mut Target,
    tid: u32,
    registers: &libc::user_regs_struct,
) -> Result<libc::user_regs_struct, UnsafeReason> {
    if registers.orig_rax.cast_signed() >= 0 {
        return Err(UnsafeReason::Retry("its threads make system calls"));
    }
    // The kernel would not let it begin a sequence anew that it left meanwhile (rseq(2)).
    let area = rseq_area(tid)
        .map_err(|_| UnsafeReason::Retry("a thread runs, maybe in a restartable sequence"))?;
    let sequence = area.map(|area| target.memory.word(area + RSEQ_CS));
    if sequence.transpose().map_err(|_| KILLED)?.unwrap_or(0) != 0 {
        return Err(UnsafeReason::Retry(
            "a thread runs in a restartable sequence",
        ));
    }
    let restorer = target.gadgets.restorer;
    let Target {
        running, memory, ..
    } = target;
    let borrowed = running.require_safe_point(memory, registers, restorer);
    borrowed.map_err(UnsafeReason::Retry)?;
    Ok(*registers)
}

/// Whether a thread waits where it may be borrowed; as it goes on.
fn require_waiting(
    target: &Target,
    registers: &libc::user_regs_struct,
) -> Result<libc::user_regs_struct, UnsafeReason> {
    let r = registers;
    let arguments = [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9];
    let wait = restart_class(r.orig_rax as i64, arguments);
    let wait = wait.ok_or(UnsafeReason::Retry("its threads do not wait long enough"))?;
    let code = target.memory.bytes(r.rip.wrapping_sub(CALL_LENGTH as u64));
    let code: [u8; CALL_LENGTH] = code.map_err(|_| KILLED)?;
    if !code.ends_with(&[0x0f, 0x05]) {
        return Err(UnsafeReason::Retry(
            "a thread waits elsewhere than at a syscall instruction",
        ));
    }
    // No allocator waits for descriptors or children, nor reads what other programs write.
    let reads_others = wait == RestartClass::Read && is_stream(target.pid, r.rdi);
    let is_allocator_likely =
        ![RestartClass::Transparent, RestartClass::Events].contains(&wait) && !reads_others;
    check_stack(target, r.rsp, is_allocator_likely).map_err(UnsafeReason::Retry)?;
    let again = syscall_restart::restarted_registers(registers, code);
    again.ok_or(UnsafeReason::Retry(
        "a thread sleeps in a system call that cannot be identified from outside",
    ))
}

/// Whether a descriptor is a pipe, a socket or a terminal. The loader and allocators read files.
fn is_stream(pid: u32, descriptor: u64) -> bool {
    let link = fs::read_link(format!("/proc/{pid}/fd/{descriptor}"));
    let streams = ["pipe:", "socket:", "/dev/pts/", "/dev/tty"];
    link.is_ok_and(|link| {
        streams
            .iter()
            .any(|kind| link.as_os_str().as_bytes().starts_with(kind.as_bytes()))
    })
}

/// Whether a thread holds what it interrupted, or what called it.
fn check_stack(
    target: &Target,
    pointer: u64,
    is_allocator_likely: bool,
) -> Result<(), &'static str> {
    let stack = target.mapping(pointer).ok_or("a thread has no stack")?;
    let length = (stack.range.end - pointer).min(SEARCHED) & !7;
    let mut bytes = vec![0; length as usize];
    let read = target.memory.read(pointer, &mut bytes);
    read.map_err(|_| "a thread's stack cannot be read")?;
    let words = bytes.chunks_exact(8);
    let words: Vec<u64> = words
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect();
    let restorer = target.gadgets.restorer;
    if (0..words.len()).any(|at| is_signal_frame(&words[at..], restorer)) {
        return Err("its threads are in signal handlers");
    }
    let is_allocator = |word: &u64| target.allocators.iter().any(|code| code.contains(word));
    if is_allocator_likely && words.iter().take(RECENT).any(is_allocator) {
        return Err("its threads are in an allocator");
    }
    Ok(())
}
