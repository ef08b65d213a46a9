//! Limits the bytes of files that are held at once. Files are read on all processors, and each may be made to be as
//! large as its limit allows.

use std::sync::{Condvar, Mutex, PoisonError};

/// Bytes that all threads together may hold.
#[derive(Debug)]
pub(super) struct ReadPermits {
    total: u64,
    free: Mutex<u64>,
    returned: Condvar,
}

/// Bytes that one thread holds until it drops this.
#[derive(Debug)]
pub(super) struct ReadPermit<'a> {
    permits: &'a ReadPermits,
    bytes: u64,
}

impl ReadPermits {
    /// Creates permits for threads that together may hold `total` bytes.
    pub(super) fn new(total: u64) -> Self {
        Self {
            total,
            free: Mutex::new(total),
            returned: Condvar::new(),
        }
    }

    /// Waits until `bytes` are free, or all bytes if `bytes` exceeds their total. A thread must hold one permit only,
    /// because threads that wait while they hold others may wait for each other.
    pub(super) fn acquire(&self, bytes: u64) -> ReadPermit<'_> {
        let bytes = bytes.min(self.total);
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.returned.wait_while(free, |free| *free < bytes);
        *waited.unwrap_or_else(PoisonError::into_inner) -= bytes;
        ReadPermit {
            permits: self,
            bytes,
        }
    }
}

impl Drop for ReadPermit<'_> {
    fn drop(&mut self) {
        let free = self.permits.free.lock();
        *free.unwrap_or_else(PoisonError::into_inner) += self.bytes;
        self.permits.returned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn threads_hold_no_more_than_the_total() {
        let permits = ReadPermits::new(100);
        let (held, most) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for bytes in [60, 30, 50, 100, 1000, 0, 10, 90] {
                let (permits, held, most) = (&permits, &held, &most);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let permit = permits.acquire(bytes);
                        let now = held.fetch_add(permit.bytes, Ordering::SeqCst) + permit.bytes;
                        most.fetch_max(now, Ordering::SeqCst);
                        thread::yield_now();
                        held.fetch_sub(permit.bytes, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 100);
        assert_eq!(*permits.free.lock().unwrap(), 100);
    }
}
