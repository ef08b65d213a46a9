//! A reserve of memory for the library's allocations when the program's allocator has none. Without it, Rust would end
//! the process, which is the host's, when an allocation fails.
#![expect(unsafe_code, reason = "GlobalAlloc, and a region shared by threads")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Size of the reserve: several times the memory for a message. Unused pages occupy no memory.
const RESERVE_BYTES: usize = 512 << 10;

/// Maximum size of a block for which an allocation waits, in bytes.
const MAX_AWAITED_BYTES: usize = RESERVE_BYTES / 4;

/// Size of a granule, the unit of allocation.
const GRANULE_BYTES: usize = 64;
/// Size of the 64 granules that one word of the map represents. A larger block, or one with an alignment larger than a
/// granule, occupies whole words.
const WORD_BYTES: usize = 64 * GRANULE_BYTES;
const WORDS: usize = RESERVE_BYTES / WORD_BYTES;

/// Time between two attempts of a memprof thread that waits for memory.
pub(crate) const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Allocates from the program's allocator, or from a reserve of 512 KiB if that fails.
///
/// The reserve suffices to finish work that has started. While more than half of it is in use,
/// [`require_memory`](crate::require_memory) prevents new work. If the reserve is full as well, memprof's threads wait
/// until the program has freed memory, for blocks of up to 128 KiB. Null is returned for larger blocks, which only
/// `try_reserve` requests, and on threads of the program, which must not wait.
#[derive(Debug)]
pub struct ReservedAllocator;

static RESERVE: Reserve = Reserve::new();

// SAFETY: System and the reserve allocate as GlobalAlloc demands. Each frees only its own blocks.
unsafe impl GlobalAlloc for ReservedAllocator {
    /// Allocates from the program's allocator, or from the reserve if that has no memory.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises to GlobalAlloc::alloc are those that System.alloc needs.
        let block = unsafe { System.alloc(layout) };
        match block.is_null() {
            // SAFETY: the caller's promises to GlobalAlloc::alloc are those that the function needs.
            true => unsafe { allocate_from_reserve(layout) },
            false => block,
        }
    }

    /// Allocates a block of zeros from the program's allocator, or from the reserve if that has no memory.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises to GlobalAlloc::alloc_zeroed are those that System.alloc_zeroed needs.
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            return block;
        }
        // SAFETY: the caller's promises to GlobalAlloc::alloc_zeroed are those that the function needs.
        let block = unsafe { allocate_from_reserve(layout) };
        if !block.is_null() {
            // SAFETY: a new block of that size. The reserve does not zero its blocks.
            unsafe { ptr::write_bytes(block, 0, layout.size()) };
        }
        block
    }

    /// Resizes a block. If the program's allocator cannot, or the block is in the reserve, moves it to a new block of
    /// `alloc`.
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !RESERVE.contains(block) {
            // SAFETY: the caller's promises to GlobalAlloc::realloc. The block is not in the reserve, so it is
            // System's.
            let moved = unsafe { System.realloc(block, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: GlobalAlloc: the caller promises that the size, rounded up, fits isize.
        let new_layout = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: the caller of GlobalAlloc::realloc promises a size that is not 0.
        let moved = unsafe { self.alloc(new_layout) };
        // Moved to a new block: a block of the reserve cannot grow, and System could not grow its own.
        if !moved.is_null() {
            // SAFETY: both blocks have at least that many bytes, and the new one does not overlap the old one.
            unsafe { ptr::copy_nonoverlapping(block, moved, layout.size().min(size)) };
            // SAFETY: the caller's block, which the new one replaces.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }

    /// Returns a block to where it came from: the reserve or the program's allocator.
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match RESERVE.contains(block) {
            true => RESERVE.free(block, layout),
            // SAFETY: the caller's promises to GlobalAlloc::dealloc. The block is not in the reserve, so it is
            // System's.
            false => unsafe { System.dealloc(block, layout) },
        }
    }
}

/// Allocates from the reserve after the program's allocator failed. If the reserve is full, a thread of memprof's waits
/// until the reserve or the program's allocator has memory. Other threads do not wait, and no thread waits for a block
/// of more than [`MAX_AWAITED_BYTES`]: then returns null.
///
/// # Safety
/// Those of [`GlobalAlloc::alloc`].
#[cold]
#[inline(never)]
unsafe fn allocate_from_reserve(layout: Layout) -> *mut u8 {
    loop {
        let block = RESERVE.allocate(layout);
        if !block.is_null() || layout.size() > MAX_AWAITED_BYTES || !is_memprof_thread() {
            return block;
        }
        thread::sleep(MEMORY_POLL_INTERVAL);
        // SAFETY: the caller promises a layout that GlobalAlloc::alloc accepts.
        let block = unsafe { System.alloc(layout) };
        if !block.is_null() {
            return block;
        }
    }
}

/// Returns whether the calling thread is memprof's: all of its threads have names that begin with `memprof`. Uses no
/// thread-local variable, because that may not be allocated yet.
fn is_memprof_thread() -> bool {
    let mut name = [0_u8; 16];
    // SAFETY: PR_GET_NAME(2const) writes at most 16 bytes.
    let is_known = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) } == 0;
    is_known && name.starts_with(b"memprof")
}

/// Returns whether more than half of the reserve is in use, so that no work should start.
pub(crate) fn is_reserve_scarce() -> bool {
    // A word represents 64 granules; 32 are half of them.
    RESERVE.used_granules() > WORDS * 32
}

/// A memory region with lock-free allocation of blocks.
#[repr(align(4096))]
struct Reserve {
    bytes: UnsafeCell<[u8; RESERVE_BYTES]>,
    /// One bit per granule, set while the granule is in use.
    map: [AtomicU64; WORDS],
}

// SAFETY: `map` assigns each granule to at most one thread at a time.
unsafe impl Sync for Reserve {}

/// Part of the map that a block occupies.
enum Extent {
    /// Number of adjacent bits in one word.
    Granules(u32),
    /// Number of whole words.
    Words(usize),
}

impl Extent {
    /// Returns the extent of a block: granules of one word. A block that is larger than a word, or has an alignment
    /// larger than a granule, gets whole words.
    fn new(layout: Layout) -> Self {
        match layout.size() <= WORD_BYTES && layout.align() <= GRANULE_BYTES {
            true => Self::Granules(layout.size().div_ceil(GRANULE_BYTES).max(1) as u32),
            false => Self::Words(layout.size().div_ceil(WORD_BYTES)),
        }
    }
}

/// Returns a mask of the `count` lowest bits; `count` is 1 to 64.
fn low_bits(count: u32) -> u64 {
    u64::MAX >> (64 - count)
}

impl Reserve {
    const fn new() -> Self {
        Self {
            bytes: UnsafeCell::new([0; RESERVE_BYTES]),
            map: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// Returns the address of the first byte of the reserve's memory.
    fn start_address(&self) -> *mut u8 {
        self.bytes.get().cast()
    }

    /// Returns whether a block belongs to the reserve, and not to the program's allocator.
    fn contains(&self, block: *mut u8) -> bool {
        (self.start_address().addr()..self.start_address().addr() + RESERVE_BYTES)
            .contains(&block.addr())
    }

    /// Returns the number of granules (64 bytes each) of the whole reserve that blocks occupy.
    fn used_granules(&self) -> usize {
        let used = |word: &AtomicU64| word.load(Ordering::Relaxed).count_ones() as usize;
        self.map.iter().map(used).sum()
    }

    /// Allocates a block. Null if there is no room, or if the alignment is larger than a word's memory (4 KiB).
    fn allocate(&self, layout: Layout) -> *mut u8 {
        let offset = match Extent::new(layout) {
            _ if layout.align() > WORD_BYTES => None,
            Extent::Granules(count) => self.allocate_granules(count),
            Extent::Words(count) => self.allocate_words(count),
        };
        offset.map_or(ptr::null_mut(), |offset| {
            self.start_address().wrapping_add(offset)
        })
    }

    /// Claims `count` adjacent granules of one word, and returns their offset in bytes. `None` if no word has that many
    /// adjacent free bits.
    fn allocate_granules(&self, count: u32) -> Option<usize> {
        self.map.iter().enumerate().find_map(|(index, word)| {
            let mut shift = 0;
            let claim = |used: u64| {
                shift = (0..=64 - count).find(|shift| used >> shift & low_bits(count) == 0)?;
                Some(used | low_bits(count) << shift)
            };
            word.fetch_update(Ordering::Acquire, Ordering::Relaxed, claim)
                .ok()?;
            Some(index * WORD_BYTES + shift as usize * GRANULE_BYTES)
        })
    }

    /// Claims `count` adjacent words as a whole, and returns their offset in bytes. `None` if there are not that many
    /// adjacent free words.
    fn allocate_words(&self, count: usize) -> Option<usize> {
        let claim = |word: &AtomicU64| {
            word.compare_exchange(0, u64::MAX, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        };
        let mut first = 0_usize;
        while let Some(words) = self.map.get(first..first.checked_add(count)?) {
            let Some(used) = words.iter().position(|word| !claim(word)) else {
                return Some(first * WORD_BYTES);
            };
            // Another block uses one of these words: release those claimed before it, and continue after it.
            free_words(&words[..used]);
            first += used + 1;
        }
        None
    }

    /// Frees a block that `allocate` returned for that layout.
    fn free(&self, block: *mut u8, layout: Layout) {
        let offset = block.addr() - self.start_address().addr();
        let index = offset / WORD_BYTES;
        match Extent::new(layout) {
            Extent::Granules(count) => {
                let shift = offset % WORD_BYTES / GRANULE_BYTES;
                self.map[index].fetch_and(!(low_bits(count) << shift), Ordering::Release);
            }
            Extent::Words(count) => free_words(&self.map[index..index + count]),
        }
    }
}

/// Marks all granules of the words as free.
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
    fn blocks_are_aligned_disjoint_and_freed_in_any_order() {
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
    fn full_reserve_refuses_until_freed() {
        static RESERVE: Reserve = Reserve::new();
        let page = layout(4096, 8);
        let blocks: Vec<_> = (0..WORDS).map(|_| RESERVE.allocate(page)).collect();
        assert!(blocks.iter().all(|block| RESERVE.contains(*block)));
        for size in [1, 4096, 10_000, RESERVE_BYTES + 1, usize::MAX >> 1] {
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
        let check_resize = |block: *mut u8| {
            // SAFETY: `block` has the size of `old`.
            unsafe { ptr::write_bytes(block, 7, old.size()) };
            // SAFETY: GlobalAlloc::realloc: the block was allocated with layout `old`.
            let block = unsafe { ReservedAllocator.realloc(block, old, size) };
            // SAFETY: the block has 1,000 bytes.
            assert_eq!(unsafe { *block.wrapping_add(99) }, 7);
            // SAFETY: GlobalAlloc::dealloc: the block has that layout.
            unsafe { ReservedAllocator.dealloc(block, layout(size, 8)) };
        };
        check_resize(RESERVE.allocate(old));
        // SAFETY: GlobalAlloc::alloc: the layout is not empty.
        check_resize(unsafe { ReservedAllocator.alloc(old) });
        assert_eq!(RESERVE.used_granules(), 0);
        assert!(!is_reserve_scarce());
    }
}
