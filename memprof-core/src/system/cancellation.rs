//! Cancellation of memprof's own threads.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

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
pub(crate) fn cancel_pair() -> (CancelOnDrop, CancelToken) {
    let shared: Arc<CancelState> = Arc::default();
    (CancelOnDrop(Arc::clone(&shared)), CancelToken(shared))
}

impl CancelToken {
    /// Sleeps for `duration` and returns true. Returns false at once when the thread is cancelled.
    pub(crate) fn sleep_unless_cancelled(&self, duration: Duration) -> bool {
        let is_cancelled = self
            .0
            .is_cancelled
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .0
            .changed
            .wait_timeout_while(is_cancelled, duration, |is_cancelled| !*is_cancelled);
        let (is_cancelled, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !*is_cancelled
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        *self
            .0
            .is_cancelled
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}
