//! Installs memprof's sampler in the allocation hooks of a statically linked jemalloc, whose callers use no GOT slot.
#![expect(unsafe_code, reason = "the allocator calls")]

use std::ffi::{CStr, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use memprof_sampler::jemalloc_hooks;

use crate::allocators::jemalloc::{INSTALL_HOOKS, Jemalloc};
use crate::allocators::loaded_objects::ForkGuard;
use crate::allocators::mallctl::{Mallctl, MallctlFn};
use crate::error::{Error, Result};

/// Mallctl that removes hooks by their handle.
const REMOVE: &CStr = c"experimental.hooks.remove";

/// `mallctl` of the jemalloc with installed hooks, for the fork handler.
static MALLCTL: AtomicUsize = AtomicUsize::new(0);
/// jemalloc's handle of the hooks; 0 while none are installed.
static HANDLE: AtomicUsize = AtomicUsize::new(0);

/// A jemalloc that supports allocation hooks.
#[derive(Debug)]
pub(super) struct JemallocHookInstaller {
    mallctl: Mallctl,
}

impl JemallocHookInstaller {
    /// Creates an installer for this jemalloc. `None` if it has no hooks.
    pub(super) fn new(jemalloc: &Jemalloc) -> Option<Self> {
        let mallctl = jemalloc.mallctl;
        mallctl
            .has_mallctl(INSTALL_HOOKS)
            .then_some(Self { mallctl })
    }

    /// Installs the hooks, through which jemalloc calls the sampler for each allocation. Does nothing if they are
    /// already installed.
    ///
    /// # Errors
    /// jemalloc refused, for example because it already has four other hooks.
    pub(super) fn install_hooks(&self) -> Result<()> {
        if HANDLE.load(Ordering::Acquire) != 0 {
            return Ok(());
        }
        // A child forked while jemalloc holds the lock of its hooks could not remove them.
        let _no_fork = ForkGuard::acquire();
        // Stored before the hooks are installed, because a thread that ends afterwards needs it
        // (`touch_hooked_jemalloc`).
        MALLCTL.store(self.mallctl.address(), Ordering::Release);
        let handle = self
            .mallctl
            .write_and_read(INSTALL_HOOKS, jemalloc_hooks())
            .map_err(|errno| Error::refused_mallctl("experimental.hooks.install", errno))?;
        HANDLE.store(handle, Ordering::Release);
        Ok(())
    }

    /// Removes the hooks. Does nothing if they are not installed.
    ///
    /// # Errors
    /// jemalloc refused. The hooks stay, and may be removed later.
    pub(super) fn remove_hooks(&self) -> Result<()> {
        let _no_fork = ForkGuard::acquire();
        // Cleared first: a child whose fork did not wait for the guard must not remove the hooks a second time.
        // jemalloc does not check its handle, and would count one hook too few from then on.
        let handle = HANDLE.swap(0, Ordering::AcqRel);
        if handle == 0 {
            return Ok(());
        }
        self.mallctl.write(REMOVE, handle).map_err(|errno| {
            HANDLE.store(handle, Ordering::Release);
            Error::refused_mallctl("experimental.hooks.remove", errno)
        })
    }
}

/// Returns `mallctl` of the jemalloc in which hooks were installed last. `None` if there is none.
fn hooked_mallctl() -> Option<MallctlFn> {
    let address = MALLCTL.load(Ordering::Acquire);
    // SAFETY: `install_hooks` stored the address of a jemalloc's `mallctl`, which is never unloaded.
    (address != 0).then(|| unsafe {
        mem::transmute::<*const c_void, MallctlFn>(ptr::with_exposed_provenance(address))
    })
}

/// Calls the jemalloc whose hooks were changed, as the last act of a thread of memprof's; the mallctl does not matter.
/// Otherwise jemalloc 5.2 to 5.3 would keep the cache of a thread that did not use it since the change, and read the
/// freed memory in its statistics: `tsd_cleanup` has no case for `tsd_state_nominal_recompute`. Does nothing if no
/// hooks were ever installed.
pub(crate) fn touch_hooked_jemalloc() {
    if let Some(mallctl) = hooked_mallctl() {
        // SAFETY: jemalloc(3) gives the type; `install_hooks` stored the function of one that is never unloaded.
        unsafe { Mallctl::new(mallctl, None) }.has_mallctl(c"version");
    }
}

/// Removes the hooks in a forked child, which does not have the thread that ends the activation. Allocates
/// nothing, and takes none of memprof's locks.
pub(super) fn remove_hooks_in_child() {
    let mut handle = HANDLE.swap(0, Ordering::AcqRel);
    let Some(mallctl) = hooked_mallctl().filter(|_| handle != 0) else {
        return;
    };
    // SAFETY: jemalloc(3): a NUL-terminated name, and a value of the mallctl's size. If jemalloc refuses, the hooks
    // stay, and find that sampling is off.
    unsafe {
        mallctl(
            REMOVE.as_ptr(),
            ptr::null_mut(),
            ptr::null_mut(),
            (&raw mut handle).cast(),
            size_of::<usize>(),
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::fake::{Behaviour, fake_mallctl};

    /// A jemalloc that knows none of the mallctls of hooks.
    struct RefusingFake;
    impl Behaviour for RefusingFake {}

    #[test]
    fn refused_removal_keeps_handle() {
        let hooks = JemallocHookInstaller {
            mallctl: fake_mallctl::<RefusingFake>(),
        };
        HANDLE.store(7, Ordering::Release);
        let refused = hooks.remove_hooks().unwrap_err();
        assert!(
            refused.message.contains("experimental.hooks.remove"),
            "{refused}"
        );
        assert_eq!(HANDLE.swap(0, Ordering::AcqRel), 7);
        hooks.remove_hooks().unwrap();
    }
}
