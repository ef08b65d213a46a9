//! Chunks, which follow each other by their sizes.

use std::ops::Range;

use super::layout::CACHE_LAYOUTS;
use crate::objects::Span;
use crate::resident_pages::PAGE_SIZE;
use crate::snapshot_memory::CachedReader;

/// Bytes of a chunk's header: the size of the previous chunk, which belongs to that one while it is used, and
/// its own size.
pub(super) const HEADER_SIZE: u64 = 16;
/// Bytes of a chunk's own size, the part of its header that no other chunk uses.
pub(super) const SIZE_FIELD: u64 = 8;
/// Alignment of chunks, in bytes.
pub(super) const ALIGNMENT: u64 = 16;
/// Bytes of the smallest chunk.
pub(super) const MIN_CHUNK: u64 = 32;
/// Flag bits of a size field.
pub(super) const SIZE_FLAGS: u64 = 7;
/// Flag of a size field: the previous chunk is used.
pub(super) const PREVIOUS_IN_USE_FLAG: u64 = 1;
/// Flag of a size field: the chunk has a mapping of its own.
pub(super) const MAPPED_FLAG: u64 = 2;

/// Memory in which chunks follow each other without a gap: up to the arena's top chunk, or up to the two small
/// chunks with which `sysmalloc` closes memory that it cannot extend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// First chunk.
    pub(super) start: u64,
    /// Header of the arena's top chunk, which may be in other memory.
    pub(super) top: u64,
    /// End of the memory, beyond which no chunk reaches.
    pub(super) end: u64,
}

/// Result of walking a segment.
#[derive(Debug)]
pub(super) struct SegmentWalk {
    pub(super) span: Span,
    /// Used chunks of the size of a thread's cache, by the addresses of their objects.
    pub(super) caches: Vec<u64>,
    /// End of the segment's memory, including the closing chunks or the top chunk.
    pub(super) end: u64,
}

/// Step from a chunk of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// To the chunk that follows.
    Chunk(u64),
    /// The chunk closes the segment, whose memory ends at this address.
    Closed(u64),
}

impl Segment {
    /// Addresses from the first chunk to the end of the memory, or only to the top chunk if that lies in between.
    pub(super) fn chunks(&self) -> Range<u64> {
        match (self.start..self.end).contains(&self.top) {
            true => self.start..self.top,
            false => self.start..self.end,
        }
    }

    /// Step from `chunk`, whose size field is `size`: to the next chunk, or to the end of the memory if the chunk
    /// closes it. `None` if no chunk of this size can lie here.
    pub(super) fn next_step(
        &self,
        memory: &mut CachedReader<'_>,
        chunk: u64,
        size: u64,
    ) -> Option<Step> {
        let length = size & !SIZE_FLAGS;
        if length < MIN_CHUNK {
            return end_after_closing_chunk(memory, chunk, length).map(Step::Closed);
        }
        let is_chunk = size & MAPPED_FLAG == 0 && length.is_multiple_of(ALIGNMENT);
        if !is_chunk || length > self.end - chunk {
            return None;
        }
        let next = chunk + length;
        // If the top is inside this chunk, a thread has moved it there but not yet written the chunk's new size.
        match (chunk..next).contains(&self.top) {
            true => Some(Step::Chunk(self.top)),
            false => Some(Step::Chunk(next)),
        }
    }

    /// Follows the chunks, and collects the objects and the chunks that may be thread caches. `None` if the chunks
    /// reach neither the top chunk nor chunks that close the segment, or if a size cannot be read.
    pub(super) fn walk(&self, memory: &mut CachedReader<'_>) -> Option<SegmentWalk> {
        let Range { start, end } = self.chunks();
        // An object begins behind its chunk's header, and ends with the first word of the next chunk.
        let range = start + HEADER_SIZE..end + HEADER_SIZE - SIZE_FIELD;
        let mut span = Span::new(range, ALIGNMENT, SIZE_FIELD);
        let mut caches = Vec::new();
        let mut chunk = self.start;
        let mut size = memory.read_word(chunk + 8)?;
        while chunk != self.top {
            let next = match self.next_step(memory, chunk, size)? {
                Step::Chunk(next) => next,
                Step::Closed(end) => {
                    span.truncate(chunk + HEADER_SIZE - SIZE_FIELD);
                    return Some(SegmentWalk { span, caches, end });
                }
            };
            let next_size = memory.read_word(next.checked_add(8)?)?;
            // The flag that a chunk is used is in the size field of the next one.
            let is_used = next_size & PREVIOUS_IN_USE_FLAG != 0;
            span.add_object(chunk + HEADER_SIZE, is_used);
            let length = size & !SIZE_FLAGS;
            if is_used && CACHE_LAYOUTS.iter().any(|cache| cache.chunk_size == length) {
                caches.push(chunk + HEADER_SIZE);
            }
            (chunk, size) = (next, next_size);
        }
        let end = self.end.min(chunk + (size & !SIZE_FLAGS)).max(chunk);
        Some(SegmentWalk { span, caches, end })
    }
}

/// Returns the end of the memory that `chunk` closes; `length` is the chunk's size. Where memory ends, glibc writes a
/// chunk of 0 bytes, or one of 16 bytes with a second one of 0 or 16 bytes after it. `None` if the chunk is neither, or
/// if the end is not that of a page.
fn end_after_closing_chunk(memory: &mut CachedReader<'_>, chunk: u64, length: u64) -> Option<u64> {
    let end = match length {
        0 => chunk + HEADER_SIZE,
        _ => {
            let last = memory.read_word(chunk + HEADER_SIZE + 8)? & !SIZE_FLAGS;
            let is_last = last == 0 || last == HEADER_SIZE;
            (length == HEADER_SIZE && is_last).then_some(chunk + 2 * HEADER_SIZE)?
        }
    };
    end.is_multiple_of(PAGE_SIZE).then_some(end)
}
