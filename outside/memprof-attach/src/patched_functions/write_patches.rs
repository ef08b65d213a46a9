//! Writes patches to the code of a process while all its threads are stopped.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use libc::user_regs_struct;
use memprof_ptrace::maps::mappings;
use memprof_ptrace::memory::Memory;
use memprof_ptrace::stop::{StopError, StoppedThread};
use memprof_ptrace::stop_all::{StopAllError, resume_with_restart, stop_all};
use memprof_sampler::EntryRow;

use crate::error::AttachError;
use crate::target::Target;

/// Timeout for all threads to be stopped.
const STOP_ALL_TIMEOUT: Duration = Duration::from_millis(200);
/// Timeout for all threads to be outside of the patched bytes.
const PATCH_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// Bytes of a stack that are scanned for an address that a signal interrupted.
const STACK_SCAN_LIMIT: u64 = 256 << 10;

/// A replacement of a function's first bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodePatch {
    pub(crate) address: u64,
    pub(crate) original: [u8; EntryRow::JUMP_SIZE],
    pub(crate) patched: [u8; EntryRow::JUMP_SIZE],
}

/// A relocated prologue: its original range, and the original and relocated address of each instruction.
#[derive(Clone, Debug)]
pub(crate) struct RelocatedRange {
    pub(crate) range: Range<u64>,
    pub(crate) addresses: Vec<(u64, u64)>,
}

/// Reason why an attempt failed.
enum PatchFailure {
    Retry(&'static str),
    Fatal(AttachError),
}

/// Stops all threads and writes the patches, all or none; returns for how long the threads were stopped. Tries again
/// for 5 s if a thread is in the way. Only if this program is killed meanwhile, some patches are written, each of them
/// completely. `relocated` has the instructions that the patches replace, with their new addresses; it is empty if
/// patches are undone.
///
/// # Errors
/// The threads cannot be stopped outside of the patched bytes, or the code was changed by something else: then writes
/// nothing. Also fails if a patch cannot be written, and takes back those before it. If that fails too, the error says
/// so.
pub(crate) fn write_patches(
    target: &mut Target,
    patches: &[CodePatch],
    relocated: &[RelocatedRange],
) -> Result<Duration, AttachError> {
    let start = Instant::now();
    loop {
        target.refresh()?;
        // A separate thread: when it ends, the kernel detaches every thread that it has stopped or requested to
        // stop.
        let tried = thread::scope(|scope| {
            scope
                .spawn(|| try_write_patches(target, patches, relocated))
                .join()
        });
        match tried.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            Ok(stop) => return Ok(stop),
            Err(PatchFailure::Fatal(error)) => return Err(error),
            Err(PatchFailure::Retry(reason)) if start.elapsed() > PATCH_TIMEOUT => {
                return Err(AttachError::NotPatched(format!("{reason}; try again")));
            }
            Err(PatchFailure::Retry(_)) => thread::sleep(RETRY_INTERVAL),
        }
    }
}

/// Stops all threads, moves those that are about to execute a relocated instruction, writes the patches and resumes the
/// threads. Makes one attempt. Returns for how long the threads were stopped. The failure says whether a later attempt
/// may succeed.
fn try_write_patches(
    target: &Target,
    patches: &[CodePatch],
    relocated: &[RelocatedRange],
) -> Result<Duration, PatchFailure> {
    // Parsed before the stop, which would last longer otherwise: a process of many threads has many mappings.
    let mapped: Vec<_> = mappings(&target.maps)
        .map(|mapping| mapping.range)
        .collect();
    let start = Instant::now();
    let mut threads = Vec::new();
    let stopped = stop_all(target.pid, start + STOP_ALL_TIMEOUT, &mut threads);
    let outcome = stopped
        .map_err(|error| stop_failure(target, error))
        .and_then(|()| {
            let fixups = collect_fixups(target, &mapped, &threads, relocated)?;
            for (stopped, registers) in fixups {
                let set = stopped.set_registers(&registers);
                set.map_err(|_| PatchFailure::Retry("a thread ends"))?;
            }
            apply_patches(&target.memory, patches).map_err(|reason| {
                let gone = target.require_same_program().err();
                PatchFailure::Fatal(gone.unwrap_or(AttachError::NotPatched(reason)))
            })
        });
    for (_, stopped) in threads {
        resume_with_restart(&target.memory, stopped);
    }
    outcome.map(|()| start.elapsed())
}

/// Converts the error of stopping all threads: `Retry` if a later attempt may succeed, `Fatal` if the process has ended
/// or may not be traced.
fn stop_failure(target: &Target, error: StopAllError) -> PatchFailure {
    match error {
        StopAllError::Unreadable(_) => PatchFailure::Fatal(target.process_gone_error()),
        StopAllError::Thread(_, StopError::Uninterruptible | StopError::Ended) => {
            PatchFailure::Retry("a thread does not stop (state D)")
        }
        StopAllError::Thread(tid, StopError::Refused(code)) => {
            PatchFailure::Fatal(AttachError::Io {
                what: format!("failed to trace thread {tid}"),
                cause: std::io::Error::from_raw_os_error(code),
            })
        }
    }
}

/// Threads with the registers that they continue with.
type RegisterFixups<'a> = Vec<(&'a StoppedThread, user_regs_struct)>;

/// Returns the threads that are about to execute a relocated instruction, with registers to continue at its new
/// address. The relocated instruction has the same effect, whether the patches are then written or not. Fails if a
/// thread is inside such an instruction, may return to one from a signal handler, or ends.
fn collect_fixups<'a>(
    target: &Target,
    mapped: &[Range<u64>],
    threads: &'a [(u32, StoppedThread)],
    relocated: &[RelocatedRange],
) -> Result<RegisterFixups<'a>, PatchFailure> {
    let mut fixups = Vec::new();
    if relocated.is_empty() {
        return Ok(fixups);
    }
    for (_, stopped) in threads {
        let ends = |_| PatchFailure::Retry("a thread ends");
        let mut registers = stopped.registers().map_err(ends)?;
        require_no_relocated_address(target, mapped, registers.rsp, relocated)?;
        let Some(address) =
            relocated_address(registers.rip, relocated).map_err(PatchFailure::Retry)?
        else {
            continue;
        };
        registers.rip = address;
        fixups.push((stopped, registers));
    }
    Ok(fixups)
}

/// Fails if the 256 KiB of the stack above `pointer` hold the address of a relocated instruction, to which a signal
/// handler may return. Also fails if the stack is not among the mappings `mapped`, or cannot be read.
fn require_no_relocated_address(
    target: &Target,
    mapped: &[Range<u64>],
    pointer: u64,
    relocated: &[RelocatedRange],
) -> Result<(), PatchFailure> {
    let stack = mapped.get(mapped.partition_point(|range| range.end <= pointer));
    let Some(stack) = stack.filter(|range| range.contains(&pointer)) else {
        // Mapped after the maps were read: a thread that has just started.
        return Err(PatchFailure::Retry("a thread has no stack"));
    };
    let length = (stack.end - pointer).min(STACK_SCAN_LIMIT) & !7;
    let mut bytes = vec![0; length as usize];
    let read = target.memory.read(pointer, &mut bytes);
    read.map_err(|_| PatchFailure::Retry("a thread's stack cannot be read"))?;
    let words = bytes.chunks_exact(8);
    let words = words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    match contains_relocated_address(words, relocated) {
        true => Err(PatchFailure::Retry(
            "a signal handler runs within the allocator",
        )),
        false => Ok(()),
    }
}

/// Returns whether one of the words is an address in a relocated prologue, after its first byte.
fn contains_relocated_address(
    mut words: impl Iterator<Item = u64>,
    relocated: &[RelocatedRange],
) -> bool {
    let lowest = relocated.iter().map(|each| each.range.start).min();
    let highest = relocated.iter().map(|each| each.range.end).max();
    let (lowest, highest) = (lowest.unwrap_or(0), highest.unwrap_or(0));
    // Most words are far from all prologues, so this check saves the search.
    let is_near = |word: u64| lowest < word && word < highest;
    words.any(|word| is_near(word) && relocated.iter().any(|each| is_inside_relocated(each, word)))
}

/// Returns the new address for a thread whose next instruction, at `instruction`, is a relocated one. `None` if the
/// next instruction is another one, also if it is the first of its function. Fails if the address is inside an
/// instruction.
fn relocated_address(
    instruction: u64,
    relocated: &[RelocatedRange],
) -> Result<Option<u64>, &'static str> {
    let Some(prologue) = relocated
        .iter()
        .find(|each| is_inside_relocated(each, instruction))
    else {
        return Ok(None);
    };
    let mut addresses = prologue.addresses.iter();
    let found = addresses.find(|(original, _)| *original == instruction);
    let (_, address) = found.ok_or("a thread is within an instruction")?;
    Ok(Some(*address))
}

/// Returns whether an address is in the relocated range, but not its first byte. A thread may continue at the first
/// byte, where the patched jump begins as the original instruction did.
fn is_inside_relocated(relocated: &RelocatedRange, address: u64) -> bool {
    relocated.range.start < address && address < relocated.range.end
}

/// Checks that all original bytes are unchanged, then writes the patches and reads them back. Writes nothing if the
/// check fails. If a patch cannot be written, takes back those before it. Fails with the reason, which also has the
/// addresses of functions that stay patched because that failed too.
fn apply_patches(memory: &Memory, patches: &[CodePatch]) -> Result<(), String> {
    for CodePatch {
        address, original, ..
    } in patches
    {
        if read_code(memory, *address)? != *original {
            return Err(format!("its code at {address:#x} has changed meanwhile"));
        }
    }
    for (index, patch) in patches.iter().enumerate() {
        if let Err(reason) = write_code(memory, patch.address, patch.patched) {
            let left = restore_original_code(memory, &patches[..=index]);
            return Err(match left.is_empty() {
                true => reason,
                false => format!(
                    "{reason}; its code at {} could not be restored, which its calls do not notice; \
                     `memprof detach` tries it again",
                    left.join(", ")
                ),
            });
        }
    }
    Ok(())
}

/// Restores the original bytes of patches that were written or begun, the last one first. Returns the addresses, as
/// text, at which that failed.
fn restore_original_code(memory: &Memory, patches: &[CodePatch]) -> Vec<String> {
    let is_left = |patch: &&CodePatch| {
        // The patch that could not be written is mostly not there.
        read_code(memory, patch.address) != Ok(patch.original)
            && write_code(memory, patch.address, patch.original).is_err()
    };
    let left = patches.iter().rev().filter(is_left);
    left.map(|patch| format!("{:#x}", patch.address)).collect()
}

/// Writes code and reads it back. Fails with the reason. The bytes are on one page (otherwise
/// `NotRelocatable::TwoPages`), so the kernel writes all or none of them, even if this program is killed.
fn write_code(
    memory: &Memory,
    address: u64,
    code: [u8; EntryRow::JUMP_SIZE],
) -> Result<(), String> {
    let written = memory.write(address, &code);
    written.map_err(|cause| format!("its code at {address:#x} cannot be written: {cause}"))?;
    match read_code(memory, address)? == code {
        true => Ok(()),
        false => Err(format!(
            "its code at {address:#x} does not keep what is written"
        )),
    }
}

/// Reads the code that a patch replaces. Fails with the reason.
fn read_code(memory: &Memory, address: u64) -> Result<[u8; EntryRow::JUMP_SIZE], String> {
    let code = memory.read_array(address);
    code.map_err(|cause| format!("its code at {address:#x} cannot be read: {cause}"))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::ptr;

    use super::*;

    /// Two functions with relocated instructions: of 2 and 4 bytes, and of 7 bytes.
    fn relocated() -> [RelocatedRange; 2] {
        [
            RelocatedRange {
                range: 0x1000..0x1006,
                addresses: vec![(0x1000, 0x9010), (0x1002, 0x9012)],
            },
            RelocatedRange {
                range: 0x2000..0x2007,
                addresses: vec![(0x2000, 0x9090)],
            },
        ]
    }

    #[test]
    fn thread_within_the_prologue_continues_at_the_relocated_address() {
        let check = |instruction, expected| {
            assert_eq!(relocated_address(instruction, &relocated()), expected)
        };
        check(0xfff, Ok(None));
        // The thread takes the jump.
        check(0x1000, Ok(None));
        check(0x1002, Ok(Some(0x9012)));
        check(0x1003, Err("a thread is within an instruction"));
        check(0x1006, Ok(None));
        check(0x2007, Ok(None));
        check(0x9012, Ok(None));
    }

    #[test]
    fn relocated_address_on_the_stack_is_found() {
        let check = |words: &[u64], expected| {
            assert_eq!(
                contains_relocated_address(words.iter().copied(), &relocated()),
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

    const ORIGINAL: [u8; EntryRow::JUMP_SIZE] = *b"12345";
    const PATCHED: [u8; EntryRow::JUMP_SIZE] = *b"jumps";

    fn patch(address: u64) -> CodePatch {
        CodePatch {
            address,
            original: ORIGINAL,
            patched: PATCHED,
        }
    }

    /// Maps a page that can be read, but not even a debugger can write: shared, of a file opened for reading. It begins
    /// with `code`. It stays mapped.
    #[expect(unsafe_code, reason = "a mapping")]
    fn unwritable_code(code: [u8; EntryRow::JUMP_SIZE]) -> u64 {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&code).unwrap();
        let file = File::open(file.path()).unwrap();
        // SAFETY: mmap(2): a new mapping at an address that the kernel chooses.
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                4096,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        page as u64
    }

    #[test]
    fn patches_before_one_that_cannot_be_written_are_taken_back() {
        let memory = Memory::open(std::process::id()).unwrap();
        let functions = [ORIGINAL; 2];
        let address = |index: usize| functions[index].as_ptr() as u64;
        let stored = |index: usize| read_code(&memory, address(index)).unwrap();
        let writable = [patch(address(0)), patch(address(1))];
        apply_patches(&memory, &writable).unwrap();
        assert_eq!([stored(0), stored(1)], [PATCHED; 2]);
        assert!(restore_original_code(&memory, &writable).is_empty());
        assert_eq!([stored(0), stored(1)], [ORIGINAL; 2]);

        let unwritable = patch(unwritable_code(ORIGINAL));
        let patches = [writable[0], writable[1], unwritable];
        let reason = apply_patches(&memory, &patches).unwrap_err();
        let at = format!("{:#x}", unwritable.address);
        let expected = format!("its code at {at} cannot be written: ");
        assert!(reason.starts_with(&expected), "{reason}");
        assert!(!reason.contains("restored"), "{reason}");
        assert_eq!([stored(0), stored(1)], [ORIGINAL; 2]);

        // A patch that stays, among others.
        let stays = patch(unwritable_code(PATCHED));
        apply_patches(&memory, &writable).unwrap();
        let left = restore_original_code(&memory, &[writable[0], stays, writable[1]]);
        assert_eq!(left, [format!("{:#x}", stays.address)]);
        assert_eq!([stored(0), stored(1)], [ORIGINAL; 2]);
    }

    #[test]
    fn changed_code_is_not_patched() {
        let memory = Memory::open(std::process::id()).unwrap();
        let functions = [ORIGINAL, *b"other"];
        let patches = [0, 1].map(|index: usize| patch(functions[index].as_ptr() as u64));
        let reason = apply_patches(&memory, &patches).unwrap_err();
        assert!(reason.ends_with("has changed meanwhile"), "{reason}");
        assert_eq!(read_code(&memory, patches[0].address), Ok(ORIGINAL));
    }
}
