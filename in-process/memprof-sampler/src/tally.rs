//! What all allocations add up to, each of them counted: for a program that is run for its figures.
//!
//! What a program asks for is summed as it asks. What lives is summed as the allocator rounds it
//! (`malloc_usable_size(3)`), because a free does not tell what was asked for; each thread keeps back
//! less than [`BATCH`] bytes of that. Each time more lives than ever before begins another peak.
#![expect(unsafe_code, reason = "a function of the allocator's")]

use core::ffi::c_void;
use core::mem;
use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use crate::thread_pointer::{hash_of, thread_pointer};

/// A thread tells the others of so many bytes at a time.
const BATCH: i64 = 4096;

/// Threads that end leave theirs to those that get their memory.
const ACCOUNTS: usize = 4096;
/// Accounts that are looked at for a free one.
const PROBES: usize = 8;

static ASKED: AtomicBool = AtomicBool::new(false);
/// `malloc_usable_size` of the allocator that serves `malloc`; 0: it has none.
static USABLE: AtomicUsize = AtomicUsize::new(0);
/// The word before a block tells its size: glibc's `mchunk_size` (`malloc_chunk` in malloc.c).
static HAS_HEADERS: AtomicBool = AtomicBool::new(false);

/// What `mchunk_size` has besides a size. A chunk that was mapped alone has two words more, others one.
const FLAGS: usize = 0b111;
const IS_MAPPED: usize = 0b010;

// Among the other tables: what lies between two of them would have a page of its own as soon as it is written.
#[unsafe(link_section = ".bss.tables")]
static THREADS: [ThreadTotals; ACCOUNTS] = [const { ThreadTotals::new() }; ACCOUNTS];
/// Of the threads that found no account of their own.
static OTHERS: ThreadTotals = ThreadTotals::new();

static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);
static PEAKS: AtomicU64 = AtomicU64::new(0);

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Allocations; one that grows or shrinks a block is another.
    pub objects: u64,
    /// What these asked for, in bytes.
    pub bytes: u64,
    /// The most bytes that lived at the same time, as the allocator rounds them; to 4 KiB for each
    /// thread.
    pub peak: u64,
}

/// One thread's sums, alone in their line of the cache.
#[repr(C, align(64))]
struct ThreadTotals {
    /// The thread pointer; 0: nobody's.
    owner: AtomicUsize,
    objects: AtomicU64,
    bytes: AtomicU64,
    /// What lives more than the others know.
    pending: AtomicI64,
}

/// Counts all allocations of this process: call it before any slot is taken.
pub fn enable() {
    ASKED.store(true, Relaxed);
}

/// What was counted. None where nobody counts, or the allocator does not tell a block's size.
pub fn tally() -> Option<Tally> {
    (is_enabled() && USABLE.load(Relaxed) != 0).then(sums)
}

fn sums() -> Tally {
    let accounts = || THREADS.iter().chain([&OTHERS]);
    let sum =
        |of: fn(&ThreadTotals) -> &AtomicU64| accounts().map(|each| of(each).load(Relaxed)).sum();
    Tally {
        objects: sum(|each| &each.objects),
        bytes: sum(|each| &each.bytes),
        peak: u64::try_from(PEAK.load(Relaxed)).unwrap_or(0),
    }
}

pub(crate) fn is_enabled() -> bool {
    ASKED.load(Relaxed)
}

/// Tells how the allocator is asked for a block's size.
pub(crate) fn set_usable(function: Option<usize>) {
    USABLE.store(function.unwrap_or(0), Relaxed);
}

/// Has blocks' sizes read where glibc keeps them, if it does: `malloc_usable_size` reads the next block's too, which
/// is seldom in the cache.
///
/// # Safety
/// These are the functions of one allocator, and it is glibc's.
pub(crate) unsafe fn probe_chunk_headers(
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
) {
    // None is so large that it is mapped alone: freeing it would change when others are.
    let is_told = [1, 24, 25, 1000, 70_000].into_iter().all(|size| {
        // SAFETY: malloc(3).
        let block = unsafe { malloc(size) };
        let is_told =
            chunk_size(block as usize).is_some_and(|told| told == usable_size(block as usize));
        // SAFETY: free(3): null, or the block of above.
        unsafe { free(block) };
        is_told
    });
    HAS_HEADERS.store(is_told, Relaxed);
}

/// The number of the last peak: what was there when it began is what it consists of.
pub(crate) fn peaks() -> u64 {
    PEAKS.load(Relaxed)
}

/// A forked child counts from nothing.
pub(crate) fn enter_child() {
    for account in THREADS.iter().chain([&OTHERS]) {
        account.objects.store(0, Relaxed);
        account.bytes.store(0, Relaxed);
        account.pending.store(0, Relaxed);
    }
    LIVE.store(0, Relaxed);
    PEAK.store(0, Relaxed);
}

/// What a block takes. 0 for null.
#[inline(always)]
pub(crate) fn block_size(block: usize) -> i64 {
    if HAS_HEADERS.load(Relaxed)
        && let Some(size) = chunk_size(block)
    {
        return size;
    }
    usable_size(block)
}

/// What glibc's header of a block tells. None for null, and where it was mapped alone.
#[inline(always)]
fn chunk_size(block: usize) -> Option<i64> {
    let word = block.checked_sub(size_of::<usize>())? as *const AtomicUsize;
    // SAFETY: glibc has a word before each block; other threads change its flags, not the size.
    let word = unsafe { &*word }.load(Relaxed);
    let size = (word & !FLAGS).wrapping_sub(size_of::<usize>());
    (word & IS_MAPPED == 0).then_some(size as i64)
}

/// What the allocator tells.
#[inline(always)]
fn usable_size(block: usize) -> i64 {
    let function = USABLE.load(Relaxed);
    if function == 0 || block == 0 {
        return 0;
    }
    // SAFETY: malloc_usable_size(3): found by that name in the allocator that serves `malloc`.
    let usable = unsafe { mem::transmute::<usize, unsafe extern "C" fn(usize) -> usize>(function) };
    // SAFETY: as above; a block of that allocator, which nobody has freed.
    (unsafe { usable(block) }) as i64
}

/// Counts a block that the program got.
#[inline(always)]
pub(crate) fn record_alloc(block: usize, asked: usize) {
    if block != 0 {
        count(block_size(block), asked);
    }
}

#[inline(always)]
fn count(size: i64, asked: usize) {
    account(|account, add| {
        add.more(&account.objects, 1);
        add.more(&account.bytes, asked as u64);
        add.live(account, size);
    });
}

/// Counts off what a block took.
#[inline(always)]
pub(crate) fn record_free(size: i64) {
    if size != 0 {
        account(|account, add| add.live(account, -size));
    }
}

/// How an account is changed.
#[derive(Clone, Copy)]
enum AddMode {
    /// By its owner.
    Alone,
    /// By several threads at once.
    Shared,
}

impl AddMode {
    #[inline(always)]
    fn more(self, sum: &AtomicU64, more: u64) {
        match self {
            Self::Alone => sum.store(sum.load(Relaxed).wrapping_add(more), Relaxed),
            Self::Shared => drop(sum.fetch_add(more, Relaxed)),
        }
    }

    #[inline(always)]
    fn live(self, account: &ThreadTotals, more: i64) {
        let pending = match self {
            Self::Alone => {
                let pending = account.pending.load(Relaxed) + more;
                account.pending.store(pending, Relaxed);
                pending
            }
            Self::Shared => account.pending.fetch_add(more, Relaxed) + more,
        };
        if pending.unsigned_abs() >= BATCH.unsigned_abs() {
            flush(account);
        }
    }
}

/// Tells the others what an account kept back.
#[cold]
#[inline(never)]
fn flush(account: &ThreadTotals) {
    let pending = account.pending.swap(0, Relaxed);
    let live = LIVE.fetch_add(pending, AcqRel) + pending;
    if PEAK.fetch_max(live, AcqRel) < live {
        PEAKS.fetch_add(1, AcqRel);
    }
}

#[inline(always)]
fn account(change: impl FnOnce(&ThreadTotals, AddMode)) {
    const BITS: u32 = ACCOUNTS.ilog2();
    let thread = thread_pointer();
    let hash = hash_of(thread, BITS);
    let first = &THREADS[hash];
    if first.owner.load(Relaxed) == thread {
        return change(first, AddMode::Alone);
    }
    match find_totals(hash, thread) {
        Some(account) => change(account, AddMode::Alone),
        None => change(&OTHERS, AddMode::Shared),
    }
}

/// The account of a thread, or a free one, which is its own then.
#[inline(never)]
fn find_totals(hash: usize, thread: usize) -> Option<&'static ThreadTotals> {
    (0..PROBES).find_map(|probe| {
        let account = THREADS.get((hash + probe) % ACCOUNTS)?;
        let owner = account
            .owner
            .compare_exchange(0, thread, AcqRel, Acquire)
            .unwrap_or_else(|owner| owner);
        (owner == 0 || owner == thread).then_some(account)
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
    fn a_header_tells_what_the_allocator_does() {
        set_usable(Some(libc::malloc_usable_size as *const () as usize));
        // SAFETY: both are of the C library.
        unsafe { probe_chunk_headers(libc::malloc, libc::free) };
        assert!(HAS_HEADERS.load(Relaxed), "of this C library");
        assert_eq!(block_size(0), 0);
        let check = |block: *mut c_void| {
            // SAFETY: malloc_usable_size(3), of a block that nobody has freed.
            let expected = unsafe { libc::malloc_usable_size(block) } as i64;
            assert_eq!(block_size(block as usize), expected);
            // SAFETY: free(3), as above.
            unsafe { libc::free(block) };
        };
        for size in (0..5000).chain([100_000, 1 << 20, 100 << 20]) {
            // SAFETY: malloc(3).
            check(unsafe { libc::malloc(size) });
            // SAFETY: aligned_alloc(3), with a power of two.
            check(unsafe { libc::aligned_alloc(256, size) });
            // SAFETY: malloc(3).
            let small = unsafe { libc::malloc(size / 2) };
            // SAFETY: realloc(3), of a block that nobody has freed.
            check(unsafe { libc::realloc(small, size + 1) });
        }
        // In an arena of another thread.
        // SAFETY: malloc(3).
        let block = |size| unsafe { libc::malloc(size) } as usize;
        let blocks = thread::spawn(move || (0..100).map(block).collect::<Vec<_>>());
        for block in blocks.join().unwrap() {
            check(block as *mut c_void);
        }
    }

    /// One test: there is one tally in a process.
    #[test]
    fn threads_add_up_and_the_peak_is_where_most_lived() {
        const THREADS: u64 = 16;
        const BLOCKS: u64 = 10_000;
        let work = || {
            for _ in 0..BLOCKS {
                count(100, 90);
            }
            for _ in 0..BLOCKS {
                record_free(100);
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|_| thread::spawn(work)).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let tally = sums();
        assert_eq!(tally.objects, THREADS * BLOCKS);
        assert_eq!(tally.bytes, THREADS * BLOCKS * 90);
        assert!(tally.peak > BLOCKS * 100 - 4096, "{tally:?}");
        assert!(tally.peak <= THREADS * BLOCKS * 100, "{tally:?}");
        let before = peaks();
        count(1 << 30, 1 << 30);
        assert_eq!(peaks(), before + 1);
        record_free(1 << 30);
        count(1 << 20, 1 << 20);
        assert_eq!(peaks(), before + 1, "less than before is no peak");
        enter_child();
        assert_eq!(sums(), Tally::default());
    }
}
