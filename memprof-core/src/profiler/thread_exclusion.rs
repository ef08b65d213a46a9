//! Which allocators leave memprof's own work out.

use super::Profiler;
use super::allocators::BackendList;
use crate::allocators::profiler_exclusion::ProfilerExclusion;
use crate::sampler;

impl Profiler {
    /// Leaves the calling thread, which is one of memprof's own, out of every profile that can
    /// leave threads out. Allocates nothing. To be called again before each piece of work: an
    /// allocator may have been found since.
    pub fn exclude_this_thread(&self) {
        exclude_this_thread(&self.allocators.all());
    }

    /// The same for a thread of the program's, for as long as the result lives.
    pub fn pause_on_this_thread(&self) -> ProfilerExclusion {
        let backends = self.allocators.all();
        let jemallocs = backends.iter().filter_map(|each| each.allocator.jemalloc());
        let sampling = jemallocs.filter(|jemalloc| jemalloc.opt_prof);
        ProfilerExclusion::new(sampling.map(|jemalloc| jemalloc.mallctl))
    }
}

pub(super) fn exclude_this_thread(backends: &BackendList) {
    sampler::exclude_this_thread();
    for jemalloc in backends.iter().filter_map(|each| each.allocator.jemalloc()) {
        jemalloc.exclude_this_thread();
    }
}
