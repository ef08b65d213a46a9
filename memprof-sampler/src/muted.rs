//! Threads whose allocations are not sampled: memprof's own, and those that do its work for a
//! while.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::countdown::thread;

/// More than memprof has threads: 32 connections and a few others.
const MOST: usize = 128;

static THREADS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];

/// While it lives, the thread that made it is not sampled. Where more threads have one than there
/// are places, the last are sampled.
#[derive(Debug)]
pub struct Muted {
    place: Option<&'static AtomicUsize>,
}

impl Muted {
    /// Leaves this thread out.
    pub fn this_thread() -> Self {
        let own = thread();
        let place = THREADS
            .iter()
            .find(|place| place.compare_exchange(0, own, Relaxed, Relaxed).is_ok());
        Self { place }
    }
}

impl Drop for Muted {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.store(0, Relaxed);
        }
    }
}

pub(crate) fn is_muted(thread: usize) -> bool {
    THREADS.iter().any(|place| place.load(Relaxed) == thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn muted_twice_is_muted_until_both_are_gone() {
        let outer = Muted::this_thread();
        let inner = Muted::this_thread();
        drop(inner);
        assert!(is_muted(thread()));
        drop(outer);
        assert!(!is_muted(thread()));
    }
}
