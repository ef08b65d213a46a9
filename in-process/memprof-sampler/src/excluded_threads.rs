//! Threads whose allocations are not sampled: memprof's own, and those that do its work for a
//! while.
#![expect(unsafe_code, reason = "system calls")]

use core::sync::atomic::{
    AtomicI64, AtomicU8, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::thread_pointer::{hash_of, thread_pointer};

/// More than memprof has threads: 32 connections and a few others.
const MOST: usize = 128;

static THREADS: [ThreadCell; MOST] = [const { ThreadCell::new() }; MOST];

/// How many of the places have a thread of that hash: for nearly every other thread, none.
static HELD: [AtomicU8; 1 << HASH_BITS] = [const { AtomicU8::new(0) }; 1 << HASH_BITS];
const HASH_BITS: u32 = 10;

/// No thread pointer: a place is being taken.
const CLAIMED: usize = 1;

/// A thread, by its pointer (0: nobody) and by its id: a later thread may have the same pointer.
#[derive(Debug)]
struct ThreadCell {
    pointer: AtomicUsize,
    id: AtomicI64,
}

/// While it lives, the thread that made it is not sampled. Where more threads have one than there
/// are places, the last are sampled.
#[derive(Debug)]
pub struct SamplerExclusion {
    place: Option<&'static ThreadCell>,
}

impl SamplerExclusion {
    /// Leaves this thread out.
    pub fn this_thread() -> Self {
        Self {
            place: claim_cell(),
        }
    }
}

impl Drop for SamplerExclusion {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.release(thread_pointer());
        }
    }
}

/// Leaves this thread out until it ends.
pub fn exclude_this_thread() {
    if !is_excluded() {
        claim_cell();
    }
}

/// Whether this thread is left out.
pub(crate) fn is_excluded() -> bool {
    let own = thread_pointer();
    count_for_hash(own).load(Relaxed) != 0 && has_cell(own)
}

#[cold]
#[inline(never)]
fn has_cell(own: usize) -> bool {
    THREADS.iter().any(|place| {
        if place.pointer.load(Acquire) != own {
            return false;
        }
        let is_this = place.id.load(Relaxed) == id();
        if !is_this {
            // Of a thread that ended. No other thread has this pointer now.
            place.release(own);
        }
        is_this
    })
}

fn claim_cell() -> Option<&'static ThreadCell> {
    let own = thread_pointer();
    let is_left_over = |place: &&ThreadCell| {
        let pointer = place.pointer.load(Acquire);
        pointer != CLAIMED && has_ended(place.id.load(Relaxed)) && place.claim(pointer, own)
    };
    let free = THREADS.iter().find(|place| place.claim(0, own));
    free.or_else(|| THREADS.iter().find(is_left_over))
}

fn count_for_hash(pointer: usize) -> &'static AtomicU8 {
    &HELD[hash_of(pointer, HASH_BITS)]
}

fn id() -> i64 {
    // SAFETY: gettid(2) reads a number.
    unsafe { libc::syscall(libc::SYS_gettid) }
}

fn has_ended(id: i64) -> bool {
    // SAFETY: getpid(2) reads a number.
    let process = unsafe { libc::getpid() };
    // SAFETY: tgkill(2): signal 0 only asks whether the thread is there.
    unsafe { libc::syscall(libc::SYS_tgkill, process, id, 0) != 0 }
}

impl ThreadCell {
    const fn new() -> Self {
        Self {
            pointer: AtomicUsize::new(0),
            id: AtomicI64::new(0),
        }
    }

    /// Takes it for this thread, if it is still `from`'s (0: nobody's).
    fn claim(&self, from: usize, own: usize) -> bool {
        let claimed = self
            .pointer
            .compare_exchange(from, CLAIMED, Acquire, Relaxed);
        if claimed.is_err() {
            return false;
        }
        if from != 0 {
            count_for_hash(from).fetch_sub(1, Relaxed);
        }
        count_for_hash(own).fetch_add(1, Relaxed);
        self.id.store(id(), Relaxed);
        self.pointer.store(own, Release);
        true
    }

    /// It is nobody's, if it was `own`'s.
    fn release(&self, own: usize) {
        let left = self.pointer.compare_exchange(own, 0, Release, Relaxed);
        if left.is_ok() {
            count_for_hash(own).fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::thread;

    use super::*;

    #[test]
    fn muted_twice_is_muted_until_both_are_gone() {
        let outer = SamplerExclusion::this_thread();
        let inner = SamplerExclusion::this_thread();
        drop(inner);
        assert!(is_excluded());
        drop(outer);
        assert!(!is_excluded());
    }

    #[test]
    fn threads_that_ended_keep_no_place() {
        for _ in 0..3 * MOST {
            let muted = thread::spawn(|| {
                assert!(!is_excluded(), "it has the pointer of one that ended");
                exclude_this_thread();
                exclude_this_thread();
                is_excluded()
            });
            assert!(muted.join().unwrap());
        }
        let held = HELD.iter().map(|held| usize::from(held.load(Relaxed)));
        assert!(held.sum::<usize>() <= MOST);
    }
}
