//! Periodic maintenance while memprof's walker or sampler is installed.

use std::time::Duration;

use super::code_history;
use super::installed_walker;
use crate::allocators::loaded_objects::{self, ForkGuard};
use memprof_messages::Operation;

use crate::error::{Error, Result};
use crate::system::cancellation::{CancelOnDrop, create_cancel_pair};

/// Period for memprof's walker: the maximum time for which rules of unloaded code are used.
const WALKER_PERIOD: Duration = Duration::from_secs(1);
/// Period for memprof's sampler: the maximum time until allocations of newly loaded libraries are sampled.
const SAMPLER_PERIOD: Duration = Duration::from_millis(100);

/// Numbers of libraries loaded and unloaded when the rules were last cleared; `None` before.
#[derive(Debug, Default)]
pub(super) struct LoadCounts(Option<(u64, u64)>);

impl LoadCounts {
    /// Clears the unwind rules if a library was loaded or unloaded since the last call.
    pub(super) fn clear_rules_if_changed(&mut self) {
        if self.0 != Some(loaded_objects::load_and_unload_counts()) {
            self.0 = Some(clear_rules_and_record_code());
        }
    }
}

/// Records the loaded code, and clears the unwind rules, because they may belong to unloaded code. Returns the numbers
/// of libraries ever loaded and unloaded. They are read first, so that a change meanwhile causes another call.
pub(crate) fn clear_rules_and_record_code() -> (u64, u64) {
    let counts = loaded_objects::load_and_unload_counts();
    code_history::update_code_history(&ForkGuard::acquire());
    installed_walker::clear_rules();
    counts
}

/// Guard of a thread that runs work periodically. Dropping it cancels the thread.
#[derive(Debug)]
pub(crate) struct PeriodicTask {
    _cancel: CancelOnDrop,
}

impl PeriodicTask {
    /// Starts a thread that runs `work` until it returns false: every 100 ms if memprof's sampler needs it
    /// (`for_sampler`), and every second for the walker alone. Dropping the result stops the thread.
    ///
    /// # Errors
    /// `Io`: the thread cannot be started.
    pub(crate) fn start(
        for_sampler: bool,
        work: impl Fn() -> bool + Send + 'static,
    ) -> Result<Self> {
        let period = match for_sampler {
            true => SAMPLER_PERIOD,
            false => WALKER_PERIOD,
        };
        let (cancel, token) = create_cancel_pair();
        memprof_own::spawn(c"memprof-unwind", move |privileges| {
            while token.sleep_unless_cancelled(period) {
                privileges.limit_to_main_thread();
                if !work() {
                    break;
                }
            }
        })
        .map_err(|error| {
            Error::io_for_operation(
                Operation::Thread,
                "start the thread that tends the unwinder",
                &error,
            )
        })?;
        Ok(Self { _cancel: cancel })
    }
}
