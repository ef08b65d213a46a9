//! Memory for the library's own allocations where the program's allocator has none: Rust ends the process when an
//! allocation fails, and the process is the program's.
#![expect(unsafe_code, reason = "GlobalAlloc, and a region shared by threads")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Several times what a message takes; pages that are never used take no memory.
const BYTES: usize = 512 << 10;

/// The largest block that is waited for.
const MAX_AWAITED: usize = BYTES / 4;

/// The unit of its blocks.
const GRANULE_BYTES: usize = 64;
/// The bytes of 64 granules, which one word of the map tells of. A larger block, or one of a larger alignment than a
/// granule's, takes whole words.
const WORD_BYTES: usize = 64 * GRANULE_BYTES;
const WORDS: usize = BYTES / WORD_BYTES;

/// Interval at which a thread of memprof's that needs memory asks for it again.
pub(crate) const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Allocates from the program's allocator, and from a reserve of 512 KiB where that fails.
///
/// The reserve is enough to finish what was begun; [`require_memory`](crate::require_memory) refuses to begin anything
/// while half of it is used. Where it does not suffice either, a thread of memprof's waits for small blocks until the
/// program has freed enough. A thread of the program's may not be held, and who wants a large block asks by
/// `try_reserve`: there, null is returned.
#[derive(Debug)]
pub struct ReservedAllocator;

static RESERVE: Reserve = Reserve::new();

// SAFETY: System and the reserve allocate as GlobalAlloc demands, and each gets back its own blocks only.
unsafe impl GlobalAlloc for ReservedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the same.
        let block = unsafe { System.alloc(layout) };
        match block.is_null() {
            // SAFETY: as above.
            true => unsafe { allocate_otherwise(layout) },
            false => block,
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            return block;
        }
        // SAFETY: as above.
        let block = unsafe { allocate_otherwise(layout) };
        if !block.is_null() {
            // SAFETY: a new block of that size; the reserve may have been used before.
            unsafe { ptr::write_bytes(block, 0, layout.size()) };
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !RESERVE.contains(block) {
            // SAFETY: the caller's promises are the same; a block of System's.
            let moved = unsafe { System.realloc(block, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: GlobalAlloc: the caller promises that the size, rounded up, fits isize.
        let new_layout = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as in `alloc`.
        let moved = unsafe { self.alloc(new_layout) };
        if !moved.is_null() {
            // SAFETY: both blocks have that many bytes, and do not overlap.
            unsafe { ptr::copy_nonoverlapping(block, moved, layout.size().min(size)) };
            // SAFETY: the caller's block, which the new one replaces.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match RESERVE.contains(block) {
            true => RESERVE.free(block, layout),
            // SAFETY: the caller's promises are the same; a block of System's.
            false => unsafe { System.dealloc(block, layout) },
        }
    }
}

/// Allocates what the program's allocator refused.
///
/// # Safety
/// As [`GlobalAlloc::alloc`].
#[cold]
#[inline(never)]
unsafe fn allocate_otherwise(layout: Layout) -> *mut u8 {
    loop {
        let block = RESERVE.allocate(layout);
        if !block.is_null() || layout.size() > MAX_AWAITED || !is_own_thread() {
            return block;
        }
        thread::sleep(MEMORY_POLL_INTERVAL);
        // SAFETY: promised by the caller.
        let block = unsafe { System.alloc(layout) };
        if !block.is_null() {
            return block;
        }
    }
}

/// Whether the calling thread is memprof's: they all have a name that begins so. Thread-local variables may not be
/// there yet.
fn is_own_thread() -> bool {
    let mut name = [0_u8; 16];
    // SAFETY: PR_GET_NAME(2const): room for 16 bytes.
    let is_known = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) } == 0;
    is_known && name.starts_with(b"memprof")
}

/// Whether so much of the reserve is used that nothing should be begun.
pub(crate) fn is_scarce() -> bool {
    RESERVE.used_granules() > WORDS * 32
}

/// A region whose blocks are allocated without a lock.
#[repr(align(4096))]
struct Reserve {
    bytes: UnsafeCell<[u8; BYTES]>,
    /// A bit for each granule, set while it is used.
    map: [AtomicU64; WORDS],
}

// SAFETY: threads get disjoint parts of the bytes, as `map` says.
unsafe impl Sync for Reserve {}

/// The part of the map that a block takes.
enum Extent {
    /// Neighbouring bits of one word.
    Granules(u32),
    Words(usize),
}

impl Extent {
    fn new(layout: Layout) -> Self {
        match layout.size() <= WORD_BYTES && layout.align() <= GRANULE_BYTES {
            true => Self::Granules(layout.size().div_ceil(GRANULE_BYTES).max(1) as u32),
            false => Self::Words(layout.size().div_ceil(WORD_BYTES)),
        }
    }
}

/// The lowest bits.
fn mask(count: u32) -> u64 {
    u64::MAX >> (64 - count)
}

impl Reserve {
    const fn new() -> Self {
        Self {
            bytes: UnsafeCell::new([0; BYTES]),
            map: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    fn start(&self) -> *mut u8 {
        self.bytes.get().cast()
    }

    fn contains(&self, block: *mut u8) -> bool {
        (self.start().addr()..self.start().addr() + BYTES).contains(&block.addr())
    }

    fn used_granules(&self) -> usize {
        let used = |word: &AtomicU64| word.load(Ordering::Relaxed).count_ones() as usize;
        self.map.iter().map(used).sum()
    }

    /// Null if there is no room.
    fn allocate(&self, layout: Layout) -> *mut u8 {
        let offset = match Extent::new(layout) {
            _ if layout.align() > WORD_BYTES => None,
            Extent::Granules(count) => self.allocate_granules(count),
            Extent::Words(count) => self.allocate_words(count),
        };
        offset.map_or(ptr::null_mut(), |offset| self.start().wrapping_add(offset))
    }

    fn allocate_granules(&self, count: u32) -> Option<usize> {
        self.map.iter().enumerate().find_map(|(index, word)| {
            let mut shift = 0;
            let take = |used: u64| {
                shift = (0..=64 - count).find(|shift| used >> shift & mask(count) == 0)?;
                Some(used | mask(count) << shift)
            };
            word.fetch_update(Ordering::Acquire, Ordering::Relaxed, take)
                .ok()?;
            Some(index * WORD_BYTES + shift as usize * GRANULE_BYTES)
        })
    }

    fn allocate_words(&self, count: usize) -> Option<usize> {
        let take = |word: &AtomicU64| {
            word.compare_exchange(0, u64::MAX, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        };
        let mut first = 0_usize;
        while let Some(words) = self.map.get(first..first.checked_add(count)?) {
            let Some(refused) = words.iter().position(|word| !take(word)) else {
                return Some(first * WORD_BYTES);
            };
            free_words(&words[..refused]);
            first += refused + 1;
        }
        None
    }

    /// `block` was allocated with that layout.
    fn free(&self, block: *mut u8, layout: Layout) {
        let offset = block.addr() - self.start().addr();
        let index = offset / WORD_BYTES;
        match Extent::new(layout) {
            Extent::Granules(count) => {
                let shift = offset % WORD_BYTES / GRANULE_BYTES;
                self.map[index].fetch_and(!(mask(count) << shift), Ordering::Release);
            }
            Extent::Words(count) => free_words(&self.map[index..index + count]),
        }
    }
}

fn free_words(words: &[AtomicU64]) {
    for word in words {
        word.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn blocks_are_aligned_and_apart_and_come_back_in_any_order() {
        static RESERVE: Reserve = Reserve::new();
        let sizes = [1, 64, 65, 700, 4096, 4097, 20_000];
        for round in 0..4 {
            let mut blocks = Vec::new();
            for (size, align) in sizes
                .iter()
                .flat_map(|size| [(*size, 1), (*size, 64), (*size, 512)])
            {
                let layout = layout(size, align);
                let block = RESERVE.allocate(layout);
                assert!(RESERVE.contains(block) && block.addr().is_multiple_of(align));
                blocks.push((block.addr()..block.addr() + size, block, layout));
            }
            let mut ranges: Vec<_> = blocks.iter().map(|(range, ..)| range.clone()).collect();
            ranges.sort_by_key(|range| range.start);
            assert!(ranges.is_sorted_by(|one, next| one.end <= next.start));
            let count = blocks.len();
            blocks.rotate_left(round * count / 4);
            for (_, block, layout) in blocks {
                RESERVE.free(block, layout);
            }
            assert_eq!(RESERVE.used_granules(), 0);
        }
    }

    #[test]
    fn full_reserve_refuses_and_serves_again() {
        static RESERVE: Reserve = Reserve::new();
        let page = layout(4096, 8);
        let blocks: Vec<_> = (0..WORDS).map(|_| RESERVE.allocate(page)).collect();
        assert!(blocks.iter().all(|block| RESERVE.contains(*block)));
        for size in [1, 4096, 10_000, BYTES + 1, usize::MAX >> 1] {
            assert!(RESERVE.allocate(layout(size, 1)).is_null(), "{size}");
        }
        assert!(RESERVE.allocate(layout(1, 1 << 20)).is_null());
        RESERVE.free(blocks[5], page);
        RESERVE.free(blocks[6], page);
        assert_eq!(RESERVE.allocate(layout(5000, 8)), blocks[5]);
        assert!(!RESERVE.contains((&raw const blocks).cast_mut().cast()));
    }

    #[test]
    fn blocks_of_both_kinds_are_resized_and_freed() {
        let (old, size) = (layout(100, 8), 1000);
        let resized = |block: *mut u8| {
            // SAFETY: a block of that layout.
            unsafe { ptr::write_bytes(block, 7, old.size()) };
            // SAFETY: as above.
            let block = unsafe { ReservedAllocator.realloc(block, old, size) };
            // SAFETY: a block of 1,000 bytes.
            assert_eq!(unsafe { *block.wrapping_add(99) }, 7);
            // SAFETY: as above.
            unsafe { ReservedAllocator.dealloc(block, layout(size, 8)) };
        };
        resized(RESERVE.allocate(old));
        // SAFETY: a layout that is not empty.
        resized(unsafe { ReservedAllocator.alloc(old) });
        assert_eq!(RESERVE.used_granules(), 0);
        assert!(!is_scarce());
    }
}
