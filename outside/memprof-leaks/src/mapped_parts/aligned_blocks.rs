//! Heaps of runtimes in blocks with an alignment, each of which a header proves: V8's pages, the chunks of PHP's Zend
//! memory manager, the pools of Python's pymalloc.

use std::ops::Range;

use memprof_ptrace::maps::Mapping;

use super::{AddressSpace, MappedPartKind, MemoryClaim};
use crate::resident_pages::resident_anonymous;

/// Form of a runtime's blocks.
struct BlockForm {
    owner: &'static str,
    /// Alignment of the blocks in bytes.
    alignment: u64,
    /// Size in bytes of the block at an address; `None` unless its header proves that there is one.
    size: fn(&AddressSpace, u64) -> Option<u64>,
    /// Whether the process may have such blocks: to look for small ones in every process would take long.
    is_possible: fn(&AddressSpace) -> bool,
}

const FORMS: [BlockForm; 3] = [
    BlockForm {
        owner: "V8 heap (JavaScript)",
        alignment: 256 << 10,
        size: v8_page,
        is_possible: |_| true,
    },
    BlockForm {
        owner: "PHP heap (Zend memory manager)",
        alignment: ZEND_CHUNK,
        size: zend_chunk,
        is_possible: |_| true,
    },
    BlockForm {
        owner: "Python objects (pymalloc)",
        alignment: 4 << 10,
        size: python_pools,
        // The interpreter, its library, or an extension module: cpython-311-x86_64-linux-gnu.so.
        is_possible: |space| space.has_code(|name| memchr::memmem::find(name, b"python").is_some()),
    },
];

/// Size and alignment of a Zend chunk (`ZEND_MM_CHUNK_SIZE`).
const ZEND_CHUNK: u64 = 2 << 20;

/// Finds the blocks of all runtimes. Only resident pages are read.
pub(super) fn find_blocks(space: &AddressSpace) -> Vec<MemoryClaim> {
    let mut claims = Vec::new();
    for form in FORMS.iter().filter(|form| (form.is_possible)(space)) {
        for mapping in space.anonymous() {
            find_in_mapping(space, form, &mapping, &mut claims);
        }
    }
    claims
}

/// Finds the blocks of a form in a mapping.
fn find_in_mapping(
    space: &AddressSpace,
    form: &BlockForm,
    mapping: &Mapping<'_>,
    claims: &mut Vec<MemoryClaim>,
) {
    let mut next = mapping.range.start;
    for run in resident_anonymous(&space.pagemap, &mapping.range) {
        let mut address = run.start.max(next).next_multiple_of(form.alignment);
        while address < run.end {
            let size = (form.size)(space, address).filter(|size| *size > 0);
            if let Some(size) = size {
                add_block(claims, form, address..address + size);
            }
            next = address + size.unwrap_or(form.alignment);
            address = next.next_multiple_of(form.alignment);
        }
    }
}

/// Adds a block to the last claim if it follows that claim directly, or else as a new claim.
fn add_block(claims: &mut Vec<MemoryClaim>, form: &BlockForm, block: Range<u64>) {
    let claim = MemoryClaim::new(block.clone(), MappedPartKind::LanguageHeap, form.owner);
    match claims.last_mut() {
        Some(last) if last.range.end == block.start && last.owner == claim.owner => {
            last.range.end = block.end;
        }
        _ => claims.push(claim),
    }
}

/// Size of the V8 page (`MemoryChunk`, as from V8 8 to 11) at an address: its header holds the bounds of its objects,
/// and the address and size of its memory reservation.
fn v8_page(space: &AddressSpace, address: u64) -> Option<u64> {
    const MAX_HEADER: u64 = 16 << 10;
    let header: [u64; 12] = space.words(address)?;
    let [size, _, _, start, end, ..] = header;
    let is_page = size.is_multiple_of(4096)
        && header[10..] == [address, size]
        && (address + 1..address.saturating_add(MAX_HEADER)).contains(&start)
        && (start..=address.checked_add(size)?).contains(&end);
    is_page.then_some(size)
}

/// Size of the Zend chunk (`zend_mm_chunk`, PHP 7 and 8) at an address: its neighbours in the ring of chunks point back to
/// it, and its heap is in a chunk of the same heap.
fn zend_chunk(space: &AddressSpace, address: u64) -> Option<u64> {
    let [heap, next, previous] = space.words(address)?;
    let is_aligned = |address: u64| address != 0 && address.is_multiple_of(ZEND_CHUNK);
    let is_chunk = is_aligned(next)
        && is_aligned(previous)
        && space.word(next.checked_add(16)?)? == address
        && space.word(previous.checked_add(8)?)? == address
        && !is_aligned(heap)
        && space.word(heap & !(ZEND_CHUNK - 1))? == heap;
    is_chunk.then_some(ZEND_CHUNK)
}

/// Header of a pymalloc pool (`struct pool_header` of obmalloc.c, Python 3.7 and later).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PoolHeader {
    arena: u32,
    /// Size of the pool in bytes: 16 KiB since Python 3.10, 4 KiB before.
    size: u64,
}

impl PoolHeader {
    /// Reads the header at an address; `None` unless its fields are consistent.
    fn read(space: &AddressSpace, address: u64) -> Option<Self> {
        Self::parse(address, space.words(address)?)
    }

    fn parse(address: u64, words: [u64; 6]) -> Option<Self> {
        /// Bytes of the header, and of the least object.
        const HEADER: u64 = 48;
        const ALIGNMENT: u64 = 16;
        let [count, free, _, _, arena_and_class, offsets] = words;
        let high = |word: u64| word >> 32;
        let object = (high(arena_and_class) + 1) * ALIGNMENT;
        let (next, last) = (offsets & 0xffff_ffff, high(offsets));
        let size = last + object;
        let is_pool = (size == 4 << 10 || size == 16 << 10)
            && object <= 512
            && address.is_multiple_of(size)
            && (HEADER + object..=size + object).contains(&next)
            && (count & 0xffff_ffff) * object <= size
            && (free == 0 || (address + HEADER..address + size).contains(&free));
        is_pool.then_some(Self {
            arena: arena_and_class as u32,
            size,
        })
    }
}

/// Size of the adjacent pools from an address on. Those between two pools of the same arena belong to it, too.
fn python_pools(space: &AddressSpace, address: u64) -> Option<u64> {
    let first = PoolHeader::read(space, address)?;
    let is_same = |distance: &u64| {
        let pool = PoolHeader::read(space, address + distance * first.size);
        pool == Some(first)
    };
    // An arena has up to 64 pools: 1 MiB since Python 3.10, 256 KiB before.
    let distance = [63, 31, 15, 7, 3, 1].into_iter().find(is_same);
    Some((distance.unwrap_or(0) + 1) * first.size)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words as Python 3.11 and 3.9 write them for objects of 64 bytes, and changes of single fields.
    #[test]
    fn pool_is_proven_by_consistent_fields() {
        let pool = |size: u64| [7, 0, 0, 0, 3 << 32 | 5, (size - 64) << 32 | (48 + 7 * 64)];
        let check = |address, words, expected: Option<u64>| {
            let found = PoolHeader::parse(address, words);
            assert_eq!(found.map(|pool| pool.size), expected, "{words:?}");
        };
        check(0x4000, pool(16 << 10), Some(16 << 10));
        check(0x5000, pool(4 << 10), Some(4 << 10));
        check(0x5000, pool(16 << 10), None);
        check(0x8000, pool(8 << 10), None);
        check(0x8000, [0; 6], None);
        for (index, value) in [(0, 1 << 20), (1, 0x100), (4, u64::MAX), (5, 64 << 32)] {
            let mut words = pool(16 << 10);
            words[index] = value;
            check(0x4000, words, None);
        }
    }
}
