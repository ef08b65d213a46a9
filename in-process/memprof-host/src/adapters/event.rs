//! What a thread waits for without a lock and without memory: it may exit in a signal handler.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::Timespec;
use rustix::thread::futex::{self, Flags};

/// Something that happens once in a process.
pub(super) struct OneTimeEvent(AtomicU32);

const AHEAD: u32 = 0;
const HAPPENED: u32 = 1;

impl OneTimeEvent {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(AHEAD))
    }

    /// Whoever waits goes on.
    pub(super) fn set(&self) {
        self.0.store(HAPPENED, Ordering::Release);
        // It fails for addresses only that are none.
        let _ = futex::wake(&self.0, Flags::PRIVATE, u32::MAX >> 1);
    }

    pub(super) fn has_happened(&self) -> bool {
        self.0.load(Ordering::Acquire) == HAPPENED
    }

    /// Returns when it has happened, at the latest after `patience`.
    pub(super) fn wait(&self, patience: Duration) {
        let begun = Instant::now();
        while self.0.load(Ordering::Acquire) == AHEAD {
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return;
            }
            let left = Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            };
            // Each reason to return is one to look again.
            let _ = futex::wait(&self.0, Flags::PRIVATE, AHEAD, Some(&left));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_waits_until_it_has_happened_and_no_longer() {
        static EVENT: OneTimeEvent = OneTimeEvent::new();
        let begun = Instant::now();
        EVENT.wait(Duration::from_millis(10));
        assert!(begun.elapsed() >= Duration::from_millis(10));
        assert!(!EVENT.has_happened());
        let waiting = thread::spawn(|| EVENT.wait(Duration::from_secs(60)));
        EVENT.set();
        waiting.join().unwrap();
        EVENT.wait(Duration::from_secs(60));
    }
}
