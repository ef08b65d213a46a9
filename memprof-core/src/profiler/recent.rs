//! The latest sampled allocations.

use memprof_messages::RecentAllocations;

use super::statistics::jemallocs;
use super::{Profiler, needs_jemalloc_error};
use crate::accounting::recent_allocations::{self};
use crate::allocators::jemalloc::Jemalloc;
use crate::error::Result;

impl Profiler {
    /// The latest sampled allocations, of every jemalloc that keeps them; `max` sets how many.
    ///
    /// # Errors
    /// `Busy` while a dump runs; `Unsupported` where jemalloc is too old; none are kept yet; `max`
    /// is out of range.
    pub fn recent(&self, max: Option<u64>) -> Result<Vec<RecentAllocations>> {
        let _running = self.dump_slot.acquire()?;
        self.allocators.refresh(&self.settings);
        let backends = self.allocators.all();
        let jemallocs = jemallocs(&backends);
        let none = || needs_jemalloc_error("keeps its latest allocations");
        let first = jemallocs.first().ok_or_else(none)?;
        let able = |jemalloc: &&Jemalloc| {
            recent_allocations::require_recent_allocations(jemalloc, max).is_ok()
        };
        let able: Vec<_> = jemallocs.iter().copied().filter(able).collect();
        if able.is_empty() {
            recent_allocations::require_recent_allocations(first, max)?;
        }
        // Where signals are blocked, and what is allocated is left out of the profile.
        let take = |jemalloc: &Jemalloc| {
            let jemalloc = jemalloc.clone();
            self.dump_slot.dumper.run(move || {
                jemalloc.exclude_this_thread();
                recent_allocations::read_recent_allocations(&jemalloc, max)
            })?
        };
        able.into_iter().map(take).collect()
    }
}
