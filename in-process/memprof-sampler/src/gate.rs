//! Keeps hooks that have claimed a place out of the tables while these are cleared.

use crate::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release, SeqCst},
    fence, fence_after_exchange,
};

#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) is_closed: AtomicBool,
}

impl Gate {
    /// Whether one who has just claimed a place may go on. Who clears sees the claim, or is seen here.
    pub(crate) fn may_pass(&self) -> bool {
        fence_after_exchange();
        !self.is_closed.load(Acquire)
    }

    /// Keeps out whoever claims a place from now on.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, SeqCst);
        fence(SeqCst);
    }

    /// Lets others in.
    pub(crate) fn open(&self) {
        self.is_closed.store(false, Release);
    }
}
