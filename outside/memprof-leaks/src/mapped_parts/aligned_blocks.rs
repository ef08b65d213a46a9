//! Heaps of runtimes in blocks with an alignment, each of which a header proves: V8's pages, the chunks of PHP's Zend
//! memory manager, the pools of Python's pymalloc.

use std::ops::Range;

use memprof_ptrace::maps::Mapping;

use super::{AddressSpace, MappedPartKind, MemoryClaim};
use crate::heap::PoolHeader;
use crate::resident_pages::find_resident_anonymous_pages;

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
        size: v8_page_size,
        is_possible: |_| true,
    },
    BlockForm {
        owner: "PHP heap (Zend memory manager)",
        alignment: ZEND_CHUNK,
        size: zend_chunk_size,
        is_possible: |_| true,
    },
    BlockForm {
        owner: "Python objects (pymalloc)",
        alignment: 4 << 10,
        size: python_pools_size,
        // The interpreter, its library, or an extension module: cpython-311-x86_64-linux-gnu.so.
        is_possible: |space| {
            space.has_code_file(|name| memchr::memmem::find(name, b"python").is_some())
        },
    },
];

/// Size and alignment of a Zend chunk (`ZEND_MM_CHUNK_SIZE`).
const ZEND_CHUNK: u64 = 2 << 20;

/// Finds the aligned blocks from which the runtimes of languages allocate their objects, by their headers. Only
/// resident pages are read.
pub(super) fn find_blocks(space: &AddressSpace) -> Vec<MemoryClaim> {
    let mut claims = Vec::new();
    for form in FORMS.iter().filter(|form| (form.is_possible)(space)) {
        for mapping in space.anonymous_mappings() {
            add_blocks_in_mapping(space, form, &mapping, &mut claims);
        }
    }
    claims
}

/// Adds the blocks of this form in a mapping to `claims`. Reads only resident pages.
fn add_blocks_in_mapping(
    space: &AddressSpace,
    form: &BlockForm,
    mapping: &Mapping<'_>,
    claims: &mut Vec<MemoryClaim>,
) {
    // A block may reach beyond a run of resident pages into the next one.
    let mut next = mapping.range.start;
    for run in find_resident_anonymous_pages(&space.pagemap, &mapping.range) {
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

/// Adds a block to the last claim if it follows that claim directly and has the same owner, or else as a new claim.
fn add_block(claims: &mut Vec<MemoryClaim>, form: &BlockForm, block: Range<u64>) {
    let claim = MemoryClaim::new(block.clone(), MappedPartKind::LanguageHeap, form.owner);
    match claims.last_mut() {
        Some(last) if last.range.end == block.start && last.owner == claim.owner => {
            last.range.end = block.end;
        }
        _ => claims.push(claim),
    }
}

/// Size in bytes of the V8 page (`MemoryChunk`, as from V8 8 to 11) at an address. Counted from 0, word 0 of its header
/// is its size, the words 3 and 4 are the bounds of its objects, and the words 10 and 11 are the address and size of
/// its memory reservation. `None` if no page is there.
fn v8_page_size(space: &AddressSpace, address: u64) -> Option<u64> {
    const MAX_HEADER: u64 = 16 << 10;
    let header: [u64; 12] = space.read_words(address)?;
    let [size, _, _, start, end, ..] = header;
    let is_page = size.is_multiple_of(4096)
        && header[10..] == [address, size]
        && (address + 1..address.saturating_add(MAX_HEADER)).contains(&start)
        && (start..=address.checked_add(size)?).contains(&end);
    is_page.then_some(size)
}

/// Size in bytes of the Zend chunk (`zend_mm_chunk`, PHP 7 and 8) at an address: its neighbours in the ring of chunks
/// point back to it, and its heap is in a chunk of the same heap. `None` if no chunk is there.
fn zend_chunk_size(space: &AddressSpace, address: u64) -> Option<u64> {
    // A chunk begins with its fields `heap`, `next` and `prev`.
    let [heap, next, previous] = space.read_words(address)?;
    let is_aligned = |address: u64| address != 0 && address.is_multiple_of(ZEND_CHUNK);
    let is_chunk = is_aligned(next)
        && is_aligned(previous)
        && space.read_word(next.checked_add(16)?)? == address
        && space.read_word(previous.checked_add(8)?)? == address
        && !is_aligned(heap)
        && space.read_word(heap & !(ZEND_CHUNK - 1))? == heap;
    is_chunk.then_some(ZEND_CHUNK)
}

/// Reads the header of a pool of pymalloc at an address; `None` if it cannot be read, or its fields are inconsistent.
fn read_pool_header(space: &AddressSpace, address: u64) -> Option<PoolHeader> {
    PoolHeader::parse(address, space.read_words(address)?)
}

/// Size in bytes of an arena's pools, from the pool at an address to the last one that is found: only the pools 63, 31,
/// 15, 7, 3 and 1 behind it are tried. Memory between two pools of an arena belongs to it, too. `None` if there is no
/// pool at the address.
fn python_pools_size(space: &AddressSpace, address: u64) -> Option<u64> {
    let first = read_pool_header(space, address)?;
    let is_same = |distance: &u64| {
        let pool = read_pool_header(space, address + distance * first.size);
        pool.is_some_and(|pool| (pool.arena, pool.size) == (first.arena, first.size))
    };
    // An arena has up to 64 pools: 1 MiB since Python 3.10, 256 KiB before.
    let distance = [63, 31, 15, 7, 3, 1].into_iter().find(is_same);
    Some((distance.unwrap_or(0) + 1) * first.size)
}
