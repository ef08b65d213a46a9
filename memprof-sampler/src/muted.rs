//! Threads whose allocations are not sampled: memprof's own, and those that do its work for a
//! while.
#![expect(unsafe_code, reason = "system calls")]

use core::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

use crate::countdown::thread;

/// More than memprof has threads: 32 connections and a few others.
const MOST: usize = 128;

static THREADS: [Place; MOST] = [const { Place::new() }; MOST];

/// A thread, by its pointer (0: nobody) and by its id: a later thread may have the same pointer.
#[derive(Debug)]
struct Place {
    pointer: AtomicUsize,
    id: AtomicI64,
}

/// While it lives, the thread that made it is not sampled. Where more threads have one than there
/// are places, the last are sampled.
#[derive(Debug)]
pub struct Muted {
    place: Option<&'static Place>,
}

impl Muted {
    /// Leaves this thread out.
    pub fn this_thread() -> Self {
        Self {
            place: take_place(),
        }
    }
}

impl Drop for Muted {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.pointer.store(0, Relaxed);
        }
    }
}

/// Leaves this thread out until it ends.
pub fn mute_this_thread() {
    if !is_muted() {
        take_place();
    }
}

/// Whether this thread is left out.
pub(crate) fn is_muted() -> bool {
    let own = thread();
    THREADS.iter().any(|place| {
        if place.pointer.load(Relaxed) != own {
            return false;
        }
        let is_this = place.id.load(Relaxed) == id();
        if !is_this {
            // Of a thread that ended. No other thread has this pointer now.
            place.pointer.store(0, Relaxed);
        }
        is_this
    })
}

fn take_place() -> Option<&'static Place> {
    let own = thread();
    let take = |place: &&Place, from| {
        let taken = place.pointer.compare_exchange(from, own, Relaxed, Relaxed);
        if taken.is_ok() {
            place.id.store(id(), Relaxed);
        }
        taken.is_ok()
    };
    let is_free = |place: &&Place| take(place, 0);
    let is_left_over = |place: &&Place| {
        let pointer = place.pointer.load(Relaxed);
        has_ended(place.id.load(Relaxed)) && take(place, pointer)
    };
    let mut places = THREADS.iter();
    let free = places.find(is_free);
    free.or_else(|| THREADS.iter().find(is_left_over))
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

impl Place {
    const fn new() -> Self {
        Self {
            pointer: AtomicUsize::new(0),
            id: AtomicI64::new(0),
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
        let outer = Muted::this_thread();
        let inner = Muted::this_thread();
        drop(inner);
        assert!(is_muted());
        drop(outer);
        assert!(!is_muted());
    }

    #[test]
    fn threads_that_ended_keep_no_place() {
        for _ in 0..3 * MOST {
            let muted = thread::spawn(|| {
                assert!(!is_muted(), "it has the pointer of one that ended");
                mute_this_thread();
                mute_this_thread();
                is_muted()
            });
            assert!(muted.join().unwrap());
        }
    }
}
