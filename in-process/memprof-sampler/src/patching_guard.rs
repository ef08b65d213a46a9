//! Admits one thread at a time to the list of patched slots: memprof's own, or one of the program's.

use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

use crate::sleep::wait_a_millisecond;

/// Set while a thread patches or restores slots.
static IS_PATCHING: AtomicBool = AtomicBool::new(false);

/// Most times that a thread waits a millisecond for another one that patches slots.
const MAX_WAITS: u32 = 200;

/// Guard of the list of patched slots, which one thread may change.
pub(crate) struct PatchingGuard;

impl PatchingGuard {
    /// Waits for another thread. `None` if it is still patching after [`MAX_WAITS`].
    pub(crate) fn acquire() -> Option<Self> {
        for _ in 0..MAX_WAITS {
            if let Some(guard) = Self::try_acquire() {
                return Some(guard);
            }
            wait_a_millisecond();
        }
        Self::try_acquire()
    }

    /// Returns the guard at once. `None` if another thread is patching.
    pub(crate) fn try_acquire() -> Option<Self> {
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
pub(crate) fn enter_child() {
    IS_PATCHING.store(false, Release);
}
