//! Arenas (`struct malloc_state`), and the heaps of those that get their memory from mmap(2).

use std::ops::Range;

use super::chunks::Segment;
use super::layout::{LAYOUTS, Layout};
use crate::regions::Region;
use crate::resident_pages::PAGE_SIZE;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Offset of the flags in an arena, and the flag that its memory is not contiguous (`NONCONTIGUOUS_BIT`).
const FLAGS_OFFSET: u64 = 4;
const NONCONTIGUOUS_FLAG: u64 = 2;
/// Offset of the bins from the head of the first bin, which is addressed like a chunk.
const BINS_OFFSET: u64 = 16;
const BIN_COUNT: u64 = 127;
/// Offsets from the head of the first bin: of the next arena, of the bytes from the kernel, and of the arena's end.
const NEXT_OFFSET: u64 = 0x810;
const SYSTEM_BYTES_OFFSET: u64 = 0x828;
const END_OFFSET: u64 = 0x838;
const FAST_BIN_COUNT: u64 = 10;
/// Most bins that may be inconsistent, because a thread was changing them.
const MAX_INCONSISTENT_BINS: u64 = 7;
/// Most arenas. glibc creates eight per processor.
const MAX_ARENAS: usize = 1 << 14;
/// Most bytes of one file's variables that are searched.
const MAX_DATA_BYTES: u64 = 256 << 20;

/// Sizes of `struct heap_info`, which an arena follows: in glibc 2.35 and newer, and before.
const HEAP_INFO_SIZES: [u64; 2] = [0x30, 0x20];
/// Offsets in `struct heap_info` of its arena, the previous heap and its size.
const HEAP_ARENA_OFFSET: u64 = 0;
const HEAP_PREVIOUS_OFFSET: u64 = 8;
const HEAP_SIZE_OFFSET: u64 = 16;
/// Sizes of heaps (`heap_max_size`), by which they are aligned: 64 MiB, or four huge pages (`glibc.malloc.hugetlb`).
const HEAP_SIZES: [u64; 3] = [64 << 20, 8 << 20, MAX_HEAP_SIZE];
const MAX_HEAP_SIZE: u64 = 4 << 30;

/// An arena of glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arena {
    address: u64,
    /// Whether it is the main arena, which gets its memory from brk(2), and from mmap(2) if that fails.
    pub(super) is_main: bool,
    pub(super) layout: &'static Layout,
}

/// Heaps of an arena.
#[derive(Debug, Default)]
pub(super) struct ArenaHeaps {
    /// Each heap's chunks.
    pub(super) segments: Vec<Segment>,
    /// Each heap's memory, with its `struct heap_info`.
    pub(super) mapped: Vec<Range<u64>>,
}

/// Finds the arenas of a copy of glibc. Searches for the main arena among the variables of a file, in the mapping
/// `region` and the anonymous one behind it, and follows its links to the others. The main arena comes first. `None` if
/// no main arena is in the first [`MAX_DATA_BYTES`].
pub(super) fn find_arenas_in(view: &SnapshotMemory, region: &Region) -> Option<Vec<Arena>> {
    let mut memory = CachedReader::new(view);
    // Variables without an initial value follow in an anonymous mapping.
    let after = view.region(region.range.end);
    let after = after.filter(|after| !after.is_file && after.name.is_empty());
    let end = after.map_or(region.range.end, |after| after.range.end);
    let end = end.min(region.range.start + MAX_DATA_BYTES);
    let mut heads = (region.range.start..end).step_by(8);
    heads.find_map(|head| match are_bins_at(&mut memory, view, head) {
        true => LAYOUTS.iter().find_map(|layout| {
            let address = head.checked_sub(layout.top_offset)?;
            follow_arena_ring(view, address, layout)
        }),
        false => None,
    })
}

/// Returns the arenas in the ring of links that begins with `main`, the address of the main arena. `None` if the ring
/// does not close within [`MAX_ARENAS`], a link cannot be read, or one of the others has no bins: then no main arena of
/// this layout is at `main`.
fn follow_arena_ring(
    view: &SnapshotMemory,
    main: u64,
    layout: &'static Layout,
) -> Option<Vec<Arena>> {
    let mut memory = CachedReader::new(view);
    let arena = |address: u64| Arena {
        address,
        is_main: address == main,
        layout,
    };
    let mut all = vec![arena(main)];
    let mut next = arena(main).next_arena(view)?;
    while next != main {
        let head = next.checked_add(layout.top_offset)?;
        if all.len() == MAX_ARENAS || !are_bins_at(&mut memory, view, head) {
            return None;
        }
        all.push(arena(next));
        next = arena(next).next_arena(view)?;
    }
    Some(all)
}

/// Whether the bins of an arena begin with the head at `first`. All bins must be empty or doubly linked lists, except
/// for at most [`MAX_INCONSISTENT_BINS`], which a thread may be changing. False if a head cannot be read.
fn are_bins_at(memory: &mut CachedReader<'_>, view: &SnapshotMemory, first: u64) -> bool {
    let mut inconsistent = 0;
    for bin in 0..BIN_COUNT {
        let Some(head) = first.checked_add(16 * bin) else {
            return false;
        };
        // A bin's head is addressed like a chunk: its list pointers have the offsets 16 and 24.
        let mut word = |offset: u64| memory.read_word(head.checked_add(offset)?);
        let Some((forward, back)) = word(BINS_OFFSET).zip(word(BINS_OFFSET + 8)) else {
            return false;
        };
        let is_empty = forward == head && back == head;
        let points_back = || {
            let is_chunk = |chunk: u64| chunk != head && chunk != 0 && chunk.is_multiple_of(16);
            is_chunk(forward)
                && is_chunk(back)
                && view.read_word(forward.wrapping_add(24)) == Some(head)
                && view.read_word(back.wrapping_add(16)) == Some(head)
        };
        inconsistent += u64::from(!is_empty && !points_back());
        if inconsistent > MAX_INCONSISTENT_BINS {
            return false;
        }
    }
    true
}

impl Arena {
    /// Address of the field `top`. The first bin's head, which is addressed like a chunk, has the same address.
    fn first_bin(&self) -> u64 {
        self.address + self.layout.top_offset
    }

    /// Address of the next arena in the ring. `None` if it cannot be read.
    fn next_arena(&self, view: &SnapshotMemory) -> Option<u64> {
        view.read_word(self.first_bin().checked_add(NEXT_OFFSET)?)
    }

    /// Addresses of the arena's `struct malloc_state`.
    pub(super) fn struct_range(&self) -> Range<u64> {
        self.address..self.first_bin() + END_OFFSET
    }

    /// Address of the first chunk of each fast bin that is not empty and can be read. A fast bin is a list of small
    /// free chunks whose headers say that they are used; glibc 2.43 and newer has none.
    pub(super) fn fast_bin_heads(&self, view: &SnapshotMemory) -> impl Iterator<Item = u64> {
        let bins = self.layout.fast_bins_offset.into_iter();
        let bins = bins.flat_map(|offset| (0..FAST_BIN_COUNT).map(move |bin| offset + 8 * bin));
        let first = bins.filter_map(|offset| view.read_word(self.address + offset));
        first.filter(|chunk| *chunk != 0)
    }

    /// Address of the top chunk's header. Outer `None` if the field `top` cannot be read; inner `None` if the arena has
    /// no memory yet.
    pub(super) fn top_chunk(&self, view: &SnapshotMemory) -> Option<Option<u64>> {
        // A new arena's first bin serves as its top chunk.
        let top = view.read_word(self.first_bin())?;
        Some((top != self.first_bin()).then_some(top))
    }

    /// Bytes that the arena has got from the kernel; 0 if their number cannot be read. The main arena counts also
    /// memory between its parts that the program itself got by sbrk(2), as long as the arena is contiguous.
    pub(super) fn system_bytes(&self, view: &SnapshotMemory) -> u64 {
        let bytes = view.read_word(self.first_bin() + SYSTEM_BYTES_OFFSET);
        bytes.unwrap_or_default()
    }

    /// Whether all memory of the arena is that of brk(2). Also true if its flags cannot be read.
    pub(super) fn is_contiguous(&self, view: &SnapshotMemory) -> bool {
        let flags = view.read_word(self.address).unwrap_or_default() >> (8 * FLAGS_OFFSET);
        flags & NONCONTIGUOUS_FLAG == 0
    }

    /// Heaps of an arena other than the main one, from the last to the first. Stops at a heap that cannot be read, is
    /// not the arena's, or has an invalid size. Empty if the arena's first or last heap is not found.
    pub(super) fn heaps(&self, view: &SnapshotMemory) -> ArenaHeaps {
        let mut heaps = ArenaHeaps::default();
        let is_own = |heap: u64| view.read_word(heap + HEAP_ARENA_OFFSET) == Some(self.address);
        let size_of = |heap: u64| view.read_word(heap + HEAP_SIZE_OFFSET);
        let own_heap = HEAP_INFO_SIZES
            .into_iter()
            .find(|size| self.address > *size && is_own(self.address - size));
        let top = self.top_chunk(view).flatten();
        let Some((info_size, top)) = own_heap.zip(top) else {
            return heaps;
        };
        // The top chunk is in the last heap.
        let last_heap = HEAP_SIZES
            .into_iter()
            .map(|max_size| top & !(max_size - 1))
            .find(|heap| is_own(*heap) && size_of(*heap).is_some_and(|size| top - heap < size));
        let mut next = last_heap;
        while let Some(heap) = next.filter(|heap| is_own(*heap)) {
            let is_size = |size: &u64| size.is_multiple_of(PAGE_SIZE) && *size <= MAX_HEAP_SIZE;
            let Some(size) = size_of(heap).filter(is_size) else {
                break;
            };
            // Links that form a circle end here.
            if heaps.mapped.len() == MAX_ARENAS {
                break;
            }
            let end = heap.saturating_add(size);
            // In the first heap, the arena's own structure follows the `struct heap_info`.
            let info_end = heap + info_size;
            let start = match info_end == self.address {
                true => self.struct_range().end.next_multiple_of(16),
                false => info_end,
            };
            heaps.mapped.push(heap..end);
            heaps.segments.push(Segment { start, top, end });
            next = view.read_word(heap + HEAP_PREVIOUS_OFFSET);
        }
        heaps
    }
}
