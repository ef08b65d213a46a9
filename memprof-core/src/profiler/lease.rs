//! An activation that ends by itself: people forget to turn profiling off.

use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use crate::system::cancellation::{CancelOnDrop, cancel_pair};

/// Ends early when dropped, and then does nothing.
#[derive(Debug)]
pub(crate) struct Lease {
    /// When it ends.
    pub(crate) until: SystemTime,
    _held: CancelOnDrop,
}

impl Lease {
    /// Runs `end` after `duration`, on a thread that exists only until then.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(duration: Duration, end: impl FnOnce() + Send + 'static) -> Result<Self> {
        let (held, token) = cancel_pair();
        memprof_own::spawn(c"memprof-lease", move |privileges| {
            if token.sleep_unless_cancelled(duration) {
                privileges.match_main_thread();
                end();
            }
        })
        .map_err(|error| Error::io("start the thread that ends the activation", &error))?;
        Ok(Self {
            until: SystemTime::now() + duration,
            _held: held,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn ends_by_itself() {
        let (ended, wait) = mpsc::channel();
        let _lease =
            Lease::start(Duration::from_millis(1), move || ended.send(7).unwrap()).unwrap();
        assert_eq!(wait.recv(), Ok(7));
    }

    #[test]
    fn does_nothing_when_it_is_given_up() {
        let (ended, wait) = mpsc::channel::<()>();
        let lease = Lease::start(Duration::from_secs(3600), move || ended.send(()).unwrap());
        drop(lease);
        // The closure is dropped without being called.
        assert!(wait.recv().is_err());
    }
}
