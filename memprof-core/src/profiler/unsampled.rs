//! Which allocators leave memprof's own work out.

use super::Profiler;
use super::allocators::Backends;
use crate::allocators::unsampled::Unsampled;
use crate::sampler;

impl Profiler {
    /// Leaves the calling thread, which is one of memprof's own, out of every profile that can
    /// leave threads out. Allocates nothing. To be called again before each piece of work: an
    /// allocator may have been found since.
    pub fn leave_this_thread_out(&self) {
        leave_this_thread_out(&self.allocators.all());
    }

    /// The same for a thread of the program's, for as long as the result lives.
    pub fn unsampled(&self) -> Unsampled {
        let backends = self.allocators.all();
        let jemallocs = backends.iter().filter_map(|each| each.allocator.jemalloc());
        let sampling = jemallocs.filter(|jemalloc| jemalloc.opt_prof);
        Unsampled::by(sampling.map(|jemalloc| jemalloc.mallctl))
    }
}

pub(super) fn leave_this_thread_out(backends: &Backends) {
    sampler::leave_this_thread_out();
    for jemalloc in backends.iter().filter_map(|each| each.allocator.jemalloc()) {
        jemalloc.leave_this_thread_out();
    }
}
