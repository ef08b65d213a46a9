//! Heap of glibc's malloc, 2.27 and newer, on x86-64 (malloc/malloc.c, malloc/arena.c).
//!
//! An arena is recognized by the heads of its 127 bins, each of which points to itself or to a chunk that
//! points back; a heap by chunks that follow each other exactly to its top; a thread's cache by entries of
//! the right size.

mod arena;
mod caches;
mod mapped;

use std::ops::Range;

use super::{FoundHeap, UnusedMemory};
use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::objects::Span;
use crate::snapshot::Registers;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Bytes of a chunk's header: the size of the previous chunk, which belongs to that one while it is used, and
/// its own size.
const HEADER_SIZE: u64 = 16;
/// Bytes of the header that no other chunk uses.
const SIZE_FIELD: u64 = 8;
/// Alignment of chunks, in bytes.
const ALIGNMENT: u64 = 16;
/// Bytes of the smallest chunk.
const MIN_CHUNK: u64 = 32;
/// Flag bits of a size field.
const SIZE_FLAGS: u64 = 7;
/// Flag of a size field: the previous chunk is used.
const PREVIOUS_IN_USE_FLAG: u64 = 1;

/// Walks the heap. `None` if the process has no glibc, or allocated nothing with it.
///
/// # Errors
/// `Memory`: the search needs more memory than `--max-memory`.
pub(crate) fn heap(
    view: &SnapshotMemory,
    threads: &[Registers],
    budget: &mut MemoryBudget,
) -> Result<Option<FoundHeap>, Error> {
    let arenas = arena::find_arenas(view);
    let mut heap = FoundHeap::default();
    let mut caches = Vec::new();
    for arena in &arenas {
        heap.excluded.push(arena.struct_range());
        for segment in arena.segments(view) {
            let length = segment.chunks.end - segment.chunks.start;
            heap.unused.push(UnusedMemory {
                range: segment.chunks.end + HEADER_SIZE..segment.mapped.end,
                is_purgeable: arena.is_main(),
            });
            // A thread has ended and everything in its heap is free: all merged with the top chunk.
            if length == 0 {
                heap.excluded.push(segment.mapped);
                continue;
            }
            budget.reserve(Span::memory_size(length, ALIGNMENT))?;
            match walk_chunks(view, &segment) {
                Some(walked) => {
                    heap.excluded.push(segment.mapped);
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
    mapped::add_mapped_chunks(view, &mut heap);
    if heap.spans.is_empty() && heap.unproven.is_empty() {
        return Ok(None);
    }
    caches::exclude_cached(view, &arenas, &caches, &mut heap);
    caches::exclude_detached(view, threads, &mut heap);
    Ok(Some(heap))
}

/// Part of an arena whose chunks follow each other without a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    /// From the first chunk's header to the top chunk's header, or to the chunks that close a full heap.
    chunks: Range<u64>,
    /// The segment's whole memory.
    mapped: Range<u64>,
}

/// Chunks of a segment.
struct SegmentWalk {
    span: Span,
    /// Used chunks of the size of a thread's cache.
    caches: Vec<u64>,
}

/// Follows the chunks of a segment by their sizes, and collects its objects and the chunks that may be thread
/// caches. `None` if they do not end exactly at its end.
fn walk_chunks(view: &SnapshotMemory, segment: &Segment) -> Option<SegmentWalk> {
    let Range { start, end } = segment.chunks;
    let mut memory = CachedReader::new(view);
    let mut walked = SegmentWalk {
        span: Span::new(
            start + HEADER_SIZE..end + HEADER_SIZE - SIZE_FIELD,
            ALIGNMENT,
            SIZE_FIELD,
        ),
        caches: Vec::new(),
    };
    let mut chunk = start;
    let mut size = memory.word(chunk + 8)?;
    while chunk < end {
        let length = size & !SIZE_FLAGS;
        // Two minimal chunks close a full heap.
        if length < MIN_CHUNK && end - chunk <= 2 * MIN_CHUNK {
            walked.span.add_object(chunk + HEADER_SIZE, false);
            return Some(walked);
        }
        // A thread has moved the top behind this chunk, but has not written the chunk's new size yet.
        let is_being_cut = length > end - chunk && length <= segment.mapped.end - chunk;
        if !is_being_cut
            && (length < MIN_CHUNK || !length.is_multiple_of(ALIGNMENT) || length > end - chunk)
        {
            return None;
        }
        let next = if is_being_cut { end } else { chunk + length };
        let next_size = memory.word(next + 8)?;
        let is_used = next_size & PREVIOUS_IN_USE_FLAG != 0;
        walked.span.add_object(chunk + HEADER_SIZE, is_used);
        if is_used && caches::CACHE_SIZES.contains(&length) {
            walked.caches.push(chunk + HEADER_SIZE);
        }
        (chunk, size) = (next, next_size);
    }
    Some(walked)
}

/// Reveals a list pointer, which glibc 2.32 and newer xor with bits of its own `address`. Returns `value` itself if
/// the result is not aligned: an older glibc stored it plain.
fn reveal_pointer(value: u64, address: u64) -> u64 {
    let revealed = value ^ (address >> 12);
    match revealed % ALIGNMENT {
        0 => revealed,
        _ => value,
    }
}
