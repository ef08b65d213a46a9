//! Keeps fork(2) and readers of the loader's list of objects apart.
//!
//! glibc 2.36 does not release the lock of `dl_iterate_phdr(3)` in a forked child: if a thread of memprof read the list
//! during the fork, the child could never read it. So fork(2) waits until no thread reads the list, or opens a loaded
//! object, which changes it; and these threads wait until the fork is over. Three kinds of forks are not covered: those
//! that began before the handlers were registered, those whose wait timed out, and those during a dlopen(3) of the
//! program. The child releases a lock that such a fork left locked (`loader_lock`).
#![expect(unsafe_code, reason = "pthread_atfork(3)")]

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;

use crate::ProcessOnce;
use crate::loader_lock::{self, MAX_POLLS, POLL_INTERVAL};

/// Number of guards that exist in this process.
static READERS: AtomicU32 = AtomicU32::new(0);
/// Number of forks in progress.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Id of the process that acquired a guard last; 0 if none did.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Guard that delays fork(2), so that its holder can read the loader's list.
#[derive(Debug)]
pub struct ForkGuard(());

impl ForkGuard {
    /// Registers the fork handlers and finds the loader's lock, once per process. Called early, so that few forks
    /// happen without the handlers. An error of `pthread_atfork(3)` is only logged.
    pub fn register_fork_handlers() {
        static REGISTERED: ProcessOnce = ProcessOnce::new();
        REGISTERED.call(|| {
            // SAFETY: pthread_atfork(3): functions of this library, which is never unloaded.
            if unsafe {
                libc::pthread_atfork(
                    Some(before_fork),
                    Some(after_fork_in_parent),
                    Some(after_fork_in_child),
                )
            } != 0
            {
                log::warn!("a fork does not wait for memprof: pthread_atfork refused");
            }
            loader_lock::find_and_store_loader_lock();
            // In a forked child, the lock may be held by a thread of the parent that was in
            // `forget_loader_lock_unless_verified`.
            loader_lock::release_orphaned_lock(false);
            loader_lock::forget_loader_lock_unless_verified();
        });
    }

    /// Acquires a guard without waiting, in a thread of the program. `None` if a fork is in progress, perhaps in this
    /// thread, or if this process has never called [`acquire`](Self::acquire): it may then lack the fork handlers.
    pub fn try_acquire() -> Option<Self> {
        if PROCESS.load(SeqCst) != std::process::id() {
            return None;
        }
        // Counted before the check for forks, so that a fork that begins meanwhile waits for this guard.
        READERS.fetch_add(1, SeqCst);
        let guard = Self(());
        // If a fork is in progress, the guard is dropped, which ends the count.
        (FORKS.load(SeqCst) == 0).then_some(guard)
    }

    /// Acquires a guard. Registers the fork handlers first if this process has not done so. Waits up to 100 ms until no
    /// fork is in progress, and returns the guard even if one still is. Forks that begin later wait up to 100 ms for
    /// the guard to be dropped.
    pub fn acquire() -> Self {
        Self::register_fork_handlers();
        let own = std::process::id();
        if PROCESS.swap(own, SeqCst) != own {
            // The first guard of this process, which may be a child of a fork that ran no handler.
            loader_lock::release_orphaned_lock(false);
        }
        for _ in 0..MAX_POLLS {
            READERS.fetch_add(1, SeqCst);
            let guard = Self(());
            if FORKS.load(SeqCst) == 0 {
                return guard;
            }
            drop(guard);
            thread::sleep(POLL_INTERVAL);
        }
        READERS.fetch_add(1, SeqCst);
        Self(())
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // Fails in a child in which the fork handler has already set the count to 0.
        let decremented = |readers: u32| readers.checked_sub(1);
        let _was_zero = READERS.fetch_update(SeqCst, SeqCst, decremented);
    }
}

/// Fork handler before the fork: makes new readers of the loader's list wait, and waits up to 100 ms for current
/// readers.
extern "C" fn before_fork() {
    FORKS.fetch_add(1, SeqCst);
    // The wait is limited: if a program forks in a signal handler that interrupted a reader, that reader cannot finish.
    for _ in 0..MAX_POLLS {
        if READERS.load(SeqCst) == 0 {
            return;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Fork handler in the parent: lets readers continue.
extern "C" fn after_fork_in_parent() {
    FORKS.fetch_sub(1, SeqCst);
}

/// Fork handler in the child: releases the loader's lock if a thread of the parent held it, and resets the counts of
/// readers and forks.
extern "C" fn after_fork_in_child() {
    loader_lock::release_orphaned_lock(true);
    FORKS.store(0, SeqCst);
    READERS.store(0, SeqCst);
}
