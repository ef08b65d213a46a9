//! A lock for what is static, that a forked child finds free: the thread that holds it in the parent
//! is not there to give it back.

use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::futex::{self, Flags};

/// Guards what a holder leaves usable at any moment, or sets anew first.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct ProcessLock {
    /// The process that holds it; 0: nobody.
    holder: AtomicU32,
}

/// Gives the lock back when it is dropped.
#[derive(Debug)]
pub struct ProcessLockGuard<'a>(&'a AtomicU32);

impl ProcessLock {
    /// Held by nobody.
    pub const fn new() -> Self {
        Self {
            holder: AtomicU32::new(0),
        }
    }

    /// Waits until no other thread of this process holds it.
    pub fn lock(&self) -> ProcessLockGuard<'_> {
        let own = process::id();
        let mut holder = 0;
        loop {
            let taken =
                self.holder
                    .compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed);
            match taken {
                Ok(_) => return ProcessLockGuard(&self.holder),
                Err(other) if other == own => {
                    // Each reason to return is one to look again.
                    let _ = futex::wait(&self.holder, Flags::PRIVATE, own, None);
                    holder = 0;
                }
                // Free by now, or of the process that forked this one.
                Err(other) => holder = other,
            }
        }
    }
}

impl Drop for ProcessLockGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
        // It fails for addresses only that are none.
        let _ = futex::wake(self.0, Flags::PRIVATE, 1);
    }
}

/// Something that is done once. A child that is forked while a thread is at it does it again, and
/// does not wait for that thread as it would with [`std::sync::Once`].
#[derive(Debug, Default)]
pub struct ProcessOnce {
    lock: ProcessLock,
    is_done: AtomicBool,
}

impl ProcessOnce {
    /// Not done yet.
    pub const fn new() -> Self {
        Self {
            lock: ProcessLock::new(),
            is_done: AtomicBool::new(false),
        }
    }

    /// Returns when it was done, here or by another thread.
    pub fn call(&self, work: impl FnOnce()) {
        if self.is_done.load(Ordering::Acquire) {
            return;
        }
        let _held = self.lock.lock();
        if !self.is_done.load(Ordering::Acquire) {
            work();
            self.is_done.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        static LOCK: ProcessLock = ProcessLock::new();
        static INSIDE: AtomicBool = AtomicBool::new(false);
        let work = || {
            for _ in 0..10_000 {
                let _held = LOCK.lock();
                assert!(!INSIDE.swap(true, Ordering::Relaxed));
                INSIDE.store(false, Ordering::Relaxed);
            }
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(work);
            }
        });
    }

    #[test]
    fn what_another_process_held_is_free() {
        let lock = ProcessLock {
            holder: AtomicU32::new(process::id() + 1),
        };
        drop(lock.lock());
        assert_eq!(lock.holder.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_another_process_began_is_done_again_and_once() {
        let once = ProcessOnce {
            lock: ProcessLock {
                holder: AtomicU32::new(process::id() + 1),
            },
            is_done: AtomicBool::new(false),
        };
        let times = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    once.call(|| {
                        times.fetch_add(1, Ordering::Relaxed);
                    });
                });
            }
        });
        assert_eq!(times.into_inner(), 1);
    }
}
