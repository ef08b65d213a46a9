//! Threads whose allocations are not sampled: memprof's own, and program threads while they work for memprof.
#![expect(unsafe_code, reason = "system calls")]

use core::sync::atomic::{
    AtomicI64, AtomicU8, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::thread_pointer::{hash_thread_pointer, thread_pointer};

/// Maximum number of excluded threads at one time: memprof has 32 connections and a few other threads.
const MAX_THREADS: usize = 128;

/// Cells of all excluded threads.
static THREADS: [ThreadCell; MAX_THREADS] = [const { ThreadCell::new() }; MAX_THREADS];

/// Number of cells per hash of a thread pointer. It is 0 for nearly all threads of the program, which then skip the
/// search.
static CELLS_BY_HASH: [AtomicU8; 1 << HASH_BITS] = [const { AtomicU8::new(0) }; 1 << HASH_BITS];
/// Bits of a thread pointer's hash.
const HASH_BITS: u32 = 10;

/// Value of `pointer` while a cell is being claimed: no thread has this pointer.
const CLAIMED: usize = 1;

/// One excluded thread. Its id is stored too, because a later thread may get the same thread pointer.
#[derive(Debug)]
struct ThreadCell {
    /// Thread pointer; 0 if the cell is free, or [`CLAIMED`].
    pointer: AtomicUsize,
    id: AtomicI64,
}

/// Guard that excludes the thread that created it from sampling. If all cells are in use, it has no effect and the
/// thread is sampled.
#[derive(Debug)]
pub struct SamplerExclusion {
    cell: Option<&'static ThreadCell>,
}

impl SamplerExclusion {
    /// Excludes the calling thread until the guard is dropped. Has no effect if all cells are in use.
    pub fn for_this_thread() -> Self {
        Self { cell: claim_cell() }
    }
}

impl Drop for SamplerExclusion {
    fn drop(&mut self) {
        if let Some(cell) = self.cell {
            cell.release(thread_pointer());
        }
    }
}

/// Excludes the calling thread until it ends. Has no effect if all cells are in use.
pub fn exclude_this_thread() {
    if !is_this_thread_excluded() {
        claim_cell();
    }
}

/// Returns whether the calling thread is excluded from sampling. Costs one load for nearly every thread that is not
/// excluded. May free cells of ended threads that had the same thread pointer.
pub(crate) fn is_this_thread_excluded() -> bool {
    let own = thread_pointer();
    cell_counter(own).load(Relaxed) != 0 && has_thread_cell(own)
}

/// Returns whether the calling thread, whose thread pointer is `own`, has a cell. Frees cells of ended threads that had
/// the same thread pointer.
#[cold]
#[inline(never)]
fn has_thread_cell(own: usize) -> bool {
    THREADS.iter().any(|cell| {
        if cell.pointer.load(Acquire) != own {
            return false;
        }
        let is_this = cell.id.load(Relaxed) == current_tid();
        if !is_this {
            // The cell's thread has ended: two running threads cannot have one pointer.
            cell.release(own);
        }
        is_this
    })
}

/// Claims a cell for the calling thread: a free one, or else one whose thread has ended. `None` if all cells belong to
/// running threads.
fn claim_cell() -> Option<&'static ThreadCell> {
    let own = thread_pointer();
    let is_orphaned = |cell: &&ThreadCell| {
        let pointer = cell.pointer.load(Acquire);
        pointer != CLAIMED && has_thread_ended(cell.id.load(Relaxed)) && cell.claim(pointer, own)
    };
    let free = THREADS.iter().find(|cell| cell.claim(0, own));
    free.or_else(|| THREADS.iter().find(is_orphaned))
}

/// Returns the counter of the cells whose threads share the hash of `pointer`.
fn cell_counter(pointer: usize) -> &'static AtomicU8 {
    &CELLS_BY_HASH[hash_thread_pointer(pointer, HASH_BITS)]
}

/// Returns the id of the calling thread, by gettid(2).
fn current_tid() -> i64 {
    // SAFETY: gettid(2) reads a number.
    unsafe { libc::syscall(libc::SYS_gettid) }
}

/// Returns whether this process has no thread with the kernel's thread id `id`. Also true if tgkill(2) fails for
/// another reason.
fn has_thread_ended(id: i64) -> bool {
    // SAFETY: getpid(2) reads a number.
    let process = unsafe { libc::getpid() };
    // SAFETY: tgkill(2) with signal 0 only checks whether the thread exists.
    unsafe { libc::syscall(libc::SYS_tgkill, process, id, 0) != 0 }
}

impl ThreadCell {
    const fn new() -> Self {
        Self {
            pointer: AtomicUsize::new(0),
            id: AtomicI64::new(0),
        }
    }

    /// Claims the cell for the calling thread if its owner is still `from` (0: no owner). `own` is the calling thread's
    /// pointer. Returns whether the claim succeeded.
    fn claim(&self, from: usize, own: usize) -> bool {
        let claimed = self
            .pointer
            .compare_exchange(from, CLAIMED, Acquire, Relaxed);
        if claimed.is_err() {
            return false;
        }
        if from != 0 {
            cell_counter(from).fetch_sub(1, Relaxed);
        }
        cell_counter(own).fetch_add(1, Relaxed);
        self.id.store(current_tid(), Relaxed);
        self.pointer.store(own, Release);
        true
    }

    /// Frees the cell if its owner is `own`, a thread pointer.
    fn release(&self, own: usize) {
        let freed = self.pointer.compare_exchange(own, 0, Release, Relaxed);
        if freed.is_ok() {
            cell_counter(own).fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::thread;

    use super::*;

    #[test]
    fn nested_exclusion_lasts_until_the_outer_guard_drops() {
        let outer = SamplerExclusion::for_this_thread();
        let inner = SamplerExclusion::for_this_thread();
        drop(inner);
        assert!(is_this_thread_excluded());
        drop(outer);
        assert!(!is_this_thread_excluded());
    }

    #[test]
    fn cells_of_ended_threads_are_reused() {
        for _ in 0..3 * MAX_THREADS {
            let excluded = thread::spawn(|| {
                assert!(
                    !is_this_thread_excluded(),
                    "it has the pointer of one that ended"
                );
                exclude_this_thread();
                exclude_this_thread();
                is_this_thread_excluded()
            });
            assert!(excluded.join().unwrap());
        }
        let counts = CELLS_BY_HASH
            .iter()
            .map(|count| usize::from(count.load(Relaxed)));
        assert!(counts.sum::<usize>() <= MAX_THREADS);
    }
}
