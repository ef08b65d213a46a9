//! Counts who is in the tables, and keeps others out while they are cleared.

use crate::atomic::{AtomicUsize, Ordering::SeqCst};

/// How many are inside, and [`CLOSED`].
#[derive(Debug)]
pub(crate) struct Gate(pub(crate) AtomicUsize);

/// Somebody who is in.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

/// Set while it is closed.
const CLOSED: usize = 1 << (usize::BITS - 1);

impl Gate {
    /// None while it is closed.
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        let inside = Inside(self);
        (self.0.fetch_add(1, SeqCst) & CLOSED == 0).then_some(inside)
    }

    /// Keeps others out, and waits until nobody is inside. False where `wait` ends that.
    pub(crate) fn close(&self, mut wait: impl FnMut() -> bool) -> bool {
        self.0.fetch_or(CLOSED, SeqCst);
        loop {
            if self.0.load(SeqCst) == CLOSED {
                return true;
            }
            if !wait() {
                return false;
            }
        }
    }

    /// Lets others in.
    pub(crate) fn open(&self) {
        self.0.fetch_and(!CLOSED, SeqCst);
    }

    /// Forgets whoever is inside: in a forked child they are no more.
    pub(crate) fn forget(&self) {
        self.0.store(0, SeqCst);
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, SeqCst);
    }
}
