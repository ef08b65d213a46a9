//! Arenas (`struct malloc_state`) and the segments with their chunks.

use std::ops::Range;

use super::Segment;
use super::mapped::find_parameters;
use crate::regions::Region;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Offsets in `struct malloc_state`, in bytes.
const FAST_BINS_OFFSET: u64 = 0x10;
const TOP_OFFSET: u64 = 0x60;
const NEXT_OFFSET: u64 = 0x870;
/// Bytes of `struct malloc_state`.
const ARENA_SIZE: u64 = 0x898;
const FAST_BIN_COUNT: u64 = 10;
const BIN_COUNT: u64 = 127;
/// Most bins that may be inconsistent, because a thread was changing them.
const MAX_INCONSISTENT_BINS: u64 = 7;
/// Least number of empty bins, whose heads point to themselves.
const MIN_EMPTY_BINS: u64 = 8;
/// Most arenas. glibc creates eight per processor.
const MAX_ARENAS: usize = 1 << 14;
/// Most bytes of one file's variables that are searched.
const MAX_DATA_BYTES: u64 = 256 << 20;

/// `HEAP_MAX_SIZE`: all heaps but the main arena's begin at multiples of it.
const MAX_HEAP_SIZE: u64 = 64 << 20;
/// Offsets in `struct heap_info` of its arena, the previous heap and its size.
const HEAP_ARENA_OFFSET: u64 = 0;
const HEAP_PREVIOUS_OFFSET: u64 = 8;
const HEAP_SIZE_OFFSET: u64 = 16;

/// An arena of glibc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arena {
    address: u64,
    /// Whether it is the main arena, which gets its memory from brk(2).
    is_main: bool,
}

/// Finds all arenas of a process, the main one first. Empty if there is none. Searches the variables of libc.so.6
/// first, then those of all files, for a statically linked glibc.
pub(super) fn find_arenas(view: &SnapshotMemory) -> Vec<Arena> {
    let is_libc =
        |region: &&Region| region.name.contains("/libc.so.6") || region.name.contains("/libc-2.");
    let data = || {
        let regions = view.regions.iter();
        regions.filter(|region| region.is_file && region.is_writable && !region.pages.is_empty())
    };
    let others = data().filter(|region| !is_libc(region));
    let mut in_order = data().filter(is_libc).chain(others);
    let found = in_order.find_map(|region| find_in_data(view, region));
    found.unwrap_or_default()
}

/// Finds the arenas of a process by the main one among the variables of a file (`region`). `None` if it is not
/// there.
fn find_in_data(view: &SnapshotMemory, region: &Region) -> Option<Vec<Arena>> {
    let mut memory = CachedReader::new(view);
    // Variables without an initial value follow in an anonymous mapping.
    let after = view.region(region.range.end);
    let after = after.filter(|after| !after.is_file && after.name.is_empty());
    let end = after.map_or(region.range.end, |after| after.range.end);
    let end = end.min(region.range.start + MAX_DATA_BYTES);
    let mut addresses = (region.range.start..end.saturating_sub(ARENA_SIZE)).step_by(16);
    addresses.find_map(|address| match is_arena(&mut memory, view, address) {
        true => follow_ring(view, address),
        false => None,
    })
}

/// Follows the ring of arenas from the main one. `None` if it does not close: the address is then not an
/// arena's, but some bins beside one.
fn follow_ring(view: &SnapshotMemory, main: u64) -> Option<Vec<Arena>> {
    let mut memory = CachedReader::new(view);
    let mut all = vec![Arena {
        address: main,
        is_main: true,
    }];
    let mut next = view.word(main + NEXT_OFFSET)?;
    while next != main {
        if all.len() == MAX_ARENAS || !is_arena(&mut memory, view, next) {
            return None;
        }
        all.push(Arena {
            address: next,
            is_main: false,
        });
        next = view.word(next + NEXT_OFFSET)?;
    }
    Some(all)
}

/// Whether an arena is at an address: its bins must be empty or doubly linked lists, but for a few that a thread
/// may be changing.
fn is_arena(memory: &mut CachedReader<'_>, view: &SnapshotMemory, address: u64) -> bool {
    let (mut inconsistent, mut empty) = (0, 0);
    for bin in 0..BIN_COUNT {
        // A bin is addressed like a chunk, whose pointers follow a header.
        let Some(head) = address.checked_add(TOP_OFFSET + 16 * bin) else {
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
        inconsistent += u64::from(!is_empty && !points_back());
        if inconsistent > MAX_INCONSISTENT_BINS {
            return false;
        }
    }
    empty >= MIN_EMPTY_BINS
}

impl Arena {
    /// Whether it is the main arena, the only one whose top chunk `malloc_trim(3)` releases.
    pub(super) fn is_main(&self) -> bool {
        self.is_main
    }

    /// Addresses of the structure.
    pub(super) fn struct_range(&self) -> Range<u64> {
        self.address..self.address + ARENA_SIZE
    }

    /// First chunk of each fast bin, a list of small free chunks whose headers say that they are used.
    pub(super) fn fast_bins(&self, view: &SnapshotMemory) -> impl Iterator<Item = u64> {
        let bins = self.address + FAST_BINS_OFFSET;
        let first = (0..FAST_BIN_COUNT).filter_map(move |bin| view.word(bins + 8 * bin));
        first.filter(|chunk| *chunk != 0)
    }

    /// Segments with the arena's chunks: the memory of brk(2), or each of its heaps.
    pub(super) fn segments(&self, view: &SnapshotMemory) -> Vec<Segment> {
        let Some(top) = view.word(self.address + TOP_OFFSET) else {
            return Vec::new();
        };
        match self.is_main {
            true => main_segment(view, top).into_iter().collect(),
            false => self.heap_segments(view, top),
        }
    }

    /// Segments of an arena other than the main one: its heaps, from the last to the first. Stops at a heap that
    /// cannot be read.
    fn heap_segments(&self, view: &SnapshotMemory, top: u64) -> Vec<Segment> {
        let own_heap = self.address & !(MAX_HEAP_SIZE - 1);
        let info = self.address - own_heap;
        let last_heap = top & !(MAX_HEAP_SIZE - 1);
        let mut segments = Vec::new();
        let mut heap = last_heap;
        while view.word(heap.wrapping_add(HEAP_ARENA_OFFSET)) == Some(self.address)
            && segments.len() < MAX_ARENAS
        {
            let previous = view.word(heap + HEAP_PREVIOUS_OFFSET);
            let Some((previous, size)) = previous.zip(view.word(heap + HEAP_SIZE_OFFSET)) else {
                break;
            };
            let end = heap + size.min(MAX_HEAP_SIZE);
            let first = match heap == own_heap {
                true => (self.address + ARENA_SIZE).next_multiple_of(16),
                false => heap + info,
            };
            let last = if heap == last_heap { top } else { end };
            if first <= last && last <= end {
                segments.push(Segment {
                    chunks: first..last,
                    mapped: heap..end,
                });
            }
            heap = previous;
        }
        segments
    }
}

/// Segment in the memory of brk(2), up to the top chunk. `None` if the top chunk is not there.
fn main_segment(view: &SnapshotMemory, top: u64) -> Option<Segment> {
    let region = view.region(top).filter(|region| region.name == "[heap]")?;
    let mut range = region.range.clone();
    // Its parts may be mappings with different protections.
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
    let parameters = find_parameters(view, &range);
    let first = parameters.map_or(range.start, |found| found.first_break);
    (first <= top).then_some(Segment {
        chunks: first..top,
        mapped: first..range.end,
    })
}
