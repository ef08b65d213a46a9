//! What memprof allocates is none of the program's: jemalloc leaves it out of the profile.
//!
//! Only jemalloc and memprof's sampler have a switch for each thread. In tcmalloc's profiles a reader
//! knows our stacks by the line `# memprof-image`.
#![expect(unsafe_code, reason = "the allocator's symbols")]

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::mem;

use crate::allocators::mallctl::{Mallctl, MallctlFn};

/// ENOENT from a jemalloc without profiling.
const SWITCH: &CStr = c"thread.prof.active";

/// More jemallocs than one process has. What finds no place goes on sampling.
const MOST: usize = 8;

/// While it lives, the thread that made it is not sampled.
#[derive(Debug)]
pub struct ProfilerExclusion {
    switched: [Option<Mallctl>; MOST],
    #[cfg(target_arch = "x86_64")]
    _by_ours: memprof_sampler::SamplerExclusion,
    /// It stays on its thread.
    _thread: PhantomData<*const ()>,
}

impl ProfilerExclusion {
    /// By those jemallocs that can be had by name, before any search, which allocates.
    pub fn from_exported_symbols() -> Self {
        let names = [c"mallctl", c"_rjem_mallctl", c"je_mallctl"];
        let found = names.into_iter().filter_map(|name| {
            // SAFETY: dlsym(3) with a NUL-terminated name.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            // SAFETY: jemalloc(3): a function of this name has this type.
            let found = (!found.is_null())
                .then(|| unsafe { mem::transmute::<*mut c_void, MallctlFn>(found) })?;
            // SAFETY: as above; the program and what it was started with stays loaded.
            Some(unsafe { Mallctl::new(found, None) })
        });
        Self::new(found)
    }

    /// By these. Allocates nothing.
    pub(crate) fn new(jemallocs: impl Iterator<Item = Mallctl>) -> Self {
        let mut unsampled = Self {
            switched: [None; MOST],
            #[cfg(target_arch = "x86_64")]
            _by_ours: memprof_sampler::SamplerExclusion::this_thread(),
            _thread: PhantomData,
        };
        let sampling = jemallocs.filter(|mallctl| mallctl.read_bool(SWITCH) == Ok(true));
        for (place, mallctl) in unsampled.switched.iter_mut().zip(sampling) {
            *place = mallctl.write_bool(SWITCH, false).is_ok().then_some(mallctl);
        }
        unsampled
    }
}

impl Drop for ProfilerExclusion {
    fn drop(&mut self) {
        for mallctl in self.switched.iter().flatten() {
            // It took the switch before; where it does not take it back, less is sampled.
            if let Err(errno) = mallctl.write_bool(SWITCH, true) {
                log::debug!("thread.prof.active: {errno}");
            }
        }
    }
}
