//! Checks whether a running thread may be stopped: it must be in code of the program, called by code of the program
//! only.
//!
//! The remote calls include `pthread_create(3)`, which takes locks of the C library and the loader, and allocates.
//! So none of the functions on the thread's stack may belong to them, except those that started the thread. Locks of
//! the program itself are harmless: no remote call waits for them.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;

use libc::user_regs_struct;
use memprof_ptrace::frame_memory::startup_libraries;
use memprof_ptrace::library_image::LibraryImage;
use memprof_ptrace::maps::{Mapping, mappings};
use memprof_ptrace::memory::Memory;
use memprof_unwind::Registers;

use crate::call_stack::CallStacks;

/// Functions by which `pthread_create(3)` allocates, through the loader.
const ALLOCATION_FUNCTIONS: [&str; 4] = ["malloc", "calloc", "realloc", "free"];
/// Key of the program's entry point in the auxiliary vector (getauxval(3)).
const AT_ENTRY: u64 = 9;
/// Upper bound of the length of the program's `_start`, in bytes.
const MAX_START_LEN: u64 = 64;

/// Kind of the file that code belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CodeKind {
    /// Code of a file that the remote calls do not use.
    Program,
    /// The C library's.
    Libc,
    /// Code of a file that the remote calls may use, with a text for the error.
    Unsafe(&'static str),
}

/// Kinds of a process's code, and its call stacks.
#[derive(Debug, Default)]
pub(crate) struct ProgramCodeMap {
    stacks: CallStacks,
    code: Vec<(Range<u64>, CodeKind)>,
    /// Facts that are read once.
    startup: Option<StartupFacts>,
}

/// Facts that do not change while the program is executed.
#[derive(Debug)]
struct StartupFacts {
    /// Address of the program's entry point.
    entry: u64,
    /// Files other than libc whose functions the loader calls to allocate. `None` if they are unknown.
    allocators: Option<Vec<File>>,
}

/// A file, by its device and inode.
type File = (Vec<u8>, u64);

impl ProgramCodeMap {
    /// Reads the process's current code mappings and unwind information; at the first call also its entry point and its
    /// allocators. If the allocators cannot be determined, the code of every file but libc counts as one.
    pub(crate) fn refresh(&mut self, pid: u32, memory: &Memory, maps: &[u8]) {
        self.stacks.refresh(memory, maps);
        let startup = self.startup.get_or_insert_with(|| {
            let entry = read_program_entry(pid).unwrap_or(0);
            StartupFacts {
                entry,
                allocators: find_allocators(memory, maps, entry),
            }
        });
        let code = mappings(maps).filter(|mapping| mapping.is_executable());
        self.code = code
            .map(|mapping| {
                let is_of = |file: &File| *file == file_identity(&mapping);
                let allocators = startup.allocators.as_ref();
                let is_allocator = allocators.is_none_or(|files| files.iter().any(is_of));
                (
                    mapping.range.clone(),
                    file_code_kind(mapping.file_name(), is_allocator),
                )
            })
            .collect();
    }

    /// Checks whether a thread that was stopped while running may make remote calls: all its frames must be code of the
    /// program, except for those in which libc started the thread. `restorer` is the address of libc's signal return
    /// code, which is the return address of every signal handler.
    ///
    /// # Errors
    /// The reason why the thread may make no calls at this moment.
    pub(crate) fn require_safe_point(
        &mut self,
        memory: &Memory,
        registers: &user_regs_struct,
        restorer: u64,
    ) -> Result<(), &'static str> {
        // The C library finds a thread's variables by this address, and keeps it at offset 16 (`self` of `tcbhead_t`).
        let control_block = registers.fs_base;
        if !memory
            .read_u64(control_block.wrapping_add(16))
            .is_ok_and(|this| this == control_block)
        {
            return Err(UNKNOWN_START);
        }
        let start = Registers {
            pc: registers.rip as usize,
            sp: registers.rsp as usize,
            bp: registers.rbp as usize,
        };
        // First the check that needs no stack walk: a thread that allocates most of the time is mostly there.
        if let CodeKind::Unsafe(reason) = self.code_kind(registers.rip) {
            return Err(reason);
        }
        if self.code_kind(registers.rip) == CodeKind::Libc {
            return Err(IN_LIBC);
        }
        let frames = self.stacks.unwind(memory, start);
        let frames =
            frames.ok_or("a thread runs, and its calls cannot be followed from outside")?;
        // A signal handler may have interrupted any code, and returns through the restorer.
        if frames.contains(&restorer) {
            return Err("its threads are in signal handlers");
        }
        self.require_program_frames(&frames)
    }

    /// Fails unless the outermost frames are libc's start of the program or of a thread, and all others are code of the
    /// program. Another function, such as one of libc or an allocator, may hold a lock that the remote calls need.
    /// `frames` start with the innermost one.
    fn require_program_frames(&self, frames: &[u64]) -> Result<(), &'static str> {
        let entry = self.startup.as_ref().map_or(0, |startup| startup.entry);
        let is_start = |pc: &u64| (entry..entry.saturating_add(MAX_START_LEN)).contains(pc);
        let main_thread_frames = frames.split_last().filter(|(last, _)| is_start(last));
        let frames = main_thread_frames.map_or(frames, |(_, frames)| frames);
        // `__libc_start_main` and its callee, or `clone` and `start_thread`. Exit handlers and destructors of
        // threads have one more call, so they are rejected below.
        let Some((frames, start_frames)) = frames.split_last_chunk::<2>() else {
            return Err(UNKNOWN_START);
        };
        if frames.is_empty()
            || start_frames
                .iter()
                .any(|pc| self.code_kind(*pc) != CodeKind::Libc)
        {
            return Err(UNKNOWN_START);
        }
        for pc in frames {
            match self.code_kind(*pc) {
                CodeKind::Program => {}
                CodeKind::Libc => return Err(IN_LIBC),
                CodeKind::Unsafe(reason) => return Err(reason),
            }
        }
        Ok(())
    }

    /// Returns the kind of the code at an address; `Unsafe` if no code is mapped there.
    fn code_kind(&self, pc: u64) -> CodeKind {
        let code = self.code.iter().find(|(range, _)| range.contains(&pc));
        code.map_or(CodeKind::Unsafe(UNKNOWN_CODE), |(_, kind)| *kind)
    }
}

/// Reasons why a running thread is not at a safe point.
const IN_LIBC: &str = "a thread runs in the C library";
const UNKNOWN_CODE: &str = "a thread runs code of no file";
const UNKNOWN_START: &str = "a thread runs that was not begun by the C library";

/// Returns the kind of the code of a file, by its name. `is_allocator` says that the loader allocates by functions of
/// this file.
fn file_code_kind(file: &[u8], is_allocator: bool) -> CodeKind {
    const ALLOCATOR_FILES: [&[u8]; 4] = [
        b"libjemalloc",
        b"libtcmalloc",
        b"libmimalloc",
        b"libsnmalloc",
    ];
    let has_prefix = |prefix: &[u8]| file.starts_with(prefix);
    match file {
        b"libc.so.6" => CodeKind::Libc,
        _ if is_allocator || ALLOCATOR_FILES.into_iter().any(has_prefix) => {
            CodeKind::Unsafe("a thread runs in the file that has the allocator")
        }
        _ if has_prefix(b"ld-linux") => CodeKind::Unsafe("a thread runs in the loader"),
        _ if has_prefix(b"libpthread") => CodeKind::Unsafe(IN_LIBC),
        _ if file.ends_with(b"memory_profile.so") => {
            CodeKind::Unsafe("a thread runs in memprof's plugin")
        }
        // Code of the kernel, or of no file.
        b"" | [b'[', ..] => CodeKind::Unsafe(UNKNOWN_CODE),
        _ => CodeKind::Program,
    }
}

/// Finds the files other than libc whose functions the loader calls to allocate. For each of [`ALLOCATION_FUNCTIONS`],
/// it is the first file in the loader's order that defines the function. `entry` is the program's entry point. `None`
/// if the files cannot be determined.
fn find_allocators(memory: &Memory, maps: &[u8], entry: u64) -> Option<Vec<File>> {
    let program = mappings(maps).find(|mapping| mapping.range.contains(&entry))?;
    let is_first_mapping = |mapping: &Mapping<'_>| mapping.offset == 0 && mapping.inode != 0;
    let program = mappings(maps).find(|mapping| {
        is_first_mapping(mapping) && file_identity(mapping) == file_identity(&program)
    })?;
    let mut others = startup_libraries(memory, maps).ok()??.into_iter();
    // The first entry is the program's load address or 0. It is another one if the loader itself was executed.
    if ![0, program.range.start].contains(&others.next()?) {
        return None;
    }
    let mut missing = ALLOCATION_FUNCTIONS.to_vec();
    let mut found = Vec::new();
    let mut consider = |mapping: Mapping<'_>| {
        let image = LibraryImage::read(memory, mapping.range.start).ok()?;
        let count = missing.len();
        missing.retain(|name| image.symbol_address(name).is_none());
        if missing.len() < count && mapping.file_name() != b"libc.so.6" {
            found.push(file_identity(&mapping));
        }
        Some(())
    };
    consider(program)?;
    let first_mappings = mappings(maps).filter(is_first_mapping);
    let mut images: HashMap<u64, Mapping<'_>> = first_mappings
        .map(|mapping| (mapping.range.start, mapping))
        .collect();
    for base in others {
        // The vDSO belongs to no file.
        if let Some(mapping) = images.remove(&base) {
            consider(mapping)?;
        }
    }
    missing.is_empty().then_some(found)
}

/// Returns the device and inode of a mapping's file.
fn file_identity(mapping: &Mapping<'_>) -> File {
    (mapping.device.to_vec(), mapping.inode)
}

/// Returns the address of the program's entry point, from the auxiliary vector. `None` if it cannot be read.
fn read_program_entry(pid: u32) -> Option<u64> {
    let words = fs::read(format!("/proc/{pid}/auxv")).ok()?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let mut pairs = words
        .chunks_exact(16)
        .map(|pair| (word(&pair[..8]), word(&pair[8..])));
    pairs.find_map(|(kind, value)| (kind == AT_ENTRY).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_with_only_program_code_are_safe() {
        const ALLOCATOR: CodeKind = CodeKind::Unsafe("the allocator");
        let running = ProgramCodeMap {
            stacks: CallStacks::default(),
            code: vec![
                (0x1000..0x2000, CodeKind::Program),
                (0x2000..0x3000, CodeKind::Libc),
                (0x3000..0x4000, ALLOCATOR),
            ],
            startup: Some(StartupFacts {
                entry: 0x1800,
                allocators: Some(Vec::new()),
            }),
        };
        let (program, libc, start) = (0x1100, 0x2100, 0x1825);
        let check = |frames: &[u64], expected: Result<(), &str>| {
            assert_eq!(
                running.require_program_frames(frames),
                expected,
                "{frames:x?}"
            );
        };
        // The main thread; another thread.
        check(&[program, program, libc, libc, start], Ok(()));
        check(&[program, libc, libc], Ok(()));
        // In qsort(3); in exit(3).
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
    fn code_kind_follows_the_file_name() {
        let check = |file: &str, is_allocator, expected: bool| {
            let kind = file_code_kind(file.as_bytes(), is_allocator);
            assert_eq!(kind == CodeKind::Program, expected, "{file}");
        };
        check("perl", false, true);
        check("libm.so.6", false, true);
        check("perl", true, false);
        check("libjemalloc.so.2", false, false);
        check("ld-linux-x86-64.so.2", false, false);
        check("memfd:memory_profile.so", false, false);
        check("[vdso]", false, false);
        check("", false, false);
        assert_eq!(file_code_kind(b"libc.so.6", true), CodeKind::Libc);
    }

    #[test]
    fn program_without_allocator_uses_libc_s() {
        let memory = Memory::open(std::process::id()).unwrap();
        let maps = fs::read("/proc/self/maps").unwrap();
        let entry = read_program_entry(std::process::id()).unwrap();
        assert_eq!(find_allocators(&memory, &maps, entry), Some(Vec::new()));
        assert_eq!(find_allocators(&memory, &maps, 0), None);
    }
}
