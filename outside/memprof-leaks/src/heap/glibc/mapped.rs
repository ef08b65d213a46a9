//! Chunks with a mapping of their own, and `struct malloc_par`, which counts them.

use std::ops::Range;

use super::{FoundHeap, HEADER_SIZE, SIZE_FLAGS};
use crate::objects::Span;
use crate::regions::Region;
use crate::resident_pages::PAGE_SIZE;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Flag of a size field: the chunk has a mapping of its own.
const MAPPED_FLAG: u64 = 2;
/// Offset back from `sbrk_base` to the number of mapped chunks and its limit, two 32-bit numbers (glibc 2.35
/// and newer); in older versions they are 4 bytes later.
const COUNTS_OFFSET: u64 = 40;
/// Offset back from `sbrk_base` to the bytes of these chunks.
const BYTES_OFFSET: u64 = 16;
/// Offset back from `sbrk_base` to the largest number of these bytes so far.
const MAX_BYTES_OFFSET: u64 = 8;
/// `DEFAULT_MMAP_MAX`, the limit of mapped chunks.
const DEFAULT_MAX_COUNT: u64 = 65536;
/// Largest distance from the heap's start to its first chunk.
const MAX_START_GAP: u64 = 1 << 20;

/// Values of `struct malloc_par`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) first_break: u64,
    count: u64,
    bytes: u64,
}

/// Finds glibc's `struct malloc_par` by its `sbrk_base`, the address of the first chunk in brk(2)'s memory. `None`
/// if there is none.
pub(super) fn find_parameters(view: &SnapshotMemory, heap: &Range<u64>) -> Option<Parameters> {
    let early = heap.start..heap.end.min(heap.start + MAX_START_GAP);
    let data = view
        .regions
        .iter()
        .filter(|region| region.is_file && region.is_writable && !region.pages.is_empty());
    let mut memory = CachedReader::new(view);
    data.map(|region| region.range.start + COUNTS_OFFSET..region.range.end)
        .flat_map(|fields| fields.step_by(8))
        .find_map(|field| {
            let mut word = |before| memory.word(field - before);
            let first_break = word(0).filter(|word| early.contains(word) && word % 16 == 0)?;
            let (bytes, max) = (word(BYTES_OFFSET)?, word(MAX_BYTES_OFFSET)?);
            let halves = [
                word(COUNTS_OFFSET)? >> 32,
                word(COUNTS_OFFSET - 8)? & 0xffff_ffff,
                word(COUNTS_OFFSET - 8)? >> 32,
            ];
            let counts = halves
                .windows(2)
                .find(|pair| pair[1] == DEFAULT_MAX_COUNT)?;
            let count = counts[0];
            let is_consistent =
                bytes <= max && bytes % PAGE_SIZE == 0 && (count == 0) == (bytes == 0);
            is_consistent.then_some(Parameters {
                first_break,
                count,
                bytes,
            })
        })
}

/// Adds the chunks with a mapping of their own to `heap.spans`. If more are found than glibc counts, none of them
/// is certain: none is added, and the heap is recorded as unproven.
pub(super) fn add_mapped_chunks(view: &SnapshotMemory, heap: &mut FoundHeap) {
    let brk = view.regions.iter().find(|region| region.name == "[heap]");
    let counted = brk.and_then(|brk| find_parameters(view, &brk.range));
    let Some(counted) = counted.filter(|counted| counted.count > 0) else {
        return;
    };
    let is_heap = |region: &Region| {
        let shares =
            |own: &Range<u64>| own.start < region.range.end && region.range.start < own.end;
        heap.excluded.iter().any(shares)
    };
    let candidates = view.regions.iter().filter(|region| {
        let is_private = region.is_writable && !region.is_file && !region.is_shared;
        is_private && !region.name.starts_with("[heap") && !is_heap(region)
    });
    let found: Vec<_> = candidates
        .flat_map(|region| mapped_chunks(view, region))
        .collect();
    let bytes: u64 = found.iter().map(|chunk| chunk.end - chunk.start).sum();
    if found.len() as u64 > counted.count || bytes > counted.bytes {
        heap.unproven.push(format!(
            "large blocks of glibc's malloc: it counts {} mappings, but {} look like one",
            counted.count,
            found.len()
        ));
        return;
    }
    for chunk in found {
        heap.spans
            .push(Span::single_object(chunk.start + HEADER_SIZE..chunk.end));
        heap.excluded.push(chunk);
    }
}

/// Ranges of a mapping that look like mapped chunks, by address, including their headers.
fn mapped_chunks(view: &SnapshotMemory, region: &Region) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut address = region.range.start;
    for pages in &region.pages {
        address = address.max(pages.start);
        while address < pages.end {
            let size = view.word(address + 8).filter(|size| {
                let length = size & !SIZE_FLAGS;
                size & SIZE_FLAGS == MAPPED_FLAG
                    && length.is_multiple_of(PAGE_SIZE)
                    && (PAGE_SIZE..=region.range.end - address).contains(&length)
                    && view.word(address) == Some(0)
            });
            let length = size.map_or(PAGE_SIZE, |size| size & !SIZE_FLAGS);
            if size.is_some() {
                found.push(address..address + length);
            }
            address += length;
        }
    }
    found
}
