//! Memory of the main arena: that of brk(2), which the program and other libraries may extend, too; and where brk(2)
//! fails, mappings anywhere. Nothing lists the parts: each is found by its chunks, which reach exactly to its end.

use std::collections::HashSet;
use std::ops::Range;

use super::arena::Arena;
use super::chunks::{ALIGNMENT, MIN_CHUNK, PREVIOUS_IN_USE_FLAG, SIZE_FLAGS, Segment, Step};
use super::private_runs::{PrivateRun, private_runs};
use crate::error::Error;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Most chunks that are remembered as leading to no end.
const MAX_REJECTED: usize = 1 << 20;

/// Walk of a segment; `None` if its chunks cannot be followed.
pub(super) type WalkSegment<'a> = &'a mut dyn FnMut(Segment) -> Result<Option<SegmentEnd>, Error>;

/// End of a walked segment's memory.
pub(super) type SegmentEnd = u64;

/// Bytes of the main arena that are in no walked segment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnwalkedBytes {
    /// Got from the kernel, and found nowhere.
    pub(super) missing: u64,
    /// In mappings that look like the arena's, but are more than it has got.
    pub(super) surplus: u64,
}

/// Finds the segments of the main arena, and walks them. `brk` is the memory of brk(2), `None` if the arena has none of
/// it. `first_chunk` is the arena's first chunk in `brk`; if it is `None`, that chunk is searched. `others` are the
/// ranges of the other arenas. Fails as `walk` does.
///
/// Returns the bytes that the arena has got from the kernel but that were not walked. If more mapped memory looks like
/// segments than the arena has got, none of it is walked, and the result has it as a surplus. Walks nothing, and
/// returns zeros, if the arena has no memory or its top chunk cannot be read.
pub(super) fn walk_segments(
    view: &SnapshotMemory,
    arena: &Arena,
    brk: Option<Range<u64>>,
    first_chunk: Option<u64>,
    others: &[Range<u64>],
    walk: WalkSegment<'_>,
) -> Result<UnwalkedBytes, Error> {
    let mut unwalked = UnwalkedBytes::default();
    let Some(Some(top)) = arena.top_chunk(view) else {
        return Ok(unwalked);
    };
    let mut search = SegmentSearch {
        memory: CachedReader::new(view),
        top,
        rejected: HashSet::new(),
    };
    let mut bytes = 0;
    if let Some(brk) = brk {
        let first = first_chunk.filter(|first| brk.contains(first));
        let range = first.unwrap_or(brk.start)..brk.end;
        bytes += search.walk_brk_memory(range, first, walk)?;
    }
    let system_bytes = arena.system_bytes(view);
    if !arena.is_contiguous(view) {
        let mut found = Vec::new();
        for run in private_runs(view) {
            search.add_segments(&run, others, &mut found);
        }
        let mapped = found
            .iter()
            .map(|segment| segment.end - segment.start)
            .sum();
        if mapped > system_bytes {
            unwalked.surplus = mapped;
            return Ok(unwalked);
        }
        for segment in found {
            walk(segment)?;
        }
        bytes += mapped;
    }
    unwalked.missing = system_bytes.saturating_sub(bytes);
    Ok(unwalked)
}

/// Memory of brk(2), whose parts may be mappings with different protections. `None` if it is not mapped.
pub(super) fn brk_range(view: &SnapshotMemory) -> Option<Range<u64>> {
    let mut parts = view.regions.iter().filter(|region| region.name == "[heap]");
    let first = parts.next()?;
    Some(first.range.start..parts.next_back().unwrap_or(first).range.end)
}

/// Search for segments by their first chunks.
struct SegmentSearch<'a> {
    memory: CachedReader<'a>,
    /// Top chunk of the arena.
    top: u64,
    /// Chunks from which no end is reached.
    rejected: HashSet<u64>,
}

impl SegmentSearch<'_> {
    /// Finds and walks the segments in the memory of brk(2). The first one begins at `first`; if that is `None`, its
    /// start is searched, too. Returns the bytes from the start of the first to the end of the last one. If a segment
    /// cannot be followed, returns the length of `range`. Fails as `walk` does.
    fn walk_brk_memory(
        &mut self,
        range: Range<u64>,
        first: Option<u64>,
        walk: WalkSegment<'_>,
    ) -> Result<u64, Error> {
        let mut known = first.map(|start| Segment {
            start,
            top: self.top,
            end: range.end,
        });
        let mut found: Option<Range<u64>> = None;
        let mut start = range.start;
        while start < range.end {
            let Some(segment) = known.take().or_else(|| self.find_segment(start, range.end)) else {
                start += ALIGNMENT;
                continue;
            };
            // The walk has recorded the memory as unproven, so none of it is missing.
            let Some(end) = walk(segment)? else {
                return Ok(range.end - range.start);
            };
            found = Some(found.map_or(start, |found| found.start)..end);
            start = end.next_multiple_of(ALIGNMENT).max(start + ALIGNMENT);
        }
        Ok(found.map_or(0, |found| found.end - found.start))
    }

    /// Appends the segments in a run of private memory, each of which is a mapping of its own. Skips pages in `others`,
    /// the ranges of other arenas.
    fn add_segments(&mut self, run: &PrivateRun, others: &[Range<u64>], found: &mut Vec<Segment>) {
        let mut end = run.range.start;
        for page in run.pages_from(run.range.start) {
            let is_other = || others.iter().any(|other| other.contains(&page));
            if page < end || is_other() {
                continue;
            }
            if let Some(segment) = self.find_segment(page, run.range.end) {
                end = segment.end;
                found.push(segment);
            }
        }
    }

    /// Segment that begins at an address, and ends at `limit` or before. `None` if no first chunk can be read there, or
    /// if the chunks from there on reach no end. These chunks are remembered, so that they are not followed again.
    fn find_segment(&mut self, start: u64, limit: u64) -> Option<Segment> {
        let size = self.memory.read_word(start + 8)?;
        let is_first = size & SIZE_FLAGS == PREVIOUS_IN_USE_FLAG
            && size >= MIN_CHUNK
            && size & !SIZE_FLAGS <= limit - start;
        // No chunk precedes the first one, so its field for the previous size still has the kernel's 0.
        if !is_first || self.memory.read_word(start)? != 0 {
            return None;
        }
        let bounds = Segment {
            start,
            top: self.top,
            end: limit,
        };
        let mut visited = Vec::new();
        let end = self.find_segment_end(&bounds, size, &mut visited);
        if end.is_none() {
            // Bounds the memory: forgotten chunks are only followed again.
            if self.rejected.len() + visited.len() > MAX_REJECTED {
                self.rejected.clear();
            }
            self.rejected.extend(visited);
        }
        Some(Segment {
            end: end?,
            ..bounds
        })
    }

    /// End of the memory whose first chunk, at the start of `bounds`, has this size field. `None` if a chunk on the way
    /// was rejected before, is inconsistent or cannot be read. Appends chunks on the way to `visited`.
    fn find_segment_end(
        &mut self,
        bounds: &Segment,
        mut size: u64,
        visited: &mut Vec<u64>,
    ) -> Option<u64> {
        let mut chunk = bounds.start;
        while chunk != self.top {
            if self.rejected.contains(&chunk) {
                return None;
            }
            if visited.len() < MAX_REJECTED {
                visited.push(chunk);
            }
            match bounds.next_step(&mut self.memory, chunk, size)? {
                Step::Chunk(next) => chunk = next,
                Step::Closed(end) => return Some(end),
            }
            size = self.memory.read_word(chunk.checked_add(8)?)?;
        }
        Some(bounds.end.min(chunk.saturating_add(size & !SIZE_FLAGS)))
    }
}
