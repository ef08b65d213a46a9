//! How a thread of ours is told to end.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Ends a thread when it is dropped.
#[derive(Debug)]
pub(crate) struct Leash(Arc<Shared>);

/// The thread's end of a [`Leash`].
#[derive(Debug)]
pub(crate) struct Leashed(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    is_over: Mutex<bool>,
    changed: Condvar,
}

/// Both ends.
pub(crate) fn leash() -> (Leash, Leashed) {
    let shared: Arc<Shared> = Arc::default();
    (Leash(Arc::clone(&shared)), Leashed(shared))
}

impl Leashed {
    /// Sleeps for `duration`; false at once when the thread is to end.
    pub(crate) fn sleeps(&self, duration: Duration) -> bool {
        let is_over = self
            .0
            .is_over
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .0
            .changed
            .wait_timeout_while(is_over, duration, |is_over| !*is_over);
        let (is_over, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !*is_over
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        *self
            .0
            .is_over
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}
