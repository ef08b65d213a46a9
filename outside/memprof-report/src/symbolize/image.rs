//! The memory image of an ELF file, by its program headers.

use object::elf::{DF_1_PIE, DT_FLAGS_1, DT_SONAME, ET_DYN, ET_EXEC, PT_INTERP};
use object::read::elf::{Dyn, ElfFile, FileHeader, ProgramHeader};
use object::{Object as _, ObjectSection as _, ObjectSegment as _, ReadRef, SectionFlags};

use super::address::LinkedAddress;
use crate::profile::{Address, FileOffset, Mapping};

/// Most segments that are looked at. Linkers write about four.
const MAX_SEGMENTS: usize = 64;

/// Most mappings of a file by which its load address is found.
const MAX_MAPPINGS: usize = 16;

/// Page size by which segments are rounded to mappings. Where pages are larger, segments are aligned to them.
const PAGE: u64 = 4096;

/// Loadable segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// Offset in the file.
    offset: u64,
    file_size: u64,
    address: LinkedAddress,
    /// Bytes in memory.
    size: u64,
    executable: bool,
}

impl Segment {
    /// Returns the load bias, the difference between an address in memory and the linked one, under the assumption that
    /// `mapping` is part of this segment. `None` if it cannot be, by its offset or its access. Without `has_offsets`,
    /// the offsets of the segment or of the mapping are unknown, and the mapping counts as the start of the segment.
    fn bias(&self, mapping: &Mapping, has_offsets: bool) -> Option<u64> {
        let start = match has_offsets {
            true => {
                let first = self.offset & !(PAGE - 1);
                let end = self.offset.checked_add(self.file_size)?;
                let is_inside = (first..end).contains(&mapping.offset);
                is_inside.then(|| {
                    let distance = mapping.offset.wrapping_sub(self.offset);
                    self.address.wrapping_add(distance)
                })
            }
            false => Some(self.address & !(PAGE - 1)),
        };
        let start = start.filter(|_| self.executable == mapping.executable)?;
        Some(mapping.start.0.wrapping_sub(start))
    }

    /// Pages that the segment occupies at load bias `bias`. `None` if they overflow.
    fn page_range(&self, bias: u64) -> Option<(Address, Address)> {
        let start = bias.wrapping_add(self.address);
        let end = start
            .checked_add(self.size)?
            .checked_next_multiple_of(PAGE)?;
        Some((Address(start & !(PAGE - 1)), Address(end)))
    }
}

/// Image of a file.
#[derive(Debug)]
pub(super) struct Image {
    segments: Vec<Segment>,
    /// False for a debug file, whose code is left out (`objcopy --only-keep-debug`).
    pub(super) has_code: bool,
}

impl Image {
    /// Reads the image of a file. Segments beyond [`MAX_SEGMENTS`] are left out. A file without section headers counts
    /// as one with code.
    pub(super) fn new<'d, R: ReadRef<'d>>(file: &object::File<'d, R>) -> Self {
        let segments = file.segments().take(MAX_SEGMENTS).map(|segment| {
            let (offset, file_size) = segment.file_range();
            Segment {
                offset,
                file_size,
                address: segment.address(),
                size: segment.size(),
                executable: segment.permissions().executable(),
            }
        });
        let mut code = file
            .sections()
            .filter(|section| matches!(section.flags(), SectionFlags::Elf { sh_flags, .. } if is_executable(sh_flags)))
            .peekable();
        // A file without section headers counts as one with code.
        let has_code = code.peek().is_none() || code.any(|section| section.file_range().is_some());
        Self {
            segments: segments.collect(),
            has_code,
        }
    }

    /// Returns the linked address of a byte of the file. `None` if no segment holds it, or this is a debug file.
    pub(super) fn linked_address(&self, FileOffset(offset): FileOffset) -> Option<LinkedAddress> {
        let mut segments = self.segments.iter().filter(|_| self.has_code);
        let segment = segments.find(|segment| {
            offset >= segment.offset && offset - segment.offset < segment.file_size
        })?;
        Some(segment.address.wrapping_add(offset - segment.offset))
    }

    /// Returns whether an executable segment contains this address, which is as in the file, before relocation.
    pub(super) fn has_code_at(&self, linked: LinkedAddress) -> bool {
        let mut code = self.segments.iter().filter(|segment| segment.executable);
        code.any(|segment| linked.wrapping_sub(segment.address) < segment.size)
    }

    /// Returns the load bias with which most of `mappings`, all of this file, agree. `None` if no bias fits any
    /// mapping, or two fit equally many.
    pub(super) fn bias<'m>(
        &self,
        mappings: impl Iterator<Item = &'m Mapping> + Clone,
    ) -> Option<u64> {
        self.likeliest_bias(mappings, self.has_code)
    }

    /// Returns the load bias with which most of `mappings`, all of this file, agree, if their file offsets are unknown:
    /// a mapping agrees if a segment contains it. `None` if no bias fits any mapping, or two fit equally many.
    pub(super) fn bias_without_offsets<'m>(
        &self,
        mappings: impl Iterator<Item = &'m Mapping> + Clone,
    ) -> Option<u64> {
        self.likeliest_bias(mappings, false)
    }

    /// Finds the load bias with which most mappings agree. With `has_offsets`, a mapping agrees if the bias follows
    /// from its file offset, else if a segment contains the mapping. `None` if no bias fits more mappings than all
    /// others. Only the first [`MAX_MAPPINGS`] mappings count.
    fn likeliest_bias<'m>(
        &self,
        mappings: impl Iterator<Item = &'m Mapping> + Clone,
        has_offsets: bool,
    ) -> Option<u64> {
        let mappings = mappings.take(MAX_MAPPINGS);
        let biases_of = |mapping: &'m Mapping| {
            let segments = self.segments.iter();
            segments.filter_map(move |segment| segment.bias(mapping, has_offsets))
        };
        let agrees = |mapping: &'m Mapping, bias: u64| match has_offsets {
            true => biases_of(mapping).any(|other| other == bias),
            false => self.contains(mapping, bias),
        };
        let mut candidates: Vec<(usize, u64)> = Vec::new();
        for bias in mappings.clone().flat_map(biases_of) {
            if !candidates.iter().any(|&(_, known)| known == bias) {
                let agreeing = mappings.clone().filter(|mapping| agrees(mapping, bias));
                candidates.push((agreeing.count(), bias));
            }
        }
        let &(most, bias) = candidates.iter().max()?;
        let equals = candidates.iter().filter(|(count, _)| *count == most);
        (equals.count() == 1).then_some(bias)
    }

    /// Returns whether a segment with the mapping's access holds the whole mapping at the load bias `bias`.
    fn contains(&self, mapping: &Mapping, bias: u64) -> bool {
        let same_access = |segment: &&Segment| segment.executable == mapping.executable;
        let mut segments = self.segments.iter().filter(same_access);
        segments.any(|segment| {
            let pages = segment.page_range(bias);
            pages.is_some_and(|(start, end)| start <= mapping.start && mapping.end <= end)
        })
    }

    /// Iterates over the mappings that a loader creates for the file's code at the load bias `bias`. They get the given
    /// `path` and `build_id`, which is in hex. Leaves out segments whose end overflows.
    pub(super) fn code_mappings<'a>(
        &'a self,
        bias: u64,
        path: &'a str,
        build_id: Option<&'a str>,
    ) -> impl Iterator<Item = Mapping> + 'a {
        let code = self.segments.iter().filter(|segment| segment.executable);
        code.filter_map(move |segment| {
            let (start, end) = segment.page_range(bias)?;
            let before = bias.wrapping_add(segment.address).wrapping_sub(start.0);
            Some(Mapping {
                start,
                end,
                offset: segment.offset.wrapping_sub(before),
                executable: true,
                path: path.to_owned(),
                build_id: build_id.map(str::to_owned),
            })
        })
    }
}

/// Returns whether a section with these flags holds instructions.
fn is_executable(flags: object::elf::SectionFlags) -> bool {
    flags.0 & object::elf::SHF_EXECINSTR.0 != 0
}

/// Returns whether the kernel or a loader runs this file as a program, rather than loading it as a library. Shared
/// libraries may have an interpreter too, like glibc's, but those have a `DT_SONAME`.
pub(super) fn is_program<'d, R: ReadRef<'d>>(file: &object::File<'d, R>) -> bool {
    match file {
        object::File::Elf32(elf) => is_elf_program(elf),
        object::File::Elf64(elf) => is_elf_program(elf),
        _ => false,
    }
}

/// Returns whether an ELF file is a program, not a library. A position-independent program is `ET_DYN`, like a library,
/// and only newer linkers mark it with `DF_1_PIE`. Without this mark, it must have an interpreter and no `DT_SONAME`.
fn is_elf_program<'d, Elf: FileHeader, R: ReadRef<'d>>(elf: &ElfFile<'d, Elf, R>) -> bool {
    let endian = elf.endian();
    let kind = elf.elf_header().e_type(endian);
    if kind != ET_DYN {
        return kind == ET_EXEC;
    }
    let headers = elf.elf_program_headers();
    let dynamic = headers
        .iter()
        .find_map(|header| header.dynamic(endian, elf.data()).ok()?);
    let value = |tag| {
        let entries = dynamic.unwrap_or_default().iter();
        let mut values = entries.filter(|entry| entry.tag(endian) == tag);
        values.next().map(|entry| entry.val(endian))
    };
    let has_interpreter = headers
        .iter()
        .any(|header| header.p_type(endian) == PT_INTERP);
    value(DT_FLAGS_1).is_some_and(|flags| flags & DF_1_PIE.0 != 0)
        || has_interpreter && value(DT_SONAME).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn segment(offset: u64, address: u64, size: u64, executable: bool) -> Segment {
        Segment {
            offset,
            file_size: size,
            address,
            size,
            executable,
        }
    }

    /// Mapping of `/app` with these first addresses and offsets.
    fn mapping(start: u64, size: u64, offset: u64, executable: bool) -> Mapping {
        Mapping {
            start: Address(start),
            end: Address(start + size),
            offset,
            executable,
            path: "/app".to_owned(),
            build_id: None,
        }
    }

    /// As GNU ld lays a file out, and as lld does: its segments share pages of the file.
    const GNU: [Segment; 4] = [
        segment(0, 0, 0x618, false),
        segment(0x1000, 0x1000, 0x181, true),
        segment(0x2000, 0x2000, 0xf4, false),
        segment(0x2dd0, 0x3dd0, 0x248, false),
    ];
    const LLD: [Segment; 3] = [
        segment(0, 0, 0x600, false),
        segment(0x600, 0x1600, 0x280, true),
        segment(0x880, 0x2880, 0x200, false),
    ];

    #[test]
    fn load_bias_is_that_of_most_mappings() {
        const BASE: u64 = 0x5555_5555_4000;
        let check = |segments: &[Segment], has_code, mappings: &[Mapping], expected| {
            let image = Image {
                segments: segments.to_vec(),
                has_code,
            };
            assert_eq!(image.bias(mappings.iter()), expected, "{mappings:?}");
        };
        let gnu = [
            mapping(BASE, 0x1000, 0, false),
            mapping(BASE + 0x1000, 0x1000, 0x1000, true),
            mapping(BASE + 0x2000, 0x1000, 0x2000, false),
            mapping(BASE + 0x3000, 0x2000, 0x2000, false),
        ];
        let lld = [
            mapping(BASE, 0x1000, 0, false),
            mapping(BASE + 0x1000, 0x1000, 0, true),
            mapping(BASE + 0x2000, 0x1000, 0, false),
        ];
        check(&GNU, true, &gnu, Some(BASE));
        check(&GNU, false, &gnu, Some(BASE));
        check(&LLD, true, &lld, Some(BASE));
        check(&LLD, false, &lld, Some(BASE));
        // Only what pprof keeps, and only what is left beside moved code.
        check(&GNU, false, &gnu[1..2], Some(BASE));
        check(&LLD, true, &lld[1..2], Some(BASE));
        let without_code = [gnu[0].clone(), gnu[2].clone(), gnu[3].clone()];
        check(&GNU, true, &without_code, Some(BASE));
        // A second copy of the library, and a mapping of another file.
        let copies = [&gnu[..], &gnu[1..2]].concat();
        check(&GNU, true, &copies, Some(BASE));
        check(&GNU, true, &[mapping(BASE, 0x1000, 0x9000, true)], None);
        check(&GNU, true, &gnu[3..], None);
        check(&[], true, &gnu, None);
        check(&GNU, true, &[], None);
    }

    #[test]
    fn code_of_segment_without_own_page_keeps_offset() {
        let image = Image {
            segments: LLD.to_vec(),
            has_code: true,
        };
        let code: Vec<_> = image.code_mappings(0x40_0000, "/app", None).collect();
        assert_eq!(code.len(), 1);
        assert_eq!(
            (code[0].start, code[0].end),
            (Address(0x40_1000), Address(0x40_2000))
        );
        assert_eq!(code[0].file_offset(Address(0x40_1680)), FileOffset(0x680));
    }
}
