//! Gate that keeps hooks out of the tables while these are cleared.

use crate::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release, SeqCst},
    fence, fence_after_exchange,
};

/// Gate that [`clear`](crate::clear) closes. Each hook checks it after claiming a cell.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) is_closed: AtomicBool,
}

impl Gate {
    /// Returns whether a hook that has just claimed a cell may use the tables. The fences guarantee that either the
    /// hook sees the closed gate, or the clearing thread sees the claim.
    pub(crate) fn may_pass(&self) -> bool {
        fence_after_exchange();
        !self.is_closed.load(Acquire)
    }

    /// Closes the gate: a hook that checks it from now on does not pass. Does not wait for those that have passed.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, SeqCst);
        fence(SeqCst);
    }

    /// Opens the gate again: a hook that checks it from now on passes.
    pub(crate) fn open(&self) {
        self.is_closed.store(false, Release);
    }
}
