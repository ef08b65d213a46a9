//! Excludes memprof's allocations from the profile, because they are not the program's.
//!
//! Only jemalloc and memprof's sampler have a switch per thread. In tcmalloc's profiles, a reader recognizes memprof's
//! stacks by the line `# memprof-image`.
#![expect(unsafe_code, reason = "the allocator's symbols")]

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::mem;

use crate::allocators::mallctl::{Mallctl, MallctlFn};

/// Mallctl that switches sampling of the calling thread. ENOENT in a jemalloc without profiling.
const THREAD_ACTIVE: &CStr = c"thread.prof.active";

/// Maximum number of jemallocs that one guard can exclude a thread from. Further ones keep sampling it.
const MAX_JEMALLOCS: usize = 8;

/// Guard during whose life the thread that created it is not sampled.
#[derive(Debug)]
pub struct ProfilerExclusion {
    excluded_from: [Option<Mallctl>; MAX_JEMALLOCS],
    #[cfg(target_arch = "x86_64")]
    _own_sampler: memprof_sampler::SamplerExclusion,
    /// Keeps the guard on its thread: it is neither `Send` nor `Sync`.
    _thread: PhantomData<*const ()>,
}

impl ProfilerExclusion {
    /// Excludes this thread from memprof's sampler and from jemallocs with exported symbols, until the guard is
    /// dropped. For the search for allocators, which itself allocates and has not found the jemallocs yet.
    pub fn from_exported_symbols() -> Self {
        let names = [c"mallctl", c"_rjem_mallctl", c"je_mallctl"];
        let found = names.into_iter().filter_map(|name| {
            // SAFETY: dlsym(3) gets a NUL-terminated name.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            // SAFETY: jemalloc(3): a function of this name has this type.
            let found = (!found.is_null())
                .then(|| unsafe { mem::transmute::<*mut c_void, MallctlFn>(found) })?;
            // SAFETY: jemalloc(3) gives the type. The program and the libraries loaded at its start are never unloaded.
            Some(unsafe { Mallctl::new(found, None) })
        });
        Self::from_jemallocs(found)
    }

    /// Excludes this thread from memprof's sampler, and from the first [`MAX_JEMALLOCS`] of `jemallocs` that sample it,
    /// until the guard is dropped. A jemalloc that refuses keeps sampling it. Does not allocate.
    pub(crate) fn from_jemallocs(jemallocs: impl Iterator<Item = Mallctl>) -> Self {
        let mut guard = Self {
            excluded_from: [None; MAX_JEMALLOCS],
            #[cfg(target_arch = "x86_64")]
            _own_sampler: memprof_sampler::SamplerExclusion::for_this_thread(),
            _thread: PhantomData,
        };
        let sampling = jemallocs.filter(|mallctl| mallctl.read_bool(THREAD_ACTIVE) == Ok(true));
        for (slot, mallctl) in guard.excluded_from.iter_mut().zip(sampling) {
            *slot = mallctl
                .write_bool(THREAD_ACTIVE, false)
                .is_ok()
                .then_some(mallctl);
        }
        guard
    }
}

impl Drop for ProfilerExclusion {
    /// Makes the jemallocs from which this thread was excluded sample it again. An error is only logged.
    fn drop(&mut self) {
        for mallctl in self.excluded_from.iter().flatten() {
            // If jemalloc refuses, the thread stays unsampled, which only reduces the number of samples.
            if let Err(errno) = mallctl.write_bool(THREAD_ACTIVE, true) {
                log::debug!("thread.prof.active: {errno}");
            }
        }
    }
}
