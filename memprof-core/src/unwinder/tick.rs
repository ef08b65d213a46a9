//! What has to be looked at again while our walk is installed.

use std::time::Duration;

use super::installed_walker;
use crate::allocators::loaded_objects;
use crate::error::{Error, Result};
use crate::system::cancellation::{CancelOnDrop, cancel_pair};

/// How long the walk of a sample may go by the rules of code that was unloaded.
const OF_THE_WALK: Duration = Duration::from_secs(1);
/// How long what a library allocates that was loaded just now may be unseen by memprof's sampler.
const OF_THE_SAMPLER: Duration = Duration::from_millis(100);

/// Libraries loaded and unloaded so far, when the rules were forgotten last.
#[derive(Debug, Default)]
pub(super) struct LoadCounts(Option<(u64, u64)>);

impl LoadCounts {
    pub(super) fn clear_if_changed(&mut self) {
        let now = Some(loaded_objects::load_and_unload_count());
        if self.0 != now {
            installed_walker::clear_rules();
            self.0 = now;
        }
    }
}

/// Runs its work now and then until it is dropped.
#[derive(Debug)]
pub(crate) struct PeriodicTask {
    _held: CancelOnDrop,
}

impl PeriodicTask {
    /// Runs `work` until it answers false; more often where memprof's sampler needs it.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(
        of_the_sampler: bool,
        work: impl Fn() -> bool + Send + 'static,
    ) -> Result<Self> {
        let period = match of_the_sampler {
            true => OF_THE_SAMPLER,
            false => OF_THE_WALK,
        };
        let (held, token) = cancel_pair();
        memprof_own::spawn(c"memprof-unwind", move |privileges| {
            while token.sleep_unless_cancelled(period) {
                privileges.match_main_thread();
                if !work() {
                    break;
                }
            }
        })
        .map_err(|error| Error::io("start the thread that tends the unwinder", &error))?;
        Ok(Self { _held: held })
    }
}
