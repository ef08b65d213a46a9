//! Reading the loader's list beside fork(2).
//!
//! The C library does not free the lock of `dl_iterate_phdr(3)` in a forked child (glibc 2.36): a thread of
//! ours that reads the list just then would keep the child from ever reading it. So fork(2) waits until
//! none does, and readers wait until it is over. A fork that was under way already when this began does not wait, nor
//! one that has waited for long, nor the program's own dlopen(3) at any time: what such a fork left locked is given
//! back in the child (loader).
#![expect(unsafe_code, reason = "handlers of fork")]

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;

use crate::ProcessOnce;
use crate::loader_lock::{self, BETWEEN_LOOKS, LOOKS};

static READERS: AtomicU32 = AtomicU32::new(0);
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process that read last.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Somebody reads the list while it lives.
#[derive(Debug)]
pub struct ForkGuard(());

impl ForkGuard {
    /// Has forks wait from now on, also before anybody reads: the sooner, the fewer are under way by then.
    pub fn register_fork_handlers() {
        static WATCHED: ProcessOnce = ProcessOnce::new();
        WATCHED.call(|| {
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
            loader_lock::find_loader_lock();
            // A thread of the parent may have verified it at the fork.
            loader_lock::release_orphaned(false);
            loader_lock::verify_loader_lock();
        });
    }

    /// Begins when no fork is under way.
    pub fn acquire() -> Self {
        Self::register_fork_handlers();
        let own = std::process::id();
        if PROCESS.swap(own, SeqCst) != own {
            // In a child whose fork ran no handler of ours.
            loader_lock::release_orphaned(false);
        }
        for _ in 0..LOOKS {
            READERS.fetch_add(1, SeqCst);
            if FORKS.load(SeqCst) == 0 {
                return Self(());
            }
            READERS.fetch_sub(1, SeqCst);
            thread::sleep(BETWEEN_LOOKS);
        }
        READERS.fetch_add(1, SeqCst);
        Self(())
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // In a child that was forked meanwhile nobody reads.
        let less = |readers: u32| readers.checked_sub(1);
        let _none = READERS.fetch_update(SeqCst, SeqCst, less);
    }
}

extern "C" fn before_fork() {
    FORKS.fetch_add(1, SeqCst);
    // Not for ever: a program may fork in a signal handler that interrupted a reader, which then never comes to an end.
    for _ in 0..LOOKS {
        if READERS.load(SeqCst) == 0 {
            return;
        }
        thread::sleep(BETWEEN_LOOKS);
    }
}

extern "C" fn after_fork_in_parent() {
    FORKS.fetch_sub(1, SeqCst);
}

extern "C" fn after_fork_in_child() {
    loader_lock::release_orphaned(true);
    FORKS.store(0, SeqCst);
    READERS.store(0, SeqCst);
}
