//! Guard of the list of patched slots: admits one thread at a time, either memprof's or one of the program's.

use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::sleep::wait_a_millisecond;

/// Set while a thread patches or restores slots.
static IS_PATCHING: AtomicBool = AtomicBool::new(false);

/// Number of threads in [`PatchingGuard::acquire`].
static WAITING: AtomicU32 = AtomicU32::new(0);

/// Maximum number of waits of one millisecond for another thread that is patching slots.
const MAX_WAITS: u32 = 200;

/// Exclusive access to the list of patched slots, until it is dropped.
pub(crate) struct PatchingGuard;

impl PatchingGuard {
    /// Waits until no other thread is patching slots, and returns the guard. Meanwhile, [`Self::try_acquire`] fails in
    /// other threads. `None` if another thread is still patching after [`MAX_WAITS`] milliseconds.
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
        // Fails in a child that was forked during the wait, whose handler has set the number to 0.
        let decremented = |waiting: u32| waiting.checked_sub(1);
        let _was_zero = WAITING.fetch_update(Relaxed, Relaxed, decremented);
        acquired
    }

    /// Returns the guard without waiting. `None` if another thread is patching or waits for the guard: a program that
    /// keeps loading and unloading libraries would otherwise starve a waiting thread.
    pub(crate) fn try_acquire() -> Option<Self> {
        match WAITING.load(Relaxed) {
            0 => Self::acquire_if_free(),
            _ => None,
        }
    }

    /// Returns the guard without waiting, even if another thread waits for it. `None` if a thread is patching.
    fn acquire_if_free() -> Option<Self> {
        // A guard that is made only to be dropped would release that of the other thread.
        match IS_PATCHING.swap(true, Acquire) {
            true => None,
            false => Some(Self),
        }
    }
}

impl Drop for PatchingGuard {
    fn drop(&mut self) {
        IS_PATCHING.store(false, Release);
    }
}

/// Releases the guard in a forked child: a thread of the parent that held it or waited for it does not exist there.
pub(crate) fn release_in_child() {
    IS_PATCHING.store(false, Release);
    WAITING.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_attempt_releases_no_other_threads_guard() {
        let held = PatchingGuard::acquire().unwrap();
        for _ in 0..3 {
            assert!(PatchingGuard::acquire_if_free().is_none());
        }
        drop(held);
    }
}
