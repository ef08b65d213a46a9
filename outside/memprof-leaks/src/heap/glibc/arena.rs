//! `struct malloc_state`: the arenas, and where their heaps lie.

use std::ops::Range;

use super::Segment;
use super::mapped::parameters;
use crate::regions::Region;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

const FAST_BINS: u64 = 0x10;
const TOP: u64 = 0x60;
const NEXT: u64 = 0x870;
const LENGTH: u64 = 0x898;
const FAST_BIN_COUNT: u64 = 10;
const BIN_COUNT: u64 = 127;
/// So many of the bins may be in the midst of a change.
const IN_CHANGE: u64 = 7;
/// And so many must be empty: their heads point to themselves.
const EMPTY: u64 = 8;
/// glibc makes eight for each processor.
const ARENA_LIMIT: usize = 1 << 14;
/// Of a library's or a program's variables, in bytes.
const DATA_LIMIT: u64 = 256 << 20;

/// `HEAP_MAX_SIZE`, at a multiple of which each heap of another arena than the first begins.
const HEAP: u64 = 64 << 20;
/// Where `struct heap_info` has its arena, the heap before, and its size.
const HEAP_ARENA: u64 = 0;
const HEAP_BEFORE: u64 = 8;
const HEAP_SIZE: u64 = 16;

/// `malloc_state` of glibc, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arena {
    address: u64,
    /// The one whose memory is that of brk(2).
    is_main: bool,
}

/// All arenas of a process.
pub(super) fn arenas(view: &SnapshotMemory) -> Vec<Arena> {
    let is_libc =
        |region: &&Region| region.name.contains("/libc.so.6") || region.name.contains("/libc-2.");
    let data = || {
        let regions = view.regions.iter();
        regions.filter(|region| region.is_file && region.is_writable && !region.pages.is_empty())
    };
    let others = data().filter(|region| !is_libc(region));
    let mut in_order = data().filter(is_libc).chain(others);
    let found = in_order.find_map(|region| in_data(view, region));
    found.unwrap_or_default()
}

fn in_data(view: &SnapshotMemory, region: &Region) -> Option<Vec<Arena>> {
    let mut memory = CachedReader::new(view);
    // Variables without a value lie in memory of no file behind it.
    let after = view.region(region.range.end);
    let after = after.filter(|after| !after.is_file && after.name.is_empty());
    let end = after.map_or(region.range.end, |after| after.range.end);
    let end = end.min(region.range.start + DATA_LIMIT);
    let mut addresses = (region.range.start..end.saturating_sub(LENGTH)).step_by(16);
    addresses.find_map(|address| match is_arena(&mut memory, view, address) {
        true => ring(view, address),
        false => None,
    })
}

/// The arenas that lead from the first one back to it. None where they do not: then it is no arena, but lies
/// some bins beside it.
fn ring(view: &SnapshotMemory, main: u64) -> Option<Vec<Arena>> {
    let mut memory = CachedReader::new(view);
    let mut all = vec![Arena {
        address: main,
        is_main: true,
    }];
    let mut at = view.word(main + NEXT)?;
    while at != main {
        if all.len() == ARENA_LIMIT || !is_arena(&mut memory, view, at) {
            return None;
        }
        all.push(Arena {
            address: at,
            is_main: false,
        });
        at = view.word(at + NEXT)?;
    }
    Some(all)
}

fn is_arena(memory: &mut CachedReader<'_>, view: &SnapshotMemory, address: u64) -> bool {
    let (mut bad, mut empty) = (0, 0);
    for bin in 0..BIN_COUNT {
        // The bin as a chunk, whose links lie behind a header.
        let Some(head) = address.checked_add(TOP + 16 * bin) else {
            return false;
        };
        let mut word = |offset: u64| memory.word(head.checked_add(offset)?);
        let Some((forward, back)) = word(16).zip(word(24)) else {
            return false;
        };
        let is_empty = forward == head && back == head;
        let points_back = || {
            let is_chunk = |chunk: u64| chunk != head && chunk != 0 && chunk.is_multiple_of(16);
            is_chunk(forward)
                && is_chunk(back)
                && view.word(forward.wrapping_add(24)) == Some(head)
                && view.word(back.wrapping_add(16)) == Some(head)
        };
        empty += u64::from(is_empty);
        bad += u64::from(!is_empty && !points_back());
        if bad > IN_CHANGE {
            return false;
        }
    }
    empty >= EMPTY
}

impl Arena {
    /// What lies in the structure.
    pub(super) fn struct_range(&self) -> Range<u64> {
        self.address..self.address + LENGTH
    }

    /// The first chunk of each list of small chunks that are free, and look used.
    pub(super) fn fast_bins(&self, view: &SnapshotMemory) -> impl Iterator<Item = u64> {
        let place = self.address + FAST_BINS;
        let first = (0..FAST_BIN_COUNT).filter_map(move |bin| view.word(place + 8 * bin));
        first.filter(|chunk| *chunk != 0)
    }

    /// The memory that it has chunks in: brk's, or each `heap_info`.
    pub(super) fn segments(&self, view: &SnapshotMemory) -> Vec<Segment> {
        let Some(top) = view.word(self.address + TOP) else {
            return Vec::new();
        };
        match self.is_main {
            true => main_segment(view, top).into_iter().collect(),
            false => self.heaps(view, top),
        }
    }

    fn heaps(&self, view: &SnapshotMemory, top: u64) -> Vec<Segment> {
        let own_heap = self.address & !(HEAP - 1);
        let info = self.address - own_heap;
        let last_heap = top & !(HEAP - 1);
        let mut segments = Vec::new();
        let mut heap = last_heap;
        while view.word(heap.wrapping_add(HEAP_ARENA)) == Some(self.address)
            && segments.len() < ARENA_LIMIT
        {
            let before = view.word(heap + HEAP_BEFORE);
            let Some((before, size)) = before.zip(view.word(heap + HEAP_SIZE)) else {
                break;
            };
            let end = heap + size.min(HEAP);
            let first = match heap == own_heap {
                true => (self.address + LENGTH).next_multiple_of(16),
                false => heap + info,
            };
            let last = if heap == last_heap { top } else { end };
            if first <= last && last <= end {
                segments.push(Segment {
                    chunks: first..last,
                    mapped: heap..end,
                });
            }
            heap = before;
        }
        segments
    }
}

/// What brk(2) gave: up to the top, which lies there.
fn main_segment(view: &SnapshotMemory, top: u64) -> Option<Segment> {
    let region = view.region(top).filter(|region| region.name == "[heap]")?;
    let mut range = region.range.clone();
    // Parts of it may be protected otherwise.
    while let Some(before) = view.region(range.start.checked_sub(1)?)
        && before.name == "[heap]"
    {
        range.start = before.range.start;
    }
    while let Some(after) = view.region(range.end)
        && after.name == "[heap]"
    {
        range.end = after.range.end;
    }
    let parameters = parameters(view, &range);
    let first = parameters.map_or(range.start, |found| found.first_break);
    (first <= top).then_some(Segment {
        chunks: first..top,
        mapped: first..range.end,
    })
}
