//! What becomes of memprof's sampler in forked children.
#![expect(unsafe_code, reason = "a handler of fork")]

use std::sync::atomic::{AtomicBool, Ordering};

use memprof_own::ProcessOnce;

use super::hooked::remove_in_child;

/// Whether forked children go on sampling: it began with the program, and nothing will end it.
static GOES_ON_IN_CHILDREN: AtomicBool = AtomicBool::new(false);

/// Forked children go on sampling: nothing will end it.
pub(super) fn keep_sampling_in_children() {
    GOES_ON_IN_CHILDREN.store(true, Ordering::Relaxed);
}

/// Forked children do not go on sampling: the activation has an end.
pub(crate) fn stop_sampling_in_children() {
    GOES_ON_IN_CHILDREN.store(false, Ordering::Relaxed);
}

/// A forked child has the slots, and nobody who ends what it samples.
pub(super) fn register_fork_handler() {
    static WATCHED: ProcessOnce = ProcessOnce::new();
    WATCHED.call(|| {
        // SAFETY: pthread_atfork(3): a function of this library, which is never unloaded; it only
        // stores to atomics.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if failed != 0 {
            log::warn!("forked children go on sampling: pthread_atfork refused");
        }
    });
}

extern "C" fn in_child() {
    if !GOES_ON_IN_CHILDREN.load(Ordering::Relaxed) {
        memprof_sampler::stop();
    }
    remove_in_child();
    memprof_sampler::reset_in_child();
}
