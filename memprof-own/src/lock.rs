//! A lock for what is static, that a forked child finds free: the thread that holds it in the parent
//! is not there to give it back.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex::{self, Flags};

/// Guards what a holder leaves usable at any moment, or sets anew first.
#[derive(Debug, Default)]
pub struct ProcessLock {
    /// The process that holds it; 0: nobody.
    holder: AtomicU32,
}

/// Gives the lock back when it is dropped.
#[derive(Debug)]
pub struct Held<'a>(&'a AtomicU32);

impl ProcessLock {
    /// Held by nobody.
    pub const fn new() -> Self {
        Self {
            holder: AtomicU32::new(0),
        }
    }

    /// Waits until no other thread of this process holds it.
    pub fn lock(&self) -> Held<'_> {
        let own = process::id();
        let mut holder = 0;
        loop {
            let taken =
                self.holder
                    .compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed);
            match taken {
                Ok(_) => return Held(&self.holder),
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

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
        // It fails for addresses only that are none.
        let _ = futex::wake(self.0, Flags::PRIVATE, 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
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
}
