//! A thread that runs, and where it may be borrowed: in code of the program's, called by code of the program's alone.
//!
//! The remote calls include `pthread_create(3)`, which takes locks of the C library and the loader, and allocates. So
//! none of the functions that the thread is in may be theirs, but for those that began it. A lock of the program's own
//! does no harm: no remote call waits for it.

use std::fs;
use std::ops::Range;

use libc::user_regs_struct;
use memprof_ptrace::frame_memory::startup_libraries;
use memprof_ptrace::library_image::LibraryImage;
use memprof_ptrace::maps::{Mapping, mappings};
use memprof_ptrace::memory::Memory;
use memprof_unwind::Registers;

use crate::call_stack::CallStacks;

/// By which `pthread_create(3)` allocates, through the loader.
const ALLOCATES: [&str; 4] = ["malloc", "calloc", "realloc", "free"];
/// `AT_ENTRY` of getauxval(3).
const ENTRY: u64 = 9;
/// The program's `_start` is not longer.
const START: u64 = 64;

/// Whose code something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CodeKind {
    /// Of a file that the remote calls do not use.
    Program,
    /// The C library's.
    Libc,
    /// What it may need, in words.
    Unsafe(&'static str),
}

/// What is known of a process's code.
#[derive(Debug, Default)]
pub(crate) struct ProgramCodeMap {
    stacks: CallStacks,
    code: Vec<(Range<u64>, CodeKind)>,
    /// Looked up once.
    lasting: Option<StartupFacts>,
}

/// What does not change while the program is executed.
#[derive(Debug)]
struct StartupFacts {
    /// Where the program begins.
    entry: u64,
    /// The files, other than libc, whose functions the loader calls to allocate. `None` where that cannot be told.
    allocators: Option<Vec<File>>,
}

/// A file, by its device and inode.
type File = (Vec<u8>, u64);

impl ProgramCodeMap {
    /// Looks at the process's code as it is now.
    pub(crate) fn refresh(&mut self, pid: u32, memory: &Memory, maps: &[u8]) {
        self.stacks.refresh(memory, maps);
        let lasting = self.lasting.get_or_insert_with(|| {
            let entry = program_entry(pid).unwrap_or(0);
            StartupFacts {
                entry,
                allocators: allocators(memory, maps, entry),
            }
        });
        let code = mappings(maps).filter(|mapping| mapping.is_executable());
        self.code = code
            .map(|mapping| {
                let is_of = |file: &File| *file == file_identity(&mapping);
                let allocators = lasting.allocators.as_ref();
                let is_allocator = allocators.is_none_or(|files| files.iter().any(is_of));
                (
                    mapping.range.clone(),
                    code_kind(mapping.file_name(), is_allocator),
                )
            })
            .collect();
    }

    /// Whether a thread that was stopped while it ran may be borrowed.
    ///
    /// # Errors
    /// Why not, now.
    pub(crate) fn require_safe_point(
        &mut self,
        memory: &Memory,
        registers: &user_regs_struct,
        restorer: u64,
    ) -> Result<(), &'static str> {
        // The C library finds the thread's variables by it (`tcbhead_t`, self).
        let control_block = registers.fs_base;
        if !memory
            .word(control_block.wrapping_add(16))
            .is_ok_and(|this| this == control_block)
        {
            return Err(UNKNOWN_START);
        }
        let start = Registers {
            pc: registers.rip as usize,
            sp: registers.rsp as usize,
            bp: registers.rbp as usize,
        };
        // First what needs no walk: a thread that allocates most of the time is mostly there.
        if let CodeKind::Unsafe(why) = self.code_kind(registers.rip) {
            return Err(why);
        }
        if self.code_kind(registers.rip) == CodeKind::Libc {
            return Err(IN_LIBC);
        }
        let frames = self.stacks.unwind(memory, start);
        let frames =
            frames.ok_or("a thread runs, and its calls cannot be followed from outside")?;
        // A handler has interrupted anything, and returns to there.
        if frames.contains(&restorer) {
            return Err("its threads are in signal handlers");
        }
        self.check_frames(&frames)
    }

    /// Fails if a function that the remote calls need is among those that a thread is in, the innermost one first.
    fn check_frames(&self, frames: &[u64]) -> Result<(), &'static str> {
        let entry = self.lasting.as_ref().map_or(0, |lasting| lasting.entry);
        let is_start = |pc: &u64| (entry..entry.saturating_add(START)).contains(pc);
        let by_program = frames.split_last().filter(|(last, _)| is_start(last));
        let frames = by_program.map_or(frames, |(_, frames)| frames);
        // `__libc_start_main` and what it calls, or `clone` and `start_thread`; handlers of exit and destructors of
        // threads have a call more.
        let Some((frames, began)) = frames.split_last_chunk::<2>() else {
            return Err(UNKNOWN_START);
        };
        if frames.is_empty() || began.iter().any(|pc| self.code_kind(*pc) != CodeKind::Libc) {
            return Err(UNKNOWN_START);
        }
        for pc in frames {
            match self.code_kind(*pc) {
                CodeKind::Program => {}
                CodeKind::Libc => return Err(IN_LIBC),
                CodeKind::Unsafe(why) => return Err(why),
            }
        }
        Ok(())
    }

    fn code_kind(&self, pc: u64) -> CodeKind {
        let code = self.code.iter().find(|(range, _)| range.contains(&pc));
        code.map_or(CodeKind::Unsafe(UNKNOWN_CODE), |(_, whose)| *whose)
    }
}

const IN_LIBC: &str = "a thread runs in the C library";
const UNKNOWN_CODE: &str = "a thread runs code of no file";
const UNKNOWN_START: &str = "a thread runs that was not begun by the C library";

fn code_kind(file: &[u8], is_allocator: bool) -> CodeKind {
    const OF_ALLOCATORS: [&[u8]; 4] = [
        b"libjemalloc",
        b"libtcmalloc",
        b"libmimalloc",
        b"libsnmalloc",
    ];
    let begins = |prefix: &[u8]| file.starts_with(prefix);
    match file {
        b"libc.so.6" => CodeKind::Libc,
        _ if is_allocator || OF_ALLOCATORS.into_iter().any(begins) => {
            CodeKind::Unsafe("a thread runs in the file that has the allocator")
        }
        _ if begins(b"ld-linux") => CodeKind::Unsafe("a thread runs in the loader"),
        _ if begins(b"libpthread") => CodeKind::Unsafe(IN_LIBC),
        _ if file.ends_with(b"memory_profile.so") => {
            CodeKind::Unsafe("a thread runs in memprof's plugin")
        }
        // The kernel's.
        b"" | [b'[', ..] => CodeKind::Unsafe(UNKNOWN_CODE),
        _ => CodeKind::Program,
    }
}

/// The files, other than libc, whose functions the loader calls to allocate: the first that has them, in the order of
/// its list. `None` where that cannot be told.
fn allocators(memory: &Memory, maps: &[u8], entry: u64) -> Option<Vec<File>> {
    let program = mappings(maps).find(|mapping| mapping.range.contains(&entry))?;
    let starts = |mapping: &Mapping<'_>| mapping.offset == 0 && mapping.inode != 0;
    let program = mappings(maps)
        .find(|mapping| starts(mapping) && file_identity(mapping) == file_identity(&program))?;
    let mut others = startup_libraries(memory, maps).ok()??.into_iter();
    // What was added to the program's addresses, which may be nothing. The loader itself may have been executed.
    if ![0, program.range.start].contains(&others.next()?) {
        return None;
    }
    let mut missing = ALLOCATES.to_vec();
    let mut found = Vec::new();
    let mut consider = |mapping: Mapping<'_>| {
        let image = LibraryImage::read(memory, mapping.range.start).ok()?;
        let count = missing.len();
        missing.retain(|name| image.symbol(name).is_none());
        if missing.len() < count && mapping.file_name() != b"libc.so.6" {
            found.push(file_identity(&mapping));
        }
        Some(())
    };
    consider(program)?;
    for base in others {
        // Not the vDSO, which is no file.
        if let Some(mapping) =
            mappings(maps).find(|mapping| mapping.range.start == base && starts(mapping))
        {
            consider(mapping)?;
        }
    }
    missing.is_empty().then_some(found)
}

fn file_identity(mapping: &Mapping<'_>) -> File {
    (mapping.device.to_vec(), mapping.inode)
}

/// Where the program begins, as the kernel told it.
fn program_entry(pid: u32) -> Option<u64> {
    let words = fs::read(format!("/proc/{pid}/auxv")).ok()?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let mut pairs = words
        .chunks_exact(16)
        .map(|pair| (word(&pair[..8]), word(&pair[8..])));
    pairs.find_map(|(kind, value)| (kind == ENTRY).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_of_the_program_alone_are_interrupted() {
        const ALLOCATOR: CodeKind = CodeKind::Unsafe("the allocator");
        let running = ProgramCodeMap {
            stacks: CallStacks::default(),
            code: vec![
                (0x1000..0x2000, CodeKind::Program),
                (0x2000..0x3000, CodeKind::Libc),
                (0x3000..0x4000, ALLOCATOR),
            ],
            lasting: Some(StartupFacts {
                entry: 0x1800,
                allocators: Some(Vec::new()),
            }),
        };
        let (program, libc, start) = (0x1100, 0x2100, 0x1825);
        let check = |frames: &[u64], expected: Result<(), &str>| {
            assert_eq!(running.check_frames(frames), expected, "{frames:x?}");
        };
        // The main thread; another one.
        check(&[program, program, libc, libc, start], Ok(()));
        check(&[program, libc, libc], Ok(()));
        // By qsort(3); by exit(3).
        check(&[program, libc, program, libc, libc, start], Err(IN_LIBC));
        check(&[program, libc, libc, libc, start], Err(IN_LIBC));
        check(&[libc, libc, start], Err(UNKNOWN_START));
        check(&[program, libc, start], Err(UNKNOWN_START));
        check(&[program, start], Err(UNKNOWN_START));
        check(&[], Err(UNKNOWN_START));
        check(&[0x3100, program, libc, libc, start], Err("the allocator"));
        check(
            &[program, 0x3100, program, libc, libc],
            Err("the allocator"),
        );
        check(&[program, 0x9000, libc, libc], Err(UNKNOWN_CODE));
    }

    #[test]
    fn whose_code_a_file_has() {
        let check = |file: &str, is_allocator, expected: bool| {
            let whose = code_kind(file.as_bytes(), is_allocator);
            assert_eq!(whose == CodeKind::Program, expected, "{file}");
        };
        check("perl", false, true);
        check("libm.so.6", false, true);
        check("perl", true, false);
        check("libjemalloc.so.2", false, false);
        check("ld-linux-x86-64.so.2", false, false);
        check("memfd:memory_profile.so", false, false);
        check("[vdso]", false, false);
        check("", false, false);
        assert_eq!(code_kind(b"libc.so.6", true), CodeKind::Libc);
    }

    #[test]
    fn the_allocator_is_libc_s_in_a_program_that_has_none() {
        let memory = Memory::open(std::process::id()).unwrap();
        let maps = fs::read("/proc/self/maps").unwrap();
        let entry = program_entry(std::process::id()).unwrap();
        assert_eq!(allocators(&memory, &maps, entry), Some(Vec::new()));
        assert_eq!(allocators(&memory, &maps, 0), None);
    }
}
