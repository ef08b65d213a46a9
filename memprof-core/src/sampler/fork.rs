//! Stops or continues memprof's sampler in forked children.
#![expect(unsafe_code, reason = "a handler of fork")]

use std::sync::atomic::{AtomicBool, Ordering};

use memprof_own::ProcessOnce;

use super::jemalloc_hooks::remove_hooks_in_child;

/// Whether forked children keep sampling: true if sampling began with the program and has no time limit.
static SAMPLES_IN_CHILDREN: AtomicBool = AtomicBool::new(false);

/// Makes forked children keep sampling. For a process that is sampled from its start, without a time limit.
pub(super) fn keep_sampling_in_children() {
    SAMPLES_IN_CHILDREN.store(true, Ordering::Relaxed);
}

/// Whether sampling is on, began with the program (in this process or in an ancestor that forked it), and continues in
/// forked children.
pub(super) fn has_sampled_since_program_start() -> bool {
    memprof_sampler::interval() > 0 && SAMPLES_IN_CHILDREN.load(Ordering::Relaxed)
}

/// Makes forked children stop sampling, because the activation has a time limit.
pub(crate) fn stop_sampling_in_children() {
    SAMPLES_IN_CHILDREN.store(false, Ordering::Relaxed);
}

/// Registers the fork handler that stops sampling in a child: the child has the patched slots, but not the thread that
/// ends the activation. Idempotent.
pub(super) fn register_fork_handler() {
    static REGISTERED: ProcessOnce = ProcessOnce::new();
    REGISTERED.call(|| {
        // SAFETY: pthread_atfork(3): the handler is a function of this library, which is never unloaded. The handler
        // only stores to atomics.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(stop_or_continue_in_child)) };
        if failed != 0 {
            log::warn!("forked children go on sampling: pthread_atfork refused");
        }
    });
}

/// Fork handler: stops sampling unless [`SAMPLES_IN_CHILDREN`] is set, removes jemalloc's hooks, and resets the
/// sampler's state for the child.
extern "C" fn stop_or_continue_in_child() {
    if !SAMPLES_IN_CHILDREN.load(Ordering::Relaxed) {
        memprof_sampler::stop();
    }
    remove_hooks_in_child();
    memprof_sampler::reset_in_child();
}
