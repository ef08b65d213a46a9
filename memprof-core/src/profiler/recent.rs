//! The latest sampled allocations.

use memprof_messages::Recent;

use super::figures::jemallocs;
use super::{Profiler, only_jemalloc};
use crate::allocators::jemalloc::Jemalloc;
use crate::error::Result;
use crate::figures::recent::{self};

impl Profiler {
    /// The latest sampled allocations, of every jemalloc that keeps them; `max` sets how many.
    ///
    /// # Errors
    /// `Busy` while a dump runs; `Unsupported` where jemalloc is too old; none are kept yet; `max`
    /// is out of range.
    pub fn recent(&self, max: Option<u64>) -> Result<Vec<Recent>> {
        let _running = self.dump_slot.take()?;
        self.allocators.look_again(&self.settings);
        let backends = self.allocators.all();
        let jemallocs = jemallocs(&backends);
        let none = || only_jemalloc("keeps its latest allocations");
        let first = jemallocs.first().ok_or_else(none)?;
        let able = |jemalloc: &&Jemalloc| recent::require(jemalloc, max).is_ok();
        let able: Vec<_> = jemallocs.iter().copied().filter(able).collect();
        if able.is_empty() {
            recent::require(first, max)?;
        }
        // Where signals are blocked, and what is allocated is left out of the profile.
        let take = |jemalloc: &Jemalloc| {
            let jemalloc = jemalloc.clone();
            self.dump_slot.dumper.run(move || {
                jemalloc.leave_this_thread_out();
                recent::take(&jemalloc, max)
            })?
        };
        able.into_iter().map(take).collect()
    }
}
