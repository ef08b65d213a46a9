//! Shortage of memory during a mark phase, because the process writes and its copy keeps the old pages.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::snapshot::Snapshot;

/// The first shortage that a worker saw. It is final even if it passes: roots were left out then.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    is_recorded: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Shortage {
    /// Records a shortage if memory is short now. The workers then stop at their next piece of work.
    pub(super) fn record_shortage_if_any(&self, snapshot: &Snapshot) {
        if let Err(error) = snapshot.require_headroom() {
            let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(error);
            self.is_recorded.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a shortage was recorded, so that the workers are to stop. Stays true after [`Self::require_none`].
    pub(super) fn is_recorded(&self) -> bool {
        self.is_recorded.load(Ordering::Relaxed)
    }

    /// Fails with the first error that a worker has seen. Removes that error, so that a later call succeeds.
    pub(super) fn require_none(&self) -> Result<(), Error> {
        let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        first.take().map_or(Ok(()), Err)
    }
}
