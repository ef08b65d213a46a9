//! The heap of glibc's malloc, 2.27 and newer, on x86-64 (malloc/malloc.c, malloc/arena.c).
//!
//! An arena proves itself by the heads of its 127 bins, each of which points to itself or to a chunk that
//! points back; a heap, by chunks that lead exactly to its top; a thread's cache, by entries of the right size.

mod arena;
mod caches;
mod mapped;

use std::ops::Range;

use super::FoundHeap;
use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::objects::Span;
use crate::snapshot::Registers;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Of a chunk's header: the size of the one before, which that one may use while it is used, and its own.
const HEADER: u64 = 16;
/// Of the header, what no other chunk may use.
const SIZE_FIELD: u64 = 8;
const ALIGNMENT: u64 = 16;
const LEAST: u64 = 32;
const FLAGS: u64 = 7;
const PREVIOUS_IS_USED: u64 = 1;

/// The heap; `None` where there is no glibc, or nothing was allocated from it.
///
/// # Errors
/// `Memory`.
pub(crate) fn heap(
    view: &SnapshotMemory,
    threads: &[Registers],
    budget: &mut MemoryBudget,
) -> Result<Option<FoundHeap>, Error> {
    let arenas = arena::arenas(view);
    let mut heap = FoundHeap::default();
    let mut caches = Vec::new();
    for arena in &arenas {
        heap.own.push(arena.struct_range());
        for segment in arena.segments(view) {
            let length = segment.chunks.end - segment.chunks.start;
            // Of a thread that has ended: all is free again, and one with the top.
            if length == 0 {
                heap.own.push(segment.mapped);
                continue;
            }
            budget.take(Span::memory(length, ALIGNMENT))?;
            match walk(view, &segment) {
                Some(walked) => {
                    heap.own.push(segment.mapped);
                    heap.spans.push(walked.span);
                    caches.extend(walked.caches);
                }
                None => heap.unproven.push(format!(
                    "{} KiB of glibc's heap at {:#x}, whose chunks memprof cannot follow to their end",
                    length >> 10,
                    segment.chunks.start
                )),
            }
        }
    }
    mapped::add(view, &mut heap);
    if heap.spans.is_empty() && heap.unproven.is_empty() {
        return Ok(None);
    }
    caches::exclude_cached(view, &arenas, &caches, &mut heap);
    caches::exclude_detached(view, threads, &mut heap);
    Ok(Some(heap))
}

/// Chunks without a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    /// From the first chunk's header up to the top chunk's, or to what the allocator closes a heap with.
    chunks: Range<u64>,
    /// All of its memory.
    mapped: Range<u64>,
}

struct SegmentWalk {
    span: Span,
    /// Chunks that have the size of a thread's cache.
    caches: Vec<u64>,
}

/// Follows the chunks of a segment. `None` where they do not lead to its end.
fn walk(view: &SnapshotMemory, segment: &Segment) -> Option<SegmentWalk> {
    let Range { start, end } = segment.chunks;
    let mut memory = CachedReader::new(view);
    let mut walked = SegmentWalk {
        span: Span::new(
            start + HEADER..end + HEADER - SIZE_FIELD,
            ALIGNMENT,
            SIZE_FIELD,
        ),
        caches: Vec::new(),
    };
    let mut chunk = start;
    let mut size = memory.word(chunk + 8)?;
    while chunk < end {
        let length = size & !FLAGS;
        // The two that close a heap which is full.
        if length < LEAST && end - chunk <= 2 * LEAST {
            walked.span.add_object(chunk + HEADER, false);
            return Some(walked);
        }
        // The top was taken from, and the header of what was taken is not written yet.
        let is_being_cut = length > end - chunk && length <= segment.mapped.end - chunk;
        if !is_being_cut
            && (length < LEAST || !length.is_multiple_of(ALIGNMENT) || length > end - chunk)
        {
            return None;
        }
        let next = if is_being_cut { end } else { chunk + length };
        let next_size = memory.word(next + 8)?;
        let is_used = next_size & PREVIOUS_IS_USED != 0;
        walked.span.add_object(chunk + HEADER, is_used);
        if is_used && caches::SIZES.contains(&length) {
            walked.caches.push(chunk + HEADER);
        }
        (chunk, size) = (next, next_size);
    }
    Some(walked)
}

/// A pointer of a list, which glibc 2.32 and newer mix with the address where it stands.
fn reveal_pointer(value: u64, place: u64) -> u64 {
    let unmixed = value ^ (place >> 12);
    match unmixed % ALIGNMENT {
        0 => unmixed,
        _ => value,
    }
}
