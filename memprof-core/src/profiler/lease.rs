//! The lease: the time limit of an activation, because people forget to turn profiling off.

use std::time::{Duration, SystemTime};

use memprof_messages::Operation;

use crate::error::{Error, Result};
use crate::system::cancellation::{CancelOnDrop, CancelToken, create_cancel_pair};
use crate::system::clock::end_of_time_limit;

/// A running time limit. Dropping it cancels it.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Time at which the activation ends.
    pub(crate) deadline: SystemTime,
    _cancel: CancelOnDrop,
}

impl Lease {
    /// Runs `on_expiry` after `duration`, on a thread that exists until then. If the lease is dropped before,
    /// `on_expiry` does not run. If it is dropped at that moment, the token that `on_expiry` gets says so.
    ///
    /// # Errors
    /// `Io`: the thread cannot be started. `InvalidArgument`: it would end after the year 9999.
    pub(crate) fn start(
        duration: Duration,
        on_expiry: impl FnOnce(&CancelToken) + Send + 'static,
    ) -> Result<Self> {
        let deadline = end_of_time_limit(SystemTime::now(), duration)?;
        let (cancel, token) = create_cancel_pair();
        memprof_own::spawn(c"memprof-lease", move |privileges| {
            if token.sleep_unless_cancelled(duration) {
                privileges.limit_to_main_thread();
                on_expiry(&token);
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
            deadline,
            _cancel: cancel,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn lease_expires_after_duration() {
        let (ended, wait) = mpsc::channel();
        let _lease =
            Lease::start(Duration::from_millis(1), move |_| ended.send(7).unwrap()).unwrap();
        assert_eq!(wait.recv(), Ok(7));
    }

    #[test]
    fn lease_beyond_the_clock_is_refused() {
        let refused = Lease::start(Duration::MAX, |_| {}).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{refused}");
    }

    #[test]
    fn dropped_lease_does_nothing() {
        let (ended, wait) = mpsc::channel::<()>();
        let lease = Lease::start(Duration::from_secs(3600), move |_| ended.send(()).unwrap());
        drop(lease);
        // The closure is dropped without being called.
        assert!(wait.recv().is_err());
    }
}
