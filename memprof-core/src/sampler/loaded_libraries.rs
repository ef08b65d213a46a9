//! Patches libraries, and records which code is loaded, when the program calls the loader, in the program's own thread:
//! the periodic task comes up to 100 ms later, when a library may have filled its tables, or be gone.
#![expect(unsafe_code, reason = "the signal mask of the program's thread")]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memprof_sampler::GotSlots;

use crate::allocators::loaded_objects::{self, ForkGuard};
use crate::unwinder::update_code_history;

/// Number of libraries ever loaded when slots were last patched.
static PATCHED_LOAD_COUNT: AtomicU64 = AtomicU64::new(0);
/// The slots to patch. No thread waits for it.
static SLOTS: Mutex<Option<GotSlots>> = Mutex::new(None);

/// Lets `slots` be patched in libraries that are loaded from now on. Those that are loaded now must be patched
/// already.
pub(super) fn start_patching(slots: &GotSlots, reading: &ForkGuard) {
    // A child that was forked by clone(2) may have inherited it locked.
    if let Ok(mut shared) = SLOTS.try_lock() {
        shared.get_or_insert_with(|| slots.clone());
    }
    PATCHED_LOAD_COUNT.store(loaded_objects::load_count_under(reading), Relaxed);
    memprof_sampler::set_before_loader_call(notice_loaded_libraries);
}

/// Patches no libraries any more, because the calls are intercepted by another method.
pub(super) fn stop_patching() {
    // A child that was forked by clone(2) may have inherited it locked.
    if let Ok(mut shared) = SLOTS.try_lock() {
        *shared = None;
    }
}

/// Records the loaded code, and patches the slots of libraries that were loaded since, before a call of the program
/// to the loader. Does nothing while a fork is under way or another thread runs it: the periodic task then does the
/// work. Allocates nothing.
extern "C" fn notice_loaded_libraries() {
    // A runtime that stops its threads by signals, to scan the loaded objects meanwhile, must not stop this one while
    // it holds the loader's lock.
    let Some(_blocked) = BlockedSignals::block_all() else {
        return;
    };
    let Some(reading) = ForkGuard::try_acquire() else {
        return;
    };
    update_code_history(&reading);
    let now = loaded_objects::load_count_under(&reading);
    if PATCHED_LOAD_COUNT.load(Relaxed) == now {
        return;
    }
    if let Ok(mut slots) = SLOTS.try_lock()
        && let Some(slots) = &mut *slots
    {
        PATCHED_LOAD_COUNT.store(now, Relaxed);
        memprof_unwind::clear_rules();
        slots.patch_new_objects();
    }
}

/// Signal mask of the calling thread, restored when dropped.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    /// Blocks all signals. `None` if the kernel refuses.
    fn block_all() -> Option<Self> {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: sigfillset(3) fills the set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: pthread_sigmask(3): `all` is filled, and `before` has room for a set.
        let failed =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: pthread_sigmask(3) filled `before`.
        (failed == 0).then(|| Self(unsafe { before.assume_init() }))
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: pthread_sigmask(3): the set that this thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}
