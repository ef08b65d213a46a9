//! memprof's sampler in the hooks of a jemalloc: where that one is linked into the program, no slot of
//! the dynamic linker leads to it.
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

const REMOVE: &CStr = c"experimental.hooks.remove";

/// For a forked child: where the hooks are installed, by `mallctl`, and jemalloc's handle.
static MALLCTL: AtomicUsize = AtomicUsize::new(0);
static HANDLE: AtomicUsize = AtomicUsize::new(0);

/// A jemalloc that can be hooked.
#[derive(Debug)]
pub(super) struct JemallocHookInstaller {
    mallctl: Mallctl,
}

impl JemallocHookInstaller {
    /// None where it has no hooks.
    pub(super) fn of(jemalloc: &Jemalloc) -> Option<Self> {
        let mallctl = jemalloc.mallctl;
        mallctl.can_read(INSTALL_HOOKS).then_some(Self { mallctl })
    }

    /// Has jemalloc call the sampler from now on.
    ///
    /// # Errors
    /// jemalloc refused: four others are installed, say.
    pub(super) fn install(&self) -> Result<()> {
        if HANDLE.load(Ordering::Acquire) != 0 {
            return Ok(());
        }
        // A child that is forked while jemalloc's lock of its hooks is held could not remove them.
        let _no_fork = ForkGuard::acquire();
        let handle = self
            .mallctl
            .write_and_read(INSTALL_HOOKS, jemalloc_hooks())
            .map_err(|errno| Error::mallctl("experimental.hooks.install", errno))?;
        MALLCTL.store(self.mallctl.address(), Ordering::Release);
        HANDLE.store(handle, Ordering::Release);
        Ok(())
    }

    /// Has it call the sampler no more.
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

/// In a forked child nobody ends the activation. Allocates nothing, and takes no lock of ours.
pub(super) fn remove_in_child() {
    let mut handle = HANDLE.swap(0, Ordering::AcqRel);
    let address = MALLCTL.load(Ordering::Acquire);
    if handle == 0 || address == 0 {
        return;
    }
    // SAFETY: `install` stored a jemalloc's, which stays loaded.
    let mallctl = unsafe {
        mem::transmute::<*const c_void, MallctlFn>(ptr::with_exposed_provenance(address))
    };
    // SAFETY: jemalloc(3): a NUL-terminated name, and a value of the control's own size. Refused, they
    // stay, and find that nothing is sampled.
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
