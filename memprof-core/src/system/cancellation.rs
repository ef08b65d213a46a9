//! How a thread of ours is told to end.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Ends a thread when it is dropped.
#[derive(Debug)]
pub(crate) struct CancelOnDrop(Arc<CancelState>);

/// The thread's end of a [`CancelOnDrop`].
#[derive(Debug)]
pub(crate) struct CancelToken(Arc<CancelState>);

#[derive(Debug, Default)]
struct CancelState {
    is_over: Mutex<bool>,
    changed: Condvar,
}

/// Both ends.
pub(crate) fn cancel_pair() -> (CancelOnDrop, CancelToken) {
    let shared: Arc<CancelState> = Arc::default();
    (CancelOnDrop(Arc::clone(&shared)), CancelToken(shared))
}

impl CancelToken {
    /// Sleeps for `duration`; false at once when the thread is to end.
    pub(crate) fn sleep_unless_cancelled(&self, duration: Duration) -> bool {
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

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        *self
            .0
            .is_over
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}
