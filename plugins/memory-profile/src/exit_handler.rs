//! The exit handler, for programs that never destroy their plugins, such as Redis or a program with a preloaded plugin.
#![expect(unsafe_code, reason = "the C library's list of what to run at exit")]

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Weak};

use memprof_own::{ForkGuard, LockFreeOnce};

use crate::profilers::Profilers;

/// Profilers of the process. The handler takes their exit dump.
static PROFILERS: LockFreeOnce<Weak<Profilers>> = LockFreeOnce::new();

/// Registers a handler that takes an exit dump of `profilers` at exit(3) or the end of `main`. Only the first profilers
/// are registered; later calls with others do nothing. A forked child inherits the handler, which then dumps the child.
/// The handler does nothing if the profilers were dropped, or in a child that has no profiler. If the C library refuses
/// the handler, only logs a warning.
pub(crate) fn register_exit_handler(profilers: &Arc<Profilers>) {
    let own = Arc::downgrade(profilers);
    if !PROFILERS.get_or_set(Weak::clone(&own)).ptr_eq(&own) {
        return;
    }
    // A child that is forked while the C library's list is locked could not run exit(3), which locks it too.
    let _no_fork = ForkGuard::acquire();
    // SAFETY: atexit(3): the handler is a function of this library, which is never unloaded.
    if unsafe { libc::atexit(take_exit_dump) } != 0 {
        log::warn!("the C library takes no more functions for the exit: no dump then");
    }
}

/// Handler of exit(3): takes the exit dump, if this process has a profiler whose rules request one, and waits up to
/// five seconds for it. Catches panics, which must not reach C code.
extern "C" fn take_exit_dump() {
    let take_dump = || {
        let profilers = PROFILERS.get().and_then(Weak::upgrade);
        if let Some(profiler) = profilers.as_ref().and_then(|all| all.existing_profiler()) {
            profiler.take_exit_dump();
        }
    };
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(take_dump)) {
        // The payload is leaked, because dropping it runs foreign code, which may panic again.
        std::mem::forget(payload);
    }
}
