//! Free segments, as a lock-free stack.

use crate::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// First free segment in the lower half (0: none), count of changes in the upper half. Without the count, a thread
/// interrupted between its load and its exchange could pop a segment that was popped and pushed again in the meantime.
#[derive(Debug)]
pub(crate) struct FreeSegments(pub(crate) AtomicU64);

impl FreeSegments {
    /// Adds the chain from `first` to `last`. `next` returns the word that holds a segment's successor, or `None`
    /// beyond the last segment, in which case nothing is added.
    pub(crate) fn push<'a>(
        &self,
        first: u32,
        last: u32,
        next: impl Fn(u32) -> Option<&'a AtomicU64>,
    ) {
        let Some(link) = next(last) else { return };
        let mut head = self.0.load(Relaxed);
        loop {
            link.store(head & u64::from(u32::MAX), Relaxed);
            match self
                .0
                .compare_exchange(head, head_with_first(head, first), Release, Relaxed)
            {
                Ok(_) => return,
                Err(other) => head = other,
            }
        }
    }

    /// Removes one segment and returns it. `None` if there is none. `next` returns the word that holds a segment's
    /// successor.
    pub(crate) fn pop<'a>(&self, next: impl Fn(u32) -> Option<&'a AtomicU64>) -> Option<u32> {
        let mut head = self.0.load(Acquire);
        loop {
            let first = head as u32;
            if first == 0 {
                return None;
            }
            let second = next(first)?.load(Relaxed) as u32;
            match self
                .0
                .compare_exchange(head, head_with_first(head, second), Acquire, Acquire)
            {
                Ok(_) => return Some(first),
                Err(other) => head = other,
            }
        }
    }
}

/// Returns the head with another first segment and an incremented count of changes.
fn head_with_first(head: u64, first: u32) -> u64 {
    (head >> 32).wrapping_add(1) << 32 | u64::from(first)
}
