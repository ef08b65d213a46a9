//! Emulators and translators that execute a program, such as qemu-user: the heap that memprof could read is the
//! emulator's own.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use memprof_ptrace::maps::{Mapping, mappings};
use memprof_ptrace::memory::Memory;
use object::elf::{FileHeader32, FileHeader64, PF_W, PF_X, PT_LOAD, ProgramFlags};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind};

/// Bytes of a file's start that are read. A program's headers are in its first page.
const HEADER_SIZE: usize = 4096;

/// Most files whose start is read: a process without an emulator maps hardly any as a loaded program without code.
const MAX_CANDIDATES: usize = 64;

/// Returns the path of a program that is loaded in a process, but whose code its processor does not execute. `None` if
/// there is none.
pub(super) fn find_emulated_program(maps: &[u8], memory: &Memory) -> Option<String> {
    find_non_executable_program(maps, |address, header| memory.read_some(address, header))
}

/// Returns the path of a program or library that is loaded, its segments where its headers say, but whose code is
/// mapped without the right to execute it. Reads the start of at most [`MAX_CANDIDATES`] files. `read` reads memory at
/// an address, and returns the number of bytes. `None` if there is no such file.
fn find_non_executable_program(
    maps: &[u8],
    read: impl Fn(u64, &mut [u8]) -> usize,
) -> Option<String> {
    let files = MappedFiles::new(maps);
    let candidates = files
        .all
        .iter()
        .filter(|mapping| files.may_start_program(mapping));
    let mut candidates = candidates.take(MAX_CANDIDATES);
    let program = candidates.find(|start| {
        let mut header = [0; HEADER_SIZE];
        let length = read(start.range.start, &mut header);
        let segments = loaded_segments(&header[..length]);
        segments.is_some_and(|segments| files.is_loaded_without_execution(start, &segments))
    })?;
    Some(String::from_utf8_lossy(program.path).into_owned())
}

/// Device and inode of a file.
type FileKey<'m> = (&'m [u8], u64);

/// Mappings of a process.
struct MappedFiles<'m> {
    /// All of them, by address, as a maps file has them.
    all: Vec<Mapping<'m>>,
    executable: HashSet<FileKey<'m>>,
    /// By file: private mappings that may be written and not executed, by address.
    written: HashMap<FileKey<'m>, Vec<Range<u64>>>,
}

impl<'m> MappedFiles<'m> {
    /// Parses the text of /proc/PID/maps: collects the files that are mapped executable, and for each file the ranges
    /// of its private writable mappings.
    fn new(maps: &'m [u8]) -> Self {
        let mut files = Self {
            all: mappings(maps).collect(),
            executable: HashSet::new(),
            written: HashMap::new(),
        };
        for mapping in files.all.iter().filter(|mapping| mapping.inode != 0) {
            if mapping.is_executable() {
                files.executable.insert(file_key(mapping));
            } else if mapping.access[1..] == *b"w-p" {
                let ranges = files.written.entry(file_key(mapping)).or_default();
                ranges.push(mapping.range.clone());
            }
        }
        files
    }

    /// Returns whether a mapping may be the start of a program whose code is not executable: data that may be written
    /// is mapped behind it, and no part of the file may be executed.
    fn may_start_program(&self, mapping: &Mapping<'_>) -> bool {
        let is_start = mapping.inode != 0 && mapping.offset == 0 && mapping.access[0] == b'r';
        is_start
            && !self.executable.contains(&file_key(mapping))
            && self.is_written_in(mapping, &(mapping.range.end..u64::MAX))
    }

    /// Returns whether the file that starts at the mapping is loaded by these segments, but cannot be executed: data
    /// that may be written is where one of them says, and all their code is mapped without the right to execute it.
    fn is_loaded_without_execution(&self, start: &Mapping<'_>, segments: &[Segment]) -> bool {
        let Some(first) = segments.first() else {
            return false;
        };
        let bias = start.range.start.wrapping_sub(first.file_start());
        let has_data = |segment: &Segment| {
            let begin = bias.wrapping_add(segment.address);
            // The part that the loader made read-only (RELRO) comes first.
            self.is_written_in(start, &(begin..begin.wrapping_add(segment.file_size)))
        };
        // A program may have moved its code to large pages, which belong to no file.
        let is_not_executable = |segment: &Segment| {
            let code = bias.wrapping_add(segment.address);
            let index = self
                .all
                .partition_point(|mapping| mapping.range.end <= code);
            let mapping = self.all.get(index);
            mapping.is_some_and(|found| found.range.contains(&code) && !found.is_executable())
        };
        let with_flag = |flag| move |segment: &&Segment| segment.flags.contains(flag);
        let mut code = segments.iter().filter(with_flag(PF_X)).peekable();
        let mut data = segments.iter().filter(with_flag(PF_W));
        data.any(has_data) && code.peek().is_some() && code.all(is_not_executable)
    }

    /// Returns whether a part of the file of a mapping may be written somewhere in `range`.
    fn is_written_in(&self, mapping: &Mapping<'_>, range: &Range<u64>) -> bool {
        let ranges = self.written.get(&file_key(mapping));
        let after = ranges.and_then(|ranges| {
            let index = ranges.partition_point(|written| written.end <= range.start);
            ranges.get(index)
        });
        after.is_some_and(|written| written.start < range.end)
    }
}

/// Returns the device and inode of the file that is mapped.
fn file_key<'m>(mapping: &Mapping<'m>) -> FileKey<'m> {
    (mapping.device, mapping.inode)
}

/// Part of a file that is loaded (`PT_LOAD`).
struct Segment {
    /// `PF_W`, `PF_X`.
    flags: ProgramFlags,
    offset: u64,
    /// Address in the file.
    address: u64,
    /// Bytes in the file.
    file_size: u64,
}

impl Segment {
    /// Address, as the linker assigned it, at which this segment places the file's first byte.
    fn file_start(&self) -> u64 {
        self.address.wrapping_sub(self.offset)
    }
}

/// Returns the loaded segments of an ELF file of any machine. `header` is the start of the file. `None` if that is not
/// of an ELF file, or does not contain all program headers.
fn loaded_segments(header: &[u8]) -> Option<Vec<Segment>> {
    match FileKind::parse(header).ok()? {
        FileKind::Elf64 => loaded_segments_of_class::<FileHeader64<Endianness>>(header),
        FileKind::Elf32 => loaded_segments_of_class::<FileHeader32<Endianness>>(header),
        _ => None,
    }
}

/// Returns the loaded segments of an ELF file with 32-bit or 64-bit headers, as the type `Header` says. `None` if
/// `header`, the start of the file, is not of such a file, or does not contain all program headers.
fn loaded_segments_of_class<Header: FileHeader<Endian = Endianness>>(
    header: &[u8],
) -> Option<Vec<Segment>> {
    let parsed = Header::parse(header).ok()?;
    let endian = parsed.endian().ok()?;
    let segments = parsed.program_headers(endian, header).ok()?.iter();
    let loaded = segments.filter(|segment| segment.p_type(endian) == PT_LOAD);
    Some(
        loaded
            .map(|segment| Segment {
                flags: segment.p_flags(endian),
                offset: segment.p_offset(endian).into(),
                address: segment.p_vaddr(endian).into(),
                file_size: segment.p_filesz(endian).into(),
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Start of a program for RISC-V, with the segments that its linker makes: code at 0x10000, data at 0x71000.
    fn riscv_header(class: u8, is_big: bool) -> Vec<u8> {
        let number = |value: u64, size: usize| {
            let little = value.to_le_bytes()[..size].to_vec();
            match is_big {
                true => little.into_iter().rev().collect::<Vec<u8>>(),
                false => little,
            }
        };
        let word = if class == 2 { 8 } else { 4 };
        let header_size = if class == 2 { 64 } else { 52 };
        let mut file = vec![0x7f, b'E', b'L', b'F', class, 1 + u8::from(is_big), 1];
        file.resize(16, 0);
        file.extend([number(2, 2), number(243, 2), number(1, 4)].concat());
        file.extend(
            [
                number(0x1_0100, word),
                number(header_size, word),
                number(0, word),
            ]
            .concat(),
        );
        let entry = if class == 2 { 56 } else { 32 };
        let sizes = [header_size, entry, 2, 0, 0, 0].map(|size| number(size, 2));
        file.extend([number(0, 4), sizes.concat()].concat());
        // `PF_R | PF_X` and `PF_R | PF_W`.
        for (flags, offset, address, size) in
            [(5, 0, 0x1_0000, 0x6_0f00), (6, 0x6_0800, 0x7_1800, 0x6_000)]
        {
            let flags = number(flags, 4);
            let places =
                [offset, address, address, size, size, 0x1000].map(|each| number(each, word));
            let places = places.concat();
            file.extend(number(1, 4));
            match class {
                2 => file.extend([flags, places].concat()),
                _ => file.extend([&places[..20], &flags, &places[20..]].concat()),
            }
        }
        file
    }

    #[test]
    fn program_that_is_loaded_without_code_is_found() {
        let check = |header: &[u8], mapped: &str, expected: bool| {
            let maps = format!(
                "{mapped}555500000000-555500100000 r-xp 00000000 08:01 9 /usr/bin/emulator\n"
            );
            let read = |address: u64, buffer: &mut [u8]| {
                assert_eq!(address, 0x4000_0000);
                let length = header.len().min(buffer.len());
                buffer[..length].copy_from_slice(&header[..length]);
                length
            };
            let found = find_non_executable_program(maps.as_bytes(), read);
            let expected = expected.then(|| "/srv/guest".to_owned());
            assert_eq!(found, expected, "{mapped}");
        };
        let mapped = |code: &str, data: &str| {
            format!(
                "40000000-40061000 {code} 00000000 08:01 5 /srv/guest\n\
                 40061000-40065000 r--p 00060000 08:01 5 /srv/guest\n\
                 {data} 00064000 08:01 5 /srv/guest\n"
            )
        };
        let loaded = mapped("r--p", "40065000-40068000 rw-p");
        for (class, is_big) in [(2, false), (2, true), (1, false), (1, true)] {
            check(&riscv_header(class, is_big), &loaded, true);
        }
        let header = riscv_header(2, false);
        // The processor executes it.
        check(&header, &mapped("r-xp", "40065000-40068000 rw-p"), false);
        // A linker that reads the file, and one that changes a copy of it elsewhere.
        check(
            &header,
            "40000000-40070000 r--p 00000000 08:01 5 /srv/guest\n",
            false,
        );
        check(&header, &mapped("r--p", "50065000-50068000 rw-p"), false);
        check(&header, &mapped("r--p", "40065000-40068000 rw-s"), false);
        check(
            &header,
            "40000000-40070000 rw-p 00000000 08:01 5 /srv/guest\n",
            false,
        );
        check(b"SQLite format 3\0", &loaded, false);
        check(&header[..100], &loaded, false);
        // Its code was moved to large pages.
        let moved = "40000000-40010000 r--p 00000000 08:01 5 /srv/guest\n\
                     40010000-40061000 r-xp 00000000 00:00 0 \n";
        let header_apart = &mapped("r--p", "40065000-40068000 rw-p")
            ["40000000-40061000 r--p 00000000 08:01 5 /srv/guest\n".len()..];
        let mut late_code = riscv_header(2, false);
        // `p_vaddr` and `p_offset` of a code segment that follows the headers.
        late_code[64 + 8..64 + 24]
            .copy_from_slice(&[0x1_0000_u64.to_le_bytes(), 0x2_0000_u64.to_le_bytes()].concat());
        check(&late_code, &format!("{moved}{header_apart}"), false);
    }
}
