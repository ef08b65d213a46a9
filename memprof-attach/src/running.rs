//! A thread that runs, and where it may be borrowed: in code of the program's, called by code of the program's alone.
//!
//! The errand makes a thread (`pthread_create(3)`), which takes locks of the C library and the loader, and allocates. So
//! none of the calls that the thread is in may be theirs, but for those that began it. A lock of the program's own
//! does no harm: nothing of the errand waits for it.

use std::fs;
use std::ops::Range;

use libc::user_regs_struct;
use memprof_ptrace::image::Image;
use memprof_ptrace::maps::{Mapping, mappings};
use memprof_ptrace::memory::Memory;
use memprof_ptrace::place::lasting;
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
enum Whose {
    /// What the errand needs nothing of.
    Program,
    /// The C library's.
    Libc,
    /// What it may need, in words.
    Needed(&'static str),
}

/// What is known of a process's code.
#[derive(Debug, Default)]
pub(crate) struct Running {
    stacks: CallStacks,
    code: Vec<(Range<u64>, Whose)>,
    /// Looked up once.
    lasting: Option<Lasting>,
}

/// What does not change while the program is executed.
#[derive(Debug)]
struct Lasting {
    /// Where the program begins.
    entry: u64,
    /// The files, other than libc, whose functions the loader calls to allocate. `None` where that cannot be told.
    allocators: Option<Vec<File>>,
}

/// A file, by its device and inode.
type File = (Vec<u8>, u64);

impl Running {
    /// Looks at the process's code as it is now.
    pub(crate) fn look_again(&mut self, pid: u32, memory: &Memory, maps: &[u8]) {
        self.stacks.look_again(memory, maps);
        let lasting = self.lasting.get_or_insert_with(|| {
            let entry = entry(pid).unwrap_or(0);
            Lasting {
                entry,
                allocators: allocators(memory, maps, entry),
            }
        });
        let code = mappings(maps).filter(|mapping| mapping.is_executable());
        self.code = code
            .map(|mapping| {
                let is_of = |file: &File| *file == file_of(&mapping);
                let allocators = lasting.allocators.as_ref();
                let is_allocator = allocators.is_none_or(|files| files.iter().any(is_of));
                (
                    mapping.range.clone(),
                    whose(mapping.file_name(), is_allocator),
                )
            })
            .collect();
    }

    /// Whether a thread that was stopped while it ran may be borrowed.
    ///
    /// # Errors
    /// Why not, now.
    pub(crate) fn may_be_borrowed(
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
        if let Whose::Needed(why) = self.whose(registers.rip) {
            return Err(why);
        }
        if self.whose(registers.rip) == Whose::Libc {
            return Err(IN_LIBC);
        }
        let frames = self.stacks.frames(memory, start);
        let frames =
            frames.ok_or("a thread runs, and its calls cannot be followed from outside")?;
        // A handler has interrupted anything, and returns to there.
        if frames.contains(&restorer) {
            return Err("its threads are in signal handlers");
        }
        self.judge(&frames)
    }

    /// Whether nothing that the errand needs is among the calls of a thread, the innermost one first.
    fn judge(&self, frames: &[u64]) -> Result<(), &'static str> {
        let entry = self.lasting.as_ref().map_or(0, |lasting| lasting.entry);
        let is_start = |pc: &u64| (entry..entry.saturating_add(START)).contains(pc);
        let by_program = frames.split_last().filter(|(last, _)| is_start(last));
        let frames = by_program.map_or(frames, |(_, frames)| frames);
        // `__libc_start_main` and what it calls, or `clone` and `start_thread`; handlers of exit and destructors of
        // threads have a call more.
        let Some((frames, began)) = frames.split_last_chunk::<2>() else {
            return Err(UNKNOWN_START);
        };
        if frames.is_empty() || began.iter().any(|pc| self.whose(*pc) != Whose::Libc) {
            return Err(UNKNOWN_START);
        }
        for pc in frames {
            match self.whose(*pc) {
                Whose::Program => {}
                Whose::Libc => return Err(IN_LIBC),
                Whose::Needed(why) => return Err(why),
            }
        }
        Ok(())
    }

    fn whose(&self, pc: u64) -> Whose {
        let code = self.code.iter().find(|(range, _)| range.contains(&pc));
        code.map_or(Whose::Needed(UNKNOWN_CODE), |(_, whose)| *whose)
    }
}

const IN_LIBC: &str = "a thread runs in the C library";
const UNKNOWN_CODE: &str = "a thread runs code of no file";
const UNKNOWN_START: &str = "a thread runs that was not begun by the C library";

fn whose(file: &[u8], is_allocator: bool) -> Whose {
    const OF_ALLOCATORS: [&[u8]; 4] = [
        b"libjemalloc",
        b"libtcmalloc",
        b"libmimalloc",
        b"libsnmalloc",
    ];
    let begins = |prefix: &[u8]| file.starts_with(prefix);
    match file {
        b"libc.so.6" => Whose::Libc,
        _ if is_allocator || OF_ALLOCATORS.into_iter().any(begins) => {
            Whose::Needed("a thread runs in the file that has the allocator")
        }
        _ if begins(b"ld-linux") => Whose::Needed("a thread runs in the loader"),
        _ if begins(b"libpthread") => Whose::Needed(IN_LIBC),
        _ if file.ends_with(b"memory_profile.so") => {
            Whose::Needed("a thread runs in memprof's plugin")
        }
        // The kernel's.
        b"" | [b'[', ..] => Whose::Needed(UNKNOWN_CODE),
        _ => Whose::Program,
    }
}

/// The files, other than libc, whose functions the loader calls to allocate: the first that has them, in the order of
/// its list. `None` where that cannot be told.
fn allocators(memory: &Memory, maps: &[u8], entry: u64) -> Option<Vec<File>> {
    let program = mappings(maps).find(|mapping| mapping.range.contains(&entry))?;
    let starts = |mapping: &Mapping<'_>| mapping.offset == 0 && mapping.inode != 0;
    let program =
        mappings(maps).find(|mapping| starts(mapping) && file_of(mapping) == file_of(&program))?;
    let mut others = lasting(memory, maps).ok()??.into_iter();
    // What was added to the program's addresses, which may be nothing. The loader itself may have been executed.
    if ![0, program.range.start].contains(&others.next()?) {
        return None;
    }
    let mut missing = ALLOCATES.to_vec();
    let mut found = Vec::new();
    let mut consider = |mapping: Mapping<'_>| {
        let image = Image::read(memory, mapping.range.start).ok()?;
        let count = missing.len();
        missing.retain(|name| image.symbol(name).is_none());
        if missing.len() < count && mapping.file_name() != b"libc.so.6" {
            found.push(file_of(&mapping));
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

fn file_of(mapping: &Mapping<'_>) -> File {
    (mapping.device.to_vec(), mapping.inode)
}

/// Where the program begins, as the kernel told it.
fn entry(pid: u32) -> Option<u64> {
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
        const ALLOCATOR: Whose = Whose::Needed("the allocator");
        let running = Running {
            stacks: CallStacks::default(),
            code: vec![
                (0x1000..0x2000, Whose::Program),
                (0x2000..0x3000, Whose::Libc),
                (0x3000..0x4000, ALLOCATOR),
            ],
            lasting: Some(Lasting {
                entry: 0x1800,
                allocators: Some(Vec::new()),
            }),
        };
        let (program, libc, start) = (0x1100, 0x2100, 0x1825);
        let check = |frames: &[u64], expected: Result<(), &str>| {
            assert_eq!(running.judge(frames), expected, "{frames:x?}");
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
            let whose = whose(file.as_bytes(), is_allocator);
            assert_eq!(whose == Whose::Program, expected, "{file}");
        };
        check("perl", false, true);
        check("libm.so.6", false, true);
        check("perl", true, false);
        check("libjemalloc.so.2", false, false);
        check("ld-linux-x86-64.so.2", false, false);
        check("memfd:memory_profile.so", false, false);
        check("[vdso]", false, false);
        check("", false, false);
        assert_eq!(whose(b"libc.so.6", true), Whose::Libc);
    }

    #[test]
    fn the_allocator_is_libc_s_in_a_program_that_has_none() {
        let memory = Memory::open(std::process::id()).unwrap();
        let maps = fs::read("/proc/self/maps").unwrap();
        let entry = entry(std::process::id()).unwrap();
        assert_eq!(allocators(&memory, &maps, entry), Some(Vec::new()));
        assert_eq!(allocators(&memory, &maps, 0), None);
    }
}
