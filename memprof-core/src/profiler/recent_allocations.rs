//! The most recent sampled allocations.

use memprof_messages::RecentAllocations;

use super::statistics::jemallocs;
use super::{Profiler, no_jemalloc_error};
use crate::accounting::recent_allocations::{self};
use crate::allocators::jemalloc::Jemalloc;
use crate::error::Result;

impl Profiler {
    /// Reads the most recent sampled allocations of every jemalloc that records them. `max` sets the number to record
    /// from now on; `None` keeps it.
    ///
    /// # Errors
    /// `Busy` while a dump runs. `Unsupported`: there is no jemalloc, or it is too old. `Unavailable`: profiling is
    /// off, or nothing is recorded yet. `InvalidArgument`: `max` is out of range.
    pub fn recent_allocations(&self, max: Option<u64>) -> Result<Vec<RecentAllocations>> {
        let _running = self.dump_slot.acquire()?;
        self.allocators.search_if_changed(&self.settings);
        let backends = self.allocators.all_backends();
        let jemallocs = jemallocs(&backends);
        let no_jemalloc = || no_jemalloc_error("keeps its latest allocations");
        let first = jemallocs.first().ok_or_else(no_jemalloc)?;
        let able = |jemalloc: &&Jemalloc| {
            recent_allocations::require_recent_allocation_support(jemalloc, max).is_ok()
        };
        let able: Vec<_> = jemallocs.iter().copied().filter(able).collect();
        if able.is_empty() {
            // Always fails here, with the reason.
            recent_allocations::require_recent_allocation_support(first, max)?;
        }
        // On the dumper's thread, because it blocks signals and the profile excludes its allocations.
        let read = |jemalloc: &Jemalloc| {
            let jemalloc = jemalloc.clone();
            self.dump_slot.dumper.run(move || {
                jemalloc.exclude_this_thread();
                recent_allocations::set_max_and_read_recent_allocations(&jemalloc, max)
            })?
        };
        able.into_iter().map(read).collect()
    }
}
