//! Tally: exact sums over every allocation, for programs that run only to be measured.
//!
//! Requested bytes are summed as requested. Live bytes are summed as the allocator rounds them
//! (`malloc_usable_size(3)`), because a free does not pass the requested size. Each thread holds back up to
//! [`BATCH_BYTES`] of live bytes. Each time the live bytes exceed their maximum, a new peak begins.
#![expect(unsafe_code, reason = "a function of the allocator's")]

use core::ffi::c_void;
use core::mem;
use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use crate::thread_pointer::{hash_thread_pointer, thread_pointer};

/// Live bytes that a thread accumulates before it adds them to the shared sum.
const BATCH_BYTES: i64 = 4096;

/// Number of rows for threads. When a thread ends, the next thread with the same thread pointer takes over its row.
const MAX_THREADS: usize = 4096;
/// Number of rows searched for a thread's row or a free one.
const MAX_PROBES: usize = 8;

/// Whether every allocation is counted.
static IS_ENABLED: AtomicBool = AtomicBool::new(false);
/// Address of `malloc_usable_size` of the allocator that serves `malloc`; 0 if it has none.
static USABLE_SIZE: AtomicUsize = AtomicUsize::new(0);
/// Whether the word before a block holds its size, as in glibc (`mchunk_size` of `malloc_chunk` in malloc.c).
static HAS_HEADERS: AtomicBool = AtomicBool::new(false);

/// Flag bits of `mchunk_size`. A chunk's header has two words if the chunk is its own mapping, one word if not.
const CHUNK_FLAGS: usize = 0b111;
/// Flag of `mchunk_size` for a chunk that is its own mapping.
const MAPPED_FLAG: usize = 0b010;

// All large tables share a section: a small variable between two of them would make a page of its own resident.
#[unsafe(link_section = ".bss.tables")]
static THREADS: [ThreadTotals; MAX_THREADS] = [const { ThreadTotals::new() }; MAX_THREADS];
/// Sums of the threads that found no free row.
static SHARED_TOTALS: ThreadTotals = ThreadTotals::new();

/// Sum of live bytes, without the pending bytes of threads.
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
/// Largest value of [`LIVE_BYTES`] so far.
static PEAK_BYTES: AtomicI64 = AtomicI64::new(0);
/// Number of the current peak. A new peak begins whenever [`LIVE_BYTES`] exceeds its maximum.
static PEAK_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Exact counts since the start of the process, be it by exec(2) or by fork(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of allocations; a `realloc` that succeeds counts as one.
    pub objects: u64,
    /// Bytes requested by these allocations.
    pub bytes: u64,
    /// Largest sum of live bytes, as the allocator rounds them, with those of inherited blocks in a forked child. Exact
    /// to 4 KiB per thread.
    pub peak: u64,
}

/// Sums of one thread, in a cache line of their own.
#[repr(C, align(64))]
struct ThreadTotals {
    /// Thread pointer; 0 if the row is free.
    owner: AtomicUsize,
    objects: AtomicU64,
    bytes: AtomicU64,
    /// Live bytes that are not yet in the shared sum; may be negative.
    pending: AtomicI64,
}

/// Starts counting all allocations of this process. Must be called before any GOT slot is patched: hooks that are
/// installed earlier do not count.
pub fn enable() {
    IS_ENABLED.store(true, Relaxed);
}

/// Returns the sums of the process. `None` if counting is not enabled, or the allocator has no `malloc_usable_size`.
pub fn tally() -> Option<Tally> {
    (is_enabled() && USABLE_SIZE.load(Relaxed) != 0).then(sum_totals)
}

/// Adds up the counts of all threads, ended ones included. The peak is the process's, not a sum over threads.
fn sum_totals() -> Tally {
    let rows = || THREADS.iter().chain([&SHARED_TOTALS]);
    let sum =
        |field: fn(&ThreadTotals) -> &AtomicU64| rows().map(|each| field(each).load(Relaxed)).sum();
    Tally {
        objects: sum(|each| &each.objects),
        bytes: sum(|each| &each.bytes),
        peak: u64::try_from(PEAK_BYTES.load(Relaxed)).unwrap_or(0),
    }
}

/// Returns whether all allocations of this process are counted.
pub(crate) fn is_enabled() -> bool {
    IS_ENABLED.load(Relaxed)
}

/// Stores the address of the allocator's `malloc_usable_size`. `None` if the allocator lacks it: [`tally`] then returns
/// `None`.
pub(crate) fn set_usable_size_function(function: Option<usize>) {
    USABLE_SIZE.store(function.unwrap_or(0), Relaxed);
}

/// Checks glibc's chunk headers against `malloc_usable_size` for a few new blocks, and uses the headers for block sizes
/// from now on if they agree. The headers are faster, because `malloc_usable_size` also reads the next block's header,
/// which is seldom in the cache.
///
/// # Safety
/// `malloc` and `free` are glibc's.
pub(crate) unsafe fn probe_chunk_headers(
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
) {
    // These sizes stay below the mmap threshold: freeing a block that is its own mapping would raise glibc's threshold.
    let is_equal = [1, 24, 25, 1000, 70_000].into_iter().all(|size| {
        // SAFETY: malloc(3), which the caller passes.
        let block = unsafe { malloc(size) };
        let is_equal =
            chunk_size(block as usize).is_some_and(|size| size == usable_size(block as usize));
        // SAFETY: free(3), which the caller passes, with null or the block just allocated.
        unsafe { free(block) };
        is_equal
    });
    HAS_HEADERS.store(is_equal, Relaxed);
}

/// Returns the number of the current peak, the latest maximum of live bytes. The profile of a peak has the blocks that
/// were live when the peak began.
pub(crate) fn peak_number() -> u64 {
    PEAK_NUMBER.load(Relaxed)
}

/// Begins the tally of a forked child, which counts only its own allocations. The blocks that it inherits live in it
/// too, and it may free them: they are its first peak. Does nothing if counting is not enabled.
pub(crate) fn reset_in_child() {
    if !is_enabled() {
        return;
    }
    let mut live = LIVE_BYTES.load(Relaxed);
    for totals in THREADS.iter().chain([&SHARED_TOTALS]) {
        totals.objects.store(0, Relaxed);
        totals.bytes.store(0, Relaxed);
        live += totals.pending.swap(0, Relaxed);
    }
    LIVE_BYTES.store(live, Relaxed);
    PEAK_BYTES.store(live, Relaxed);
    // Records keep what they held at the parent's peak, which is not the child's.
    PEAK_NUMBER.fetch_add(1, Relaxed);
}

/// Returns the usable bytes of a block; 0 for null. Reads the chunk header if [`probe_chunk_headers`] found headers
/// reliable, otherwise calls `malloc_usable_size`.
#[inline(always)]
pub(crate) fn block_size(block: usize) -> i64 {
    if HAS_HEADERS.load(Relaxed)
        && let Some(size) = chunk_size(block)
    {
        return size;
    }
    usable_size(block)
}

/// Reads the usable bytes of a block from glibc's chunk header. `None` for null, and for a chunk that is its own
/// mapping.
#[inline(always)]
fn chunk_size(block: usize) -> Option<i64> {
    let word = block.checked_sub(size_of::<usize>())? as *const AtomicUsize;
    // SAFETY: glibc has a header word before each block. Other threads change its flags, not the size.
    let word = unsafe { &*word }.load(Relaxed);
    let size = (word & !CHUNK_FLAGS).wrapping_sub(size_of::<usize>());
    (word & MAPPED_FLAG == 0).then_some(size as i64)
}

/// Returns the usable bytes of a block by the allocator's `malloc_usable_size`; 0 for null, or if the allocator lacks
/// that function.
#[inline(always)]
fn usable_size(block: usize) -> i64 {
    let function = USABLE_SIZE.load(Relaxed);
    if function == 0 || block == 0 {
        return 0;
    }
    // SAFETY: malloc_usable_size(3), found by that name in the allocator that serves `malloc`.
    let usable = unsafe { mem::transmute::<usize, unsafe extern "C" fn(usize) -> usize>(function) };
    // SAFETY: malloc_usable_size(3) with a block of that allocator, which the hook's caller has not freed yet.
    (unsafe { usable(block) }) as i64
}

/// Counts an allocated block, its usable bytes, and the bytes requested for it. Does nothing for null.
#[inline(always)]
pub(crate) fn record_alloc(block: usize, requested: usize) {
    if block != 0 {
        count_alloc(block_size(block), requested);
    }
}

/// Counts an allocation of a block with `size` usable bytes, of which the program requested `requested`.
#[inline(always)]
fn count_alloc(size: i64, requested: usize) {
    with_thread_totals(|totals, mode| {
        mode.add(&totals.objects, 1);
        mode.add(&totals.bytes, requested as u64);
        mode.add_live_bytes(totals, size);
    });
}

/// Subtracts `size`, the usable bytes of a freed block, from the sum of live bytes. Does nothing for 0, the size of
/// null.
#[inline(always)]
pub(crate) fn record_free(size: i64) {
    if size != 0 {
        with_thread_totals(|totals, mode| mode.add_live_bytes(totals, -size));
    }
}

/// Method of changing totals, which depends on whether one thread or several write them.
#[derive(Clone, Copy)]
enum AddMode {
    /// Plain stores: only one thread writes them.
    Exclusive,
    /// Atomic additions: several threads write them.
    Shared,
}

impl AddMode {
    /// Adds to one of the sums: without an atomic addition if only this thread changes it.
    #[inline(always)]
    fn add(self, sum: &AtomicU64, more: u64) {
        match self {
            Self::Exclusive => sum.store(sum.load(Relaxed).wrapping_add(more), Relaxed),
            Self::Shared => drop(sum.fetch_add(more, Relaxed)),
        }
    }

    /// Adds `more` (negative for a free) to the pending live bytes, and flushes these to the shared sum once they reach
    /// ±[`BATCH_BYTES`].
    #[inline(always)]
    fn add_live_bytes(self, totals: &ThreadTotals, more: i64) {
        let pending = match self {
            Self::Exclusive => {
                let pending = totals.pending.load(Relaxed) + more;
                totals.pending.store(pending, Relaxed);
                pending
            }
            Self::Shared => totals.pending.fetch_add(more, Relaxed) + more,
        };
        if pending.unsigned_abs() >= BATCH_BYTES.unsigned_abs() {
            flush_pending_bytes(totals);
        }
    }
}

/// Adds a thread's pending bytes to the shared sum. Begins a new peak if the sum exceeds its maximum.
#[cold]
#[inline(never)]
fn flush_pending_bytes(totals: &ThreadTotals) {
    let pending = totals.pending.swap(0, Relaxed);
    let live = LIVE_BYTES.fetch_add(pending, AcqRel) + pending;
    if PEAK_BYTES.fetch_max(live, AcqRel) < live {
        PEAK_NUMBER.fetch_add(1, AcqRel);
    }
}

/// Calls `change` with the row of the calling thread, or with the shared row if the thread has no row and finds none
/// free.
#[inline(always)]
fn with_thread_totals(change: impl FnOnce(&ThreadTotals, AddMode)) {
    const BITS: u32 = MAX_THREADS.ilog2();
    let thread = thread_pointer();
    let hash = hash_thread_pointer(thread, BITS);
    let first = &THREADS[hash];
    if first.owner.load(Relaxed) == thread {
        return change(first, AddMode::Exclusive);
    }
    match find_or_claim_totals(hash, thread) {
        Some(totals) => change(totals, AddMode::Exclusive),
        None => change(&SHARED_TOTALS, AddMode::Shared),
    }
}

/// Finds the row of the thread with the pointer `thread`, or claims a free one. Searches [`MAX_PROBES`] rows from index
/// `hash` on. `None` if all of these belong to other threads.
#[inline(never)]
fn find_or_claim_totals(hash: usize, thread: usize) -> Option<&'static ThreadTotals> {
    (0..MAX_PROBES).find_map(|probe| {
        let totals = THREADS.get((hash + probe) % MAX_THREADS)?;
        let owner = totals
            .owner
            .compare_exchange(0, thread, AcqRel, Acquire)
            .unwrap_or_else(|owner| owner);
        (owner == 0 || owner == thread).then_some(totals)
    })
}

impl ThreadTotals {
    const fn new() -> Self {
        Self {
            owner: AtomicUsize::new(0),
            objects: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            pending: AtomicI64::new(0),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::thread;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn chunk_size_equals_usable_size_of_glibc() {
        set_usable_size_function(Some(libc::malloc_usable_size as *const () as usize));
        // SAFETY: both are of the C library.
        unsafe { probe_chunk_headers(libc::malloc, libc::free) };
        assert!(HAS_HEADERS.load(Relaxed), "of this C library");
        assert_eq!(block_size(0), 0);
        let check = |block: *mut c_void| {
            // SAFETY: malloc_usable_size(3), of a block that is freed only below.
            let expected = unsafe { libc::malloc_usable_size(block) } as i64;
            assert_eq!(block_size(block as usize), expected);
            // SAFETY: free(3) of a block that this test allocated.
            unsafe { libc::free(block) };
        };
        for size in (0..5000).chain([100_000, 1 << 20, 100 << 20]) {
            // SAFETY: malloc(3).
            check(unsafe { libc::malloc(size) });
            // SAFETY: aligned_alloc(3), with a power of two.
            check(unsafe { libc::aligned_alloc(256, size) });
            // SAFETY: malloc(3).
            let small = unsafe { libc::malloc(size / 2) };
            // SAFETY: realloc(3) of a block that this test allocated.
            check(unsafe { libc::realloc(small, size + 1) });
        }
        // SAFETY: malloc(3). The thread's blocks lie in an arena of its own.
        let block = |size| unsafe { libc::malloc(size) } as usize;
        let blocks = thread::spawn(move || (0..100).map(block).collect::<Vec<_>>());
        for block in blocks.join().unwrap() {
            check(block as *mut c_void);
        }
    }

    /// The process has one tally, so this is one test.
    #[test]
    fn totals_of_threads_add_up_and_peak_is_largest_live_sum() {
        const THREADS: u64 = 16;
        const BLOCKS: u64 = 10_000;
        let work = || {
            for _ in 0..BLOCKS {
                count_alloc(100, 90);
            }
            for _ in 0..BLOCKS {
                record_free(100);
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|_| thread::spawn(work)).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let tally = sum_totals();
        assert_eq!(tally.objects, THREADS * BLOCKS);
        assert_eq!(tally.bytes, THREADS * BLOCKS * 90);
        assert!(tally.peak > BLOCKS * 100 - 4096, "{tally:?}");
        assert!(tally.peak <= THREADS * BLOCKS * 100, "{tally:?}");
        let before = peak_number();
        count_alloc(1 << 30, 1 << 30);
        assert_eq!(peak_number(), before + 1);
        record_free(1 << 30);
        count_alloc(1 << 20, 1 << 20);
        assert_eq!(peak_number(), before + 1, "less than before is no peak");

        enable();
        reset_in_child();
        let check = |expected_peak, expected_peaks| {
            assert_eq!(sum_totals().peak, expected_peak);
            assert_eq!(peak_number() - before, expected_peaks);
        };
        let tally = sum_totals();
        assert_eq!((tally.objects, tally.bytes), (0, 0));
        check(1 << 20, 2);
        // The child frees the block that it inherited, and allocates less, then more.
        record_free(1 << 20);
        count_alloc(1 << 19, 1 << 19);
        check(1 << 20, 2);
        count_alloc(1 << 20, 1 << 20);
        check((1 << 20) + (1 << 19), 3);
    }
}
