//! The lease: the time limit of an activation, because people forget to turn profiling off.

use std::time::{Duration, SystemTime};

use memprof_messages::Operation;

use crate::error::{Error, Result};
use crate::system::cancellation::{CancelOnDrop, cancel_pair};

/// A running time limit. Dropping it cancels it.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Time at which the activation ends.
    pub(crate) deadline: SystemTime,
    _cancel: CancelOnDrop,
}

impl Lease {
    /// Runs `on_expiry` after `duration`, on a thread that exists until then. If the lease is dropped before,
    /// `on_expiry` does not run.
    ///
    /// # Errors
    /// `Io`: the thread cannot be started.
    pub(crate) fn start(
        duration: Duration,
        on_expiry: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        let (cancel, token) = cancel_pair();
        memprof_own::spawn(c"memprof-lease", move |privileges| {
            if token.sleep_unless_cancelled(duration) {
                privileges.match_main_thread();
                on_expiry();
            }
        })
        .map_err(|error| {
            Error::io_for_operation(
                Operation::Thread,
                "start the thread that ends the activation",
                &error,
            )
        })?;
        Ok(Self {
            deadline: SystemTime::now() + duration,
            _cancel: cancel,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn lease_expires_after_duration() {
        let (ended, wait) = mpsc::channel();
        let _lease =
            Lease::start(Duration::from_millis(1), move || ended.send(7).unwrap()).unwrap();
        assert_eq!(wait.recv(), Ok(7));
    }

    #[test]
    fn dropped_lease_does_nothing() {
        let (ended, wait) = mpsc::channel::<()>();
        let lease = Lease::start(Duration::from_secs(3600), move || ended.send(()).unwrap());
        drop(lease);
        // The closure is dropped without being called.
        assert!(wait.recv().is_err());
    }
}
