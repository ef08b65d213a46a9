//! What memprof allocates is none of the program's: the profile leaves it out.

use super::{Backends, Profiler};

impl Profiler {
    /// Leaves the calling thread, which is one of memprof's own, out of every profile that can
    /// leave threads out. Allocates nothing. To be called again before each piece of work: an
    /// allocator may have been found since.
    pub fn leave_this_thread_out(&self) {
        leave_this_thread_out(&self.backends());
    }
}

pub(super) fn leave_this_thread_out(backends: &Backends) {
    for jemalloc in backends.iter().filter_map(|each| each.jemalloc()) {
        jemalloc.leave_this_thread_out();
    }
}
