//! Cancellation of memprof's own threads.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::lock::lock;

/// Half of a cancellation: dropping it cancels the thread with the matching [`CancelToken`], without waiting for its
/// end.
#[derive(Debug)]
pub(crate) struct CancelOnDrop(Arc<CancelState>);

/// The thread's half of a cancellation.
#[derive(Debug)]
pub(crate) struct CancelToken(Arc<CancelState>);

#[derive(Debug, Default)]
struct CancelState {
    is_cancelled: Mutex<bool>,
    changed: Condvar,
}

/// Creates both halves of a cancellation: dropping the first one wakes the thread that sleeps with the second.
pub(crate) fn create_cancel_pair() -> (CancelOnDrop, CancelToken) {
    let shared: Arc<CancelState> = Arc::default();
    (CancelOnDrop(Arc::clone(&shared)), CancelToken(shared))
}

impl CancelToken {
    /// Sleeps for `duration` and returns true. Returns false at once when the thread is cancelled.
    pub(crate) fn sleep_unless_cancelled(&self, duration: Duration) -> bool {
        let is_cancelled = lock(&self.0.is_cancelled);
        let waited = self
            .0
            .changed
            .wait_timeout_while(is_cancelled, duration, |is_cancelled| !*is_cancelled);
        let (is_cancelled, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !*is_cancelled
    }

    /// Whether the thread is cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        *lock(&self.0.is_cancelled)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        *lock(&self.0.is_cancelled) = true;
        self.0.changed.notify_all();
    }
}
