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
    pub(super) fn install(&self) -> Result<()> {
        if HANDLE.load(Ordering::Acquire) != 0 {
            return Ok(());
        }
        // A child forked while jemalloc holds the lock of its hooks could not remove them.
        let _no_fork = ForkGuard::acquire();
        let handle = self
            .mallctl
            .write_and_read(INSTALL_HOOKS, jemalloc_hooks())
            .map_err(|errno| Error::mallctl("experimental.hooks.install", errno))?;
        MALLCTL.store(self.mallctl.address(), Ordering::Release);
        HANDLE.store(handle, Ordering::Release);
        Ok(())
    }

    /// Removes the hooks. Does nothing if they are not installed.
    ///
    /// # Errors
    /// jemalloc refused.
    pub(super) fn remove(&self) -> Result<()> {
        let _no_fork = ForkGuard::acquire();
        match HANDLE.swap(0, Ordering::AcqRel) {
            0 => Ok(()),
            handle => self
                .mallctl
                .write(REMOVE, handle)
                .map_err(|errno| Error::mallctl("experimental.hooks.remove", errno)),
        }
    }
}

/// Removes the hooks in a forked child, which lacks the thread that ends the activation. Allocates nothing, and takes
/// none of memprof's locks.
pub(super) fn remove_hooks_in_child() {
    let mut handle = HANDLE.swap(0, Ordering::AcqRel);
    let address = MALLCTL.load(Ordering::Acquire);
    if handle == 0 || address == 0 {
        return;
    }
    // SAFETY: `install` stored the address of a jemalloc's `mallctl`, which is never unloaded.
    let mallctl = unsafe {
        mem::transmute::<*const c_void, MallctlFn>(ptr::with_exposed_provenance(address))
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
