//! Patches libraries and records the loaded code when the program calls the loader, in the thread of that call. The
//! periodic task would come up to 100 ms later, when a library may have copied function addresses, or may be unloaded.
#![expect(unsafe_code, reason = "the signal mask of the program's thread")]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memprof_sampler::GotSlots;

use crate::allocators::loaded_objects::{self, ForkGuard};
use crate::unwinder::update_code_history;

/// Number of libraries ever loaded at the time when slots were last patched.
static PATCHED_LOAD_COUNT: AtomicU64 = AtomicU64::new(0);
/// The slots to patch. Threads only try the lock; none waits for it.
static SLOTS: Mutex<Option<GotSlots>> = Mutex::new(None);

/// Makes `slots` be patched in libraries that are loaded from now on, unless slots are stored already. The slots of
/// libraries already loaded must be patched before. `no_fork` is the guard that delays forks meanwhile.
pub(super) fn start_patching_new_libraries(slots: &GotSlots, no_fork: &ForkGuard) {
    // A child created by clone(2) may have inherited a locked mutex, so this must not wait.
    if let Ok(mut shared) = SLOTS.try_lock() {
        shared.get_or_insert_with(|| slots.clone());
    }
    PATCHED_LOAD_COUNT.store(loaded_objects::load_count_under(no_fork), Relaxed);
    memprof_sampler::set_function_before_loader_calls(patch_newly_loaded_libraries);
}

/// Stops patching libraries, because another method intercepts the calls. Does nothing while another thread holds the
/// lock.
pub(super) fn stop_patching_new_libraries() {
    // A child created by clone(2) may have inherited a locked mutex, so this must not wait.
    if let Ok(mut shared) = SLOTS.try_lock() {
        *shared = None;
    }
}

/// Records the loaded code, clears the unwind rules if a library was loaded, and patches that library's slots. Runs
/// before each call that the program makes to the loader, in the thread of that call. Patches nothing during a fork or
/// while another thread patches; the periodic task does the work then. Allocates nothing.
extern "C" fn patch_newly_loaded_libraries() {
    // A runtime may stop its threads by signals and then scan the loaded objects. It must not stop this thread while it
    // holds the loader's lock.
    let Some(_blocked) = BlockedSignals::block_all() else {
        return;
    };
    let Some(no_fork) = ForkGuard::try_acquire() else {
        return;
    };
    update_code_history(&no_fork);
    let now = loaded_objects::load_count_under(&no_fork);
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

/// Original signal mask of the calling thread, restored on drop.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    /// Blocks all signals in the calling thread, until the result is dropped. `None` if the kernel refuses.
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
