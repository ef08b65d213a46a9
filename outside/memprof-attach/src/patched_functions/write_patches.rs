//! Code of the process, written while all its threads stand still.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use libc::user_regs_struct;
use memprof_ptrace::maps::mappings;
use memprof_ptrace::stop::{StopError, StoppedThread};
use memprof_ptrace::stop_all::{StopAllError, resume, stop_all};
use memprof_sampler::EntryRow;

use crate::error::Error;
use crate::target::Target;

/// How long the threads may stand still before all of them do.
const STOP: Duration = Duration::from_millis(200);
/// Until all of them were seen outside of the bytes.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// So much of a stack is searched for what a signal interrupted.
const SEARCHED: u64 = 256 << 10;

/// The first bytes of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodePatch {
    pub(crate) at: u64,
    pub(crate) was: [u8; EntryRow::JUMP_SIZE],
    pub(crate) becomes: [u8; EntryRow::JUMP_SIZE],
}

/// Instructions that are executed elsewhere from then on: their bytes, and where each was and is.
#[derive(Clone, Debug)]
pub(crate) struct RelocatedRange {
    pub(crate) range: Range<u64>,
    pub(crate) places: Vec<(u64, u64)>,
}

/// Why it was not done this time.
enum PatchFailure {
    Retry(&'static str),
    Fatal(Error),
}

/// Makes the changes, each of them whole or not at all, and returns how long the threads stood still.
///
/// # Errors
/// They cannot be stopped where they do not execute the bytes. Nothing was changed then.
pub(crate) fn write(
    target: &mut Target,
    changes: &[CodePatch],
    away: &[RelocatedRange],
) -> Result<Duration, Error> {
    let begun = Instant::now();
    loop {
        target.refresh()?;
        // A thread of its own: whatever it has stopped, or is about to, is let go when it ends.
        let tried = thread::scope(|scope| scope.spawn(|| try_write(target, changes, away)).join());
        match tried.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            Ok(stop) => return Ok(stop),
            Err(PatchFailure::Fatal(error)) => return Err(error),
            Err(PatchFailure::Retry(why)) if begun.elapsed() > PATIENCE => {
                return Err(Error::NotPatched(format!("{why}; try again")));
            }
            Err(PatchFailure::Retry(_)) => thread::sleep(LOOK_AGAIN),
        }
    }
}

fn try_write(
    target: &Target,
    changes: &[CodePatch],
    away: &[RelocatedRange],
) -> Result<Duration, PatchFailure> {
    // Before they stand still: a process of many threads has many mappings.
    let mapped: Vec<_> = mappings(&target.maps)
        .map(|mapping| mapping.range)
        .collect();
    let begun = Instant::now();
    let mut threads = Vec::new();
    let stopped = stop_all(target.pid, begun + STOP, &mut threads);
    let done = stopped.map_err(|why| refused(target, why)).and_then(|()| {
        let moved = fix_up_threads(target, &mapped, &threads, away)?;
        for (stopped, registers) in moved {
            let placed = stopped.set_registers(&registers);
            placed.map_err(|_| PatchFailure::Retry("a thread ends"))?;
        }
        apply_patches(target, changes).map_err(PatchFailure::Fatal)
    });
    for (_, stopped) in threads {
        resume(&target.memory, stopped);
    }
    done.map(|()| begun.elapsed())
}

fn refused(target: &Target, why: StopAllError) -> PatchFailure {
    match why {
        StopAllError::Unreadable(_) => PatchFailure::Fatal(target.process_gone_error()),
        StopAllError::Thread(_, StopError::Uninterruptible | StopError::Ended) => {
            PatchFailure::Retry("a thread does not stop (state D)")
        }
        StopAllError::Thread(tid, StopError::Refused(code)) => PatchFailure::Fatal(Error::Io {
            what: format!("failed to trace thread {tid}"),
            cause: std::io::Error::from_raw_os_error(code),
        }),
    }
}

type RegisterFixups<'a> = Vec<(&'a StoppedThread, user_regs_struct)>;

/// The threads that are about to execute what moves, with the registers to go on at its new place: it does the same
/// there, whether the changes are made or not.
fn fix_up_threads<'a>(
    target: &Target,
    mapped: &[Range<u64>],
    threads: &'a [(u32, StoppedThread)],
    away: &[RelocatedRange],
) -> Result<RegisterFixups<'a>, PatchFailure> {
    let mut placed = Vec::new();
    if away.is_empty() {
        return Ok(placed);
    }
    for (_, stopped) in threads {
        let ends = |_| PatchFailure::Retry("a thread ends");
        let mut registers = stopped.registers().map_err(ends)?;
        check_stack(target, mapped, registers.rsp, away)?;
        let Some(place) = relocated_address(registers.rip, away).map_err(PatchFailure::Retry)?
        else {
            continue;
        };
        registers.rip = place;
        placed.push((stopped, registers));
    }
    Ok(placed)
}

/// A signal handler may return to where it interrupted its thread, in the midst of what moves.
fn check_stack(
    target: &Target,
    mapped: &[Range<u64>],
    pointer: u64,
    away: &[RelocatedRange],
) -> Result<(), PatchFailure> {
    let stack = mapped.get(mapped.partition_point(|range| range.end <= pointer));
    let Some(stack) = stack.filter(|range| range.contains(&pointer)) else {
        // Mapped since: a thread that has just begun.
        return Err(PatchFailure::Retry("a thread has no stack"));
    };
    let length = (stack.end - pointer).min(SEARCHED) & !7;
    let mut bytes = vec![0; length as usize];
    let read = target.memory.read(pointer, &mut bytes);
    read.map_err(|_| PatchFailure::Retry("a thread's stack cannot be read"))?;
    let words = bytes.chunks_exact(8);
    let words = words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    match contains_relocated(words, away) {
        true => Err(PatchFailure::Retry(
            "a signal handler runs within the allocator",
        )),
        false => Ok(()),
    }
}

/// Whether one of the words is the address of an instruction that moves, other than the first of its function.
fn contains_relocated(mut words: impl Iterator<Item = u64>, away: &[RelocatedRange]) -> bool {
    let lowest = away.iter().map(|each| each.range.start).min();
    let highest = away.iter().map(|each| each.range.end).max();
    let (lowest, highest) = (lowest.unwrap_or(0), highest.unwrap_or(0));
    let is_near = |word: u64| lowest < word && word < highest;
    words.any(|word| is_near(word) && away.iter().any(|each| is_inside(each, word)))
}

/// Where a thread goes on that is about to execute an instruction which moves; none for all others.
fn relocated_address(
    instruction: u64,
    away: &[RelocatedRange],
) -> Result<Option<u64>, &'static str> {
    let Some(moved) = away.iter().find(|each| is_inside(each, instruction)) else {
        return Ok(None);
    };
    let mut places = moved.places.iter();
    let place = places.find(|(was, _)| *was == instruction);
    let (_, is) = place.ok_or("a thread is within an instruction")?;
    Ok(Some(*is))
}

/// Behind the first byte: there it may still be.
fn is_inside(away: &RelocatedRange, address: u64) -> bool {
    away.range.start < address && address < away.range.end
}

fn apply_patches(target: &Target, changes: &[CodePatch]) -> Result<(), Error> {
    let memory = &target.memory;
    let failed = || Error::io("failed to write to its code");
    for change in changes {
        let found: [u8; EntryRow::JUMP_SIZE] = memory.bytes(change.at).map_err(failed())?;
        if found != change.was {
            let message = format!("its code at {:#x} has changed meanwhile", change.at);
            return Err(Error::NotPatched(message));
        }
    }
    for change in changes {
        // On one page (`NotRelocatable::TwoPages`), so that it is not half done where this program is killed.
        memory.write(change.at, &change.becomes).map_err(failed())?;
        let written: [u8; EntryRow::JUMP_SIZE] = memory.bytes(change.at).map_err(failed())?;
        if written != change.becomes {
            let message = format!("its code at {:#x} does not keep what is written", change.at);
            return Err(Error::NotPatched(message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two functions, whose instructions of 2 and 4 bytes, and of 7 bytes, go elsewhere.
    fn away() -> [RelocatedRange; 2] {
        [
            RelocatedRange {
                range: 0x1000..0x1006,
                places: vec![(0x1000, 0x9010), (0x1002, 0x9012)],
            },
            RelocatedRange {
                range: 0x2000..0x2007,
                places: vec![(0x2000, 0x9090)],
            },
        ]
    }

    #[test]
    fn a_thread_within_moved_instructions_goes_on_in_the_copy() {
        let check =
            |instruction, expected| assert_eq!(relocated_address(instruction, &away()), expected);
        check(0xfff, Ok(None));
        // It takes the jump.
        check(0x1000, Ok(None));
        check(0x1002, Ok(Some(0x9012)));
        check(0x1003, Err("a thread is within an instruction"));
        check(0x1006, Ok(None));
        check(0x2007, Ok(None));
        check(0x9012, Ok(None));
    }

    #[test]
    fn a_stack_with_an_address_of_a_moved_instruction_is_found() {
        let check = |words: &[u64], expected| {
            assert_eq!(
                contains_relocated(words.iter().copied(), &away()),
                expected,
                "{words:x?}"
            );
        };
        check(&[], false);
        check(
            &[7, 0x1000, 0x1006, 0x1500, 0x2000, 0x2007, u64::MAX],
            false,
        );
        check(&[7, 0x1002], true);
        check(&[0x2001, 7], true);
    }
}
