//! Excludes memprof's own threads and calls from the profile.

use super::Profiler;
use super::allocators::BackendList;
use crate::allocators::profiler_exclusion::ProfilerExclusion;
use crate::sampler;

impl Profiler {
    /// Excludes the calling thread, one of memprof's, from sampling by all samplers that allow it. Allocates nothing.
    /// Must be called before each piece of work, because an allocator may have been found since.
    pub fn exclude_this_thread(&self) {
        exclude_this_thread(&self.allocators.all_backends());
    }

    /// Excludes the calling thread, one of the program's, from sampling by memprof and by jemallocs until the guard is
    /// dropped.
    pub fn pause_sampling_on_this_thread(&self) -> ProfilerExclusion {
        let backends = self.allocators.all_backends();
        let jemallocs = backends
            .iter()
            .filter_map(|each| each.allocator.as_jemalloc());
        let sampling = jemallocs.filter(|jemalloc| jemalloc.opt_prof);
        ProfilerExclusion::from_jemallocs(sampling.map(|jemalloc| jemalloc.mallctl))
    }
}

/// Excludes the calling thread from sampling by memprof and by the jemallocs among `backends`.
pub(super) fn exclude_this_thread(backends: &BackendList) {
    sampler::exclude_this_thread();
    for jemalloc in backends
        .iter()
        .filter_map(|each| each.allocator.as_jemalloc())
    {
        jemalloc.exclude_this_thread();
    }
}
