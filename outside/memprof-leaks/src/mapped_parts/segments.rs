//! Variables of the program and its libraries: the segments of their files, with the memory behind them that has no
//! initial values.

use std::ops::Range;

use memprof_ptrace::maps::{Mapping, mappings};

use super::{AddressSpace, MappedPartKind, MemoryClaim};
use crate::resident_pages::PAGE_SIZE;

const PT_LOAD: u32 = 1;
/// Size of a program header (`Elf64_Phdr`), in bytes.
const HEADER_SIZE: usize = 56;
/// Most program headers that are read: linkers write a dozen.
const MAX_HEADERS: usize = 128;

/// Claims the loaded segments of all ELF files whose header is mapped, as variables of the program and its libraries.
pub(super) fn find_file_segments(space: &AddressSpace) -> Vec<MemoryClaim> {
    let images = mappings(&space.maps).filter(|mapping| mapping.inode != 0 && mapping.offset == 0);
    let ranges = images.flat_map(|image| loaded_segments(space, &image).unwrap_or_default());
    let claim = |range| {
        let name = "variables of the program and its libraries";
        MemoryClaim::new(range, MappedPartKind::Variables, name)
    };
    ranges.map(claim).collect()
}

/// Pages of the segments of a file, by the addresses at which it is loaded; `None` if it is no 64-bit ELF file, has no
/// segment that is loaded, or its headers cannot be read.
fn loaded_segments(space: &AddressSpace, image: &Mapping<'_>) -> Option<Vec<Range<u64>>> {
    let base = image.range.start;
    let header: [u8; 64] = space.memory.read_array(base).ok()?;
    if header[..5] != *b"\x7fELF\x02" {
        return None;
    }
    let word = |bytes: &[u8], offset: usize| {
        let word = bytes[offset..offset + 8].try_into();
        u64::from_le_bytes(word.expect("eight bytes"))
    };
    // The offsets are those of `Elf64_Ehdr` and `Elf64_Phdr` (elf(5)).
    let count = usize::from(u16::from_le_bytes([header[56], header[57]])).min(MAX_HEADERS);
    let mut headers = vec![0; count * HEADER_SIZE];
    let start = base.checked_add(word(&header, 32))?;
    space.memory.read(start, &mut headers).ok()?;
    let is_load = |header: &&[u8]| header[..4] == PT_LOAD.to_le_bytes();
    let loaded = headers.chunks_exact(HEADER_SIZE).filter(is_load);
    let loaded: Vec<_> = loaded
        .map(|header| (word(header, 16), word(header, 40)))
        .collect();
    // The first segment begins with the ELF header.
    let (first, _) = loaded.first()?;
    let bias = base.wrapping_sub(first & !(PAGE_SIZE - 1));
    let pages = |(address, size): &(u64, u64)| {
        let start = bias.wrapping_add(*address);
        let end = start
            .checked_add(*size)?
            .checked_next_multiple_of(PAGE_SIZE)?;
        Some(start & !(PAGE_SIZE - 1)..end)
    };
    Some(loaded.iter().filter_map(pages).collect())
}
