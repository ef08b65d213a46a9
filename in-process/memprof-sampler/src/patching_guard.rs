//! Admits one thread at a time to the list of patched slots: memprof's own, or one of the program's.

use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::sleep::wait_a_millisecond;

/// Set while a thread patches or restores slots.
static IS_PATCHING: AtomicBool = AtomicBool::new(false);

/// Number of threads in [`PatchingGuard::acquire`].
static WAITING: AtomicU32 = AtomicU32::new(0);

/// Most times that a thread waits a millisecond for another one that patches slots.
const MAX_WAITS: u32 = 200;

/// Guard of the list of patched slots, which one thread may change.
pub(crate) struct PatchingGuard;

impl PatchingGuard {
    /// Waits for another thread. `None` if it is still patching after [`MAX_WAITS`].
    pub(crate) fn acquire() -> Option<Self> {
        WAITING.fetch_add(1, Relaxed);
        let mut acquired = Self::acquire_if_free();
        for _ in 0..MAX_WAITS {
            if acquired.is_some() {
                break;
            }
            wait_a_millisecond();
            acquired = Self::acquire_if_free();
        }
        WAITING.fetch_sub(1, Relaxed);
        acquired
    }

    /// Returns the guard at once. `None` if another thread is patching, or waits to: a program that does nothing but load
    /// and unload libraries would never let it.
    pub(crate) fn try_acquire() -> Option<Self> {
        match WAITING.load(Relaxed) {
            0 => Self::acquire_if_free(),
            _ => None,
        }
    }

    fn acquire_if_free() -> Option<Self> {
        let was_patching = IS_PATCHING.swap(true, Acquire);
        (!was_patching).then_some(Self)
    }
}

impl Drop for PatchingGuard {
    fn drop(&mut self) {
        IS_PATCHING.store(false, Release);
    }
}

/// Releases the list of patched slots in a forked child, which has no other thread.
pub(crate) fn release_in_child() {
    IS_PATCHING.store(false, Release);
    WAITING.store(0, Relaxed);
}
