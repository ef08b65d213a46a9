//! Heap totals of jemalloc.

use std::ffi::CStr;

use memprof_messages::{HeapTotals, HeapUsage};

use super::Jemalloc;
use crate::error::Result;

impl Jemalloc {
    /// Heap totals. jemalloc counts objects in thread caches as allocated; here they are a count of their own. Adds the
    /// size of pages that the kernel may reclaim lazily (muzzy). `None` if jemalloc was built without statistics. Fails
    /// if jemalloc does not report the totals.
    pub(crate) fn heap_usage(&self) -> Result<Option<HeapUsage>> {
        if !self.config_stats {
            return Ok(None);
        }
        let totals = (self.readers.totals)(&self.mallctl)?;
        // 4096 stands for all arenas (jemalloc(3), MALLCTL_ARENAS_ALL). A count that older releases lack is 0.
        let count = |name: &CStr| self.mallctl.read::<usize>(name).unwrap_or(0) as u64;
        let thread_caches = count(c"stats.arenas.4096.tcache_bytes")
            .saturating_add(count(c"stats.arenas.4096.tcache_stashed_bytes"))
            .min(totals.allocated);
        let lazily_free = count(c"stats.arenas.4096.pmuzzy").saturating_mul(count(c"arenas.page"));
        Ok(Some(HeapUsage::Detailed(HeapTotals {
            allocated: totals.allocated - thread_caches,
            thread_caches,
            lazily_free,
            ..totals
        })))
    }
}
