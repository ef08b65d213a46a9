//! A thread that can be borrowed: it waits in a call that it can make again, and holds no lock that the
//! making of a thread needs. Where none waits for a while, one that [runs](crate::running).

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::thread;
use std::time::{Duration, Instant};

use memprof_ptrace::Refusal;
use memprof_ptrace::control_block::is_of_c_library;
use memprof_ptrace::errand::{self, Home, is_handler};
use memprof_ptrace::place::{Owner, place};
use memprof_ptrace::restart::{self, CALL_LENGTH, Wait, wait, would_see_eintr};
use memprof_ptrace::seccomp::{require_calls, rseq_area};
use memprof_ptrace::state::State;
use memprof_ptrace::stop::{NotStopped, Stopped};
use memprof_ptrace::threads::threads;

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
pub(crate) struct Borrowed {
    pub(crate) tid: u32,
    pub(crate) stopped: Stopped,
    pub(crate) registers: libc::user_regs_struct,
    pub(crate) state: State,
    pub(crate) blocked: u64,
    /// Where its frames may end.
    pub(crate) end: u64,
}

impl Borrowed {
    /// As it goes on.
    pub(crate) fn home(&self) -> Home<'_> {
        Home {
            registers: self.registers,
            state: &self.state,
            blocked: self.blocked,
        }
    }
}

/// Why none was borrowed.
#[derive(Debug)]
pub(crate) enum NotBorrowed {
    /// This thread does not stop (state D). It would stop as soon as it wakes, and is let go only when this
    /// thread of ours ends: ptrace(2) lets go of what has stopped.
    Sleeps(u32),
    /// There is none to borrow.
    None(Error),
}

impl From<Error> for NotBorrowed {
    fn from(error: Error) -> Self {
        Self::None(error)
    }
}

/// Why a thread cannot be borrowed.
#[derive(Debug)]
enum Not {
    /// At this moment.
    Now(&'static str),
    /// It sleeps where nothing wakes it (state D).
    Sleeps,
    /// Ever: its seccomp filters.
    Ever(Refusal),
    /// Nor any other one.
    AnyThread(Error),
}

/// Stops the first thread that can be borrowed for an errand of so many calls at its own place.
pub(crate) fn borrow(
    target: &mut Target,
    calls: usize,
    avoided: &[u32],
) -> Result<Borrowed, NotBorrowed> {
    let begun = Instant::now();
    let mut why = Refusal::NoSafePoint {
        reason: "no thread waits in a system call that it could make again".to_owned(),
    };
    for round in 0.. {
        let runs = begun.elapsed() > WAITED;
        let (waiting, running) = candidates(target, round)?;
        let running = running.into_iter().take(if runs { RUNNING } else { 0 });
        let waiting = waiting.into_iter().map(|tid| (tid, Found::Waits));
        let candidates: Vec<_> = waiting
            .chain(running.map(|tid| (tid, Found::Runs)))
            .collect();
        target.look_again()?;
        if runs {
            let Target {
                running,
                memory,
                maps,
                pid,
                ..
            } = target;
            running.look_again(*pid, memory, maps);
        }
        for (tid, found) in candidates.iter().filter(|(tid, _)| !avoided.contains(tid)) {
            match stop(target, *tid, *found, calls) {
                Ok(borrowed) => return Ok(borrowed),
                Err(Not::Now(reason)) => {
                    let reason = reason.to_owned();
                    if let Refusal::NoSafePoint { .. } = why {
                        why = Refusal::NoSafePoint { reason };
                    }
                }
                Err(Not::Ever(refusal)) => why = refusal,
                Err(Not::Sleeps) => return Err(NotBorrowed::Sleeps(*tid)),
                Err(Not::AnyThread(error)) => return Err(error.into()),
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
enum Found {
    /// In a call that waits.
    Waits,
    /// In no call.
    Runs,
}

/// The threads to try that wait, the best first: one of each kind, because a thousand may wait for the same; and
/// those that run. In each round others come first.
fn candidates(target: &Target, round: usize) -> Result<(Vec<u32>, Vec<u32>), Error> {
    let threads = threads(target.pid).map_err(|_| target.gone())?;
    let mut waiting: Vec<(Wait, u32)> = threads
        .iter()
        .filter_map(|thread| {
            let call = thread.call?;
            Some((wait(call.number, call.arguments)?, thread.tid))
        })
        .collect();
    waiting.sort_unstable();
    let kinds = waiting.chunk_by(|(one, _), (other, _)| one == other);
    let waiting = kinds.map(|kind| kind[round % kind.len()].1).collect();
    let running = threads.iter().filter(|thread| thread.runs);
    let mut running: Vec<u32> = running.map(|thread| thread.tid).collect();
    let count = running.len().max(1);
    running.rotate_left(round % count);
    Ok((waiting, running))
}

/// Stops a thread, and lets it go where it is not safe.
fn stop(target: &mut Target, tid: u32, found: Found, calls: usize) -> Result<Borrowed, Not> {
    let stopped = Stopped::interrupt(tid).map_err(|why| match why {
        NotStopped::Ended => Not::Now("its threads end"),
        NotStopped::Uninterruptible => Not::Sleeps,
        NotStopped::Refused(code) => Not::AnyThread(Error::Io {
            what: format!("failed to trace thread {tid}"),
            cause: io::Error::from_raw_os_error(code),
        }),
    })?;
    if stopped.signal().is_some() {
        return Err(Not::Now("signals arrive"));
    }
    match look(target, tid, found, &stopped, calls) {
        Ok((registers, state, blocked, end)) => Ok(Borrowed {
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
                restart::again(&registers, code.ok()?)
            });
            if let Some(registers) = made_again {
                // It fails for a thread that was killed.
                let _ = stopped.go_on(&registers);
            }
            Err(not)
        }
    }
}

type Looked = (libc::user_regs_struct, State, u64, u64);

const KILLED: Not = Not::Now("its threads end");

fn look(
    target: &mut Target,
    tid: u32,
    found: Found,
    stopped: &Stopped,
    calls: usize,
) -> Result<Looked, Not> {
    let registers = stopped.registers().map_err(|_| KILLED)?;
    if registers.cs != USER_CODE {
        return Err(Not::Now("it runs code of 32 bits"));
    }
    if !is_of_c_library(&target.memory, tid, tid == target.pid, registers.fs_base) {
        return Err(Not::Now(
            "a thread has no control block of the C library's (made by clone(2) alone?)",
        ));
    }
    let again = match found {
        Found::Waits => require_wait(target, &registers)?,
        Found::Runs => require_code_of_the_program(target, tid, &registers)?,
    };
    // Each thread has filters of its own, and the new thread has those of this one.
    require_calls(tid).map_err(Not::Ever)?;
    let state = stopped.state().map_err(|_| KILLED)?;
    let blocked = stopped.blocked().map_err(|_| KILLED)?;
    let home = Home {
        registers: again,
        state: &state,
        blocked,
    };
    let owner = Owner {
        is_main: tid == target.pid,
        end_on_stack: errand::end_on_stack(&home),
        control_block: registers.fs_base,
    };
    let length = errand::length(calls, &home);
    let end = place(&target.memory, &target.maps, owner, length);
    let end = end.ok_or(Not::Now("a thread's stack has no room"))?;
    Ok((again, state, blocked, end))
}

/// Whether a thread runs where it may be borrowed; as it goes on.
fn require_code_of_the_program(
    target: &mut Target,
    tid: u32,
    registers: &libc::user_regs_struct,
) -> Result<libc::user_regs_struct, Not> {
    if registers.orig_rax.cast_signed() >= 0 {
        return Err(Not::Now("its threads make system calls"));
    }
    // The kernel would not let it begin a sequence anew that it left meanwhile (rseq(2)).
    let area =
        rseq_area(tid).map_err(|_| Not::Now("a thread runs, maybe in a restartable sequence"))?;
    let sequence = area.map(|area| target.memory.word(area + RSEQ_CS));
    if sequence.transpose().map_err(|_| KILLED)?.unwrap_or(0) != 0 {
        return Err(Not::Now("a thread runs in a restartable sequence"));
    }
    let restorer = target.gadgets.restorer;
    let Target {
        running, memory, ..
    } = target;
    let borrowed = running.may_be_borrowed(memory, registers, restorer);
    borrowed.map_err(Not::Now)?;
    Ok(*registers)
}

/// Whether a thread waits where it may be borrowed; as it goes on.
fn require_wait(
    target: &Target,
    registers: &libc::user_regs_struct,
) -> Result<libc::user_regs_struct, Not> {
    let r = registers;
    let arguments = [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9];
    let wait = wait(r.orig_rax as i64, arguments);
    let wait = wait.ok_or(Not::Now("its threads do not wait long enough"))?;
    let code = target.memory.bytes(r.rip.wrapping_sub(CALL_LENGTH as u64));
    let code: [u8; CALL_LENGTH] = code.map_err(|_| KILLED)?;
    if !code.ends_with(&[0x0f, 0x05]) {
        return Err(Not::Now(
            "a thread waits elsewhere than at a syscall instruction",
        ));
    }
    // No allocator waits for descriptors or children, nor reads what other programs write.
    let reads_others = wait == Wait::Reads && is_stream(target.pid, r.rdi);
    let is_allocator_likely = ![Wait::Same, Wait::Events].contains(&wait) && !reads_others;
    check_stack(target, r.rsp, is_allocator_likely).map_err(Not::Now)?;
    let again = restart::again(registers, code);
    again.ok_or(Not::Now(
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
    if (0..words.len()).any(|at| is_handler(&words[at..], restorer)) {
        return Err("its threads are in signal handlers");
    }
    let is_allocator = |word: &u64| target.allocators.iter().any(|code| code.contains(word));
    if is_allocator_likely && words.iter().take(RECENT).any(is_allocator) {
        return Err("its threads are in an allocator");
    }
    Ok(())
}
