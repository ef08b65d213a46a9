//! Chunks that have a mapping of their own, and `struct malloc_par`, which counts them.

use std::ops::Range;

use super::{FLAGS, FoundHeap, HEADER};
use crate::objects::Span;
use crate::regions::Region;
use crate::resident_pages::PAGE;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

const IS_MAPPED: u64 = 2;
/// Where the structure has, before `sbrk_base`: the number of mapped chunks and its limit, two numbers of four
/// bytes from here on (glibc 2.35 and newer), or four bytes later.
const COUNTS: u64 = 40;
/// The bytes of these chunks, and the most there were.
const BYTES: u64 = 16;
const MOST_BYTES: u64 = 8;
/// `DEFAULT_MMAP_MAX`.
const COUNT_LIMIT: u64 = 65536;
/// How far the first chunk may lie behind the first break.
const EARLY_BREAK: u64 = 1 << 20;

/// What `struct malloc_par` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) first_break: u64,
    count: u64,
    bytes: u64,
}

/// Looks for the structure by the address of the first chunk of the heap that brk(2) gave.
pub(super) fn parameters(view: &SnapshotMemory, heap: &Range<u64>) -> Option<Parameters> {
    let early = heap.start..heap.end.min(heap.start + EARLY_BREAK);
    let data = view
        .regions
        .iter()
        .filter(|region| region.is_file && region.is_writable && !region.pages.is_empty());
    let mut memory = CachedReader::new(view);
    data.map(|region| region.range.start + COUNTS..region.range.end)
        .flat_map(|places| places.step_by(8))
        .find_map(|place| {
            let mut word = |before| memory.word(place - before);
            let first_break = word(0).filter(|word| early.contains(word) && word % 16 == 0)?;
            let (bytes, most) = (word(BYTES)?, word(MOST_BYTES)?);
            let halves = [
                word(COUNTS)? >> 32,
                word(COUNTS - 8)? & 0xffff_ffff,
                word(COUNTS - 8)? >> 32,
            ];
            let counts = halves.windows(2).find(|pair| pair[1] == COUNT_LIMIT)?;
            let count = counts[0];
            let is_sound = bytes <= most && bytes % PAGE == 0 && (count == 0) == (bytes == 0);
            is_sound.then_some(Parameters {
                first_break,
                count,
                bytes,
            })
        })
}

/// Adds the chunks that have a mapping of their own. Where there are more than glibc counts, none of them is
/// certain.
pub(super) fn add(view: &SnapshotMemory, heap: &mut FoundHeap) {
    let brk = view.regions.iter().find(|region| region.name == "[heap]");
    let counted = brk.and_then(|brk| parameters(view, &brk.range));
    let Some(counted) = counted.filter(|counted| counted.count > 0) else {
        return;
    };
    let is_heap = |region: &Region| {
        let shares =
            |own: &Range<u64>| own.start < region.range.end && region.range.start < own.end;
        heap.own.iter().any(shares)
    };
    let candidates = view.regions.iter().filter(|region| {
        let is_private = region.is_writable && !region.is_file && !region.is_shared;
        is_private && !region.name.starts_with("[heap") && !is_heap(region)
    });
    let found: Vec<_> = candidates.flat_map(|region| chunks(view, region)).collect();
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
            .push(Span::whole(chunk.start + HEADER..chunk.end));
        heap.own.push(chunk);
    }
}

fn chunks(view: &SnapshotMemory, region: &Region) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut at = region.range.start;
    for pages in &region.pages {
        at = at.max(pages.start);
        while at < pages.end {
            let size = view.word(at + 8).filter(|size| {
                let length = size & !FLAGS;
                size & FLAGS == IS_MAPPED
                    && length.is_multiple_of(PAGE)
                    && (PAGE..=region.range.end - at).contains(&length)
                    && view.word(at) == Some(0)
            });
            let length = size.map_or(PAGE, |size| size & !FLAGS);
            if size.is_some() {
                found.push(at..at + length);
            }
            at += length;
        }
    }
    found
}
