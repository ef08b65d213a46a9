//! The end of a program that never tells its plugins so, as Redis and a preloaded one.
#![expect(unsafe_code, reason = "the C library's list of what to run at exit")]

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Weak};

use memprof_core::Profiler;
use memprof_own::{ForkGuard, LockFreeOnce};

static PROFILER: LockFreeOnce<Weak<Profiler>> = LockFreeOnce::new();

/// Has [`Profiler::exit`] called by exit(3) and by the end of `main`. A profiler that has ended by
/// then does nothing.
pub(crate) fn register_exit_handler(profiler: &Arc<Profiler>) {
    let own = Arc::downgrade(profiler);
    if !PROFILER.get_or_set(Weak::clone(&own)).ptr_eq(&own) {
        return;
    }
    // The C library does not free the lock of its list in a forked child, which exit(3) takes.
    let _no_fork = ForkGuard::acquire();
    // SAFETY: atexit(3): a function of this library, which is never unloaded.
    if unsafe { libc::atexit(on_exit) } != 0 {
        log::warn!("the C library takes no more functions for the exit: no dump then");
    }
}

extern "C" fn on_exit() {
    let end = || {
        if let Some(profiler) = PROFILER.get().and_then(Weak::upgrade) {
            profiler.take_exit_dump();
        }
    };
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(end)) {
        // Dropping a payload runs foreign code, which may panic again.
        std::mem::forget(payload);
    }
}
