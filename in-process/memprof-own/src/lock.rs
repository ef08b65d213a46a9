//! A lock for static data that is never locked in a new child: the child lacks the thread of the parent that held it.

use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::futex::{self, Flags};

/// A lock that fork(2) releases in the child. It suits data that its holder keeps consistent at any moment, or resets
/// first.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct ProcessLock {
    /// Id of the process whose thread holds the lock; 0 if it is unlocked.
    holder: AtomicU32,
}

/// Guard that releases the lock on drop.
#[derive(Debug)]
pub struct ProcessLockGuard<'a>(&'a AtomicU32);

impl ProcessLock {
    /// Creates a lock that no thread holds.
    pub const fn new() -> Self {
        Self {
            holder: AtomicU32::new(0),
        }
    }

    /// Acquires the lock. Blocks while a thread of this process holds it, so for ever if that is the calling one. A
    /// lock that a thread of the parent held at a fork is free in the child.
    pub fn lock(&self) -> ProcessLockGuard<'_> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            // The result is ignored: the loop tries again after a wake-up, an interruption or a changed value.
            let _ = futex::wait(&self.holder, Flags::PRIVATE, process::id(), None);
        }
    }

    /// Acquires the lock. `None` if a thread of this process holds it, be it the calling one. A lock that a thread of
    /// the parent held at a fork is free in the child.
    pub fn try_lock(&self) -> Option<ProcessLockGuard<'_>> {
        let own = process::id();
        // The lock is also free if its holder is another process: a parent of this one.
        let acquire = |holder: u32| (holder != own).then_some(own);
        let acquired = self
            .holder
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, acquire);
        acquired.ok().map(|_| ProcessLockGuard(&self.holder))
    }
}

impl Drop for ProcessLockGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
        // futex(2) fails only for invalid addresses.
        let _ = futex::wake(self.0, Flags::PRIVATE, 1);
    }
}

/// An action that runs once per process. If a child is forked while a thread runs it, the child runs it again. With
/// [`std::sync::Once`], the child would wait for that thread forever.
#[derive(Debug, Default)]
pub struct ProcessOnce {
    lock: ProcessLock,
    is_done: AtomicBool,
}

impl ProcessOnce {
    /// Creates a `ProcessOnce` with its action not done.
    pub const fn new() -> Self {
        Self {
            lock: ProcessLock::new(),
            is_done: AtomicBool::new(false),
        }
    }

    /// Runs `work` unless it was done already. Blocks until this or another thread has done it.
    pub fn call(&self, work: impl FnOnce()) {
        if self.is_done.load(Ordering::Acquire) {
            return;
        }
        let _guard = self.lock.lock();
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
    fn lock_admits_one_thread() {
        static LOCK: ProcessLock = ProcessLock::new();
        static INSIDE: AtomicBool = AtomicBool::new(false);
        let work = || {
            for _ in 0..10_000 {
                let _guard = LOCK.lock();
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
    fn lock_held_by_another_process_is_free() {
        let lock = ProcessLock {
            holder: AtomicU32::new(process::id() + 1),
        };
        drop(lock.lock());
        assert_eq!(lock.holder.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn once_begun_in_another_process_runs_once() {
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
