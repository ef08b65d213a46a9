//! The exit handler, for programs that never destroy their plugins, such as Redis or a program with a
//! preloaded plugin.
#![expect(unsafe_code, reason = "the C library's list of what to run at exit")]

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Weak};

use memprof_own::{ForkGuard, LockFreeOnce};

use crate::profilers::Profilers;

/// Profilers of the process whose exit dump the handler takes.
static PROFILERS: LockFreeOnce<Weak<Profilers>> = LockFreeOnce::new();

/// Registers `Profiler::take_exit_dump` for exit(3) and the end of `main`, for the first profilers that are
/// passed; a call with others does nothing. A forked child inherits the handler, which then dumps the child.
/// The handler does nothing if the profilers were dropped by then, or in a child without one. If the C library
/// refuses the handler, a warning is logged.
pub(crate) fn register_exit_handler(profilers: &Arc<Profilers>) {
    let own = Arc::downgrade(profilers);
    if !PROFILERS.get_or_set(Weak::clone(&own)).ptr_eq(&own) {
        return;
    }
    // In a forked child, the C library does not release the lock of its list, which exit(3) acquires.
    let _no_fork = ForkGuard::acquire();
    // SAFETY: atexit(3): the handler is a function of this library, which is never unloaded.
    if unsafe { libc::atexit(on_exit) } != 0 {
        log::warn!("the C library takes no more functions for the exit: no dump then");
    }
}

/// Handler of exit(3): takes the exit dump; a panic does not leave it.
extern "C" fn on_exit() {
    let take_dump = || {
        let profilers = PROFILERS.get().and_then(Weak::upgrade);
        if let Some(profiler) = profilers.as_ref().and_then(|all| all.existing_profiler()) {
            profiler.take_exit_dump();
        }
    };
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(take_dump)) {
        // Forgotten: dropping a payload runs foreign code, which may panic again.
        std::mem::forget(payload);
    }
}
