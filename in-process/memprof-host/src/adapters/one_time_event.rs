//! An event that needs no lock and no memory, so that a thread can wait for it when it exits in a signal handler.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use memprof_own::coarse_monotonic_time;
use rustix::thread::Timespec;
use rustix::thread::futex::{self, Flags};

/// An event that happens once in a process.
pub(super) struct OneTimeEvent(AtomicU32);

const PENDING: u32 = 0;
const HAPPENED: u32 = 1;

impl OneTimeEvent {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(PENDING))
    }

    /// Sets the event, and wakes all waiting threads.
    pub(super) fn set(&self) {
        self.0.store(HAPPENED, Ordering::Release);
        // The largest number of threads that futex(2) accepts, so that all waiting threads wake up. It fails only for
        // invalid addresses.
        let _ = futex::wake(&self.0, Flags::PRIVATE, u32::MAX >> 1);
    }

    /// Returns whether the event was set, without waiting.
    pub(super) fn has_happened(&self) -> bool {
        self.0.load(Ordering::Acquire) == HAPPENED
    }

    /// Waits until the event has happened or `timeout` has passed.
    pub(super) fn wait(&self, timeout: Duration) {
        // The coarse clock, because the waiting thread may be the program's, and may be forbidden to execute RDTSC, by
        // which other clocks are read.
        let start = coarse_monotonic_time();
        while self.0.load(Ordering::Acquire) == PENDING {
            let remaining = timeout.saturating_sub(coarse_monotonic_time().saturating_sub(start));
            if remaining.is_zero() {
                return;
            }
            let remaining = Timespec {
                tv_sec: remaining.as_secs().cast_signed(),
                tv_nsec: remaining.subsec_nanos().into(),
            };
            // The loop checks the event again, whatever the result.
            let _ = futex::wait(&self.0, Flags::PRIVATE, PENDING, Some(&remaining));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn wait_ends_with_event_or_timeout() {
        static EVENT: OneTimeEvent = OneTimeEvent::new();
        let start = Instant::now();
        EVENT.wait(Duration::from_millis(10));
        assert!(start.elapsed() >= Duration::from_millis(10));
        assert!(!EVENT.has_happened());
        let waiter = thread::spawn(|| EVENT.wait(Duration::from_secs(60)));
        EVENT.set();
        waiter.join().unwrap();
        EVENT.wait(Duration::from_secs(60));
    }
}
