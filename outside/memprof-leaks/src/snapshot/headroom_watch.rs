//! Ends the copy of a process before memory runs out.
//!
//! A process may write to all of its pages in some milliseconds, and the kernel duplicates each. Where memory runs out,
//! the kernel ends the copy first; but while memprof reads the copy, its memory is released too late, and the kernel
//! then ends the process, too.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::headroom::{MemoryLimit, memory_limits};

/// Time between two looks at the memory that is left.
const INTERVAL: Duration = Duration::from_millis(5);
/// Time that it may take until a killed copy's memory is released, on a busy machine.
const RELEASE_TIME: Duration = Duration::from_millis(100);

/// A thread that kills a copy as soon as memory decreases so fast that it could run out. It ends when this value is
/// dropped, before the copy's pid may be reused.
#[derive(Debug)]
pub(super) struct HeadroomWatch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HeadroomWatch {
    /// Starts a thread that watches the memory of process `pid`, and of the machine, and kills the process `copy`
    /// before memory runs out. If no thread can be started, nothing is watched.
    pub(super) fn start(pid: u32, copy: u32) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new().spawn(move || {
            let mut limits: Vec<_> = memory_limits(pid).map(WatchedLimit::new).collect();
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if limits.iter_mut().any(WatchedLimit::may_run_out) {
                    // It fails if the copy was killed already.
                    let _ = kill(Pid::from_raw(copy.cast_signed()), Signal::SIGKILL);
                    return;
                }
            }
        });
        Self {
            stop: Some(stop),
            thread: thread.ok(),
        }
    }
}

impl Drop for HeadroomWatch {
    fn drop(&mut self) {
        // Without a sender, the thread's wait ends, and so does the thread.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the watch does not panic");
        }
    }
}

/// A limit, with its usage when it was last looked at.
struct WatchedLimit {
    limit: MemoryLimit,
    time: Instant,
    /// `None` if it cannot be read.
    used: Option<u64>,
}

impl WatchedLimit {
    /// Reads the clock and the usage, from which the first call of [`may_run_out`](Self::may_run_out) counts.
    fn new(limit: MemoryLimit) -> Self {
        Self {
            time: Instant::now(),
            used: limit.read_usage(),
            limit,
        }
    }

    /// Whether the rest could be used up before a killed copy has released its memory, if the usage grows as it did
    /// since the last call. Reads the clock and the usage, and stores both for the next call. False if the usage cannot
    /// be read.
    fn may_run_out(&mut self) -> bool {
        let (now, used) = (Instant::now(), self.limit.read_usage());
        let (elapsed, before) = (now - self.time, self.used);
        (self.time, self.used) = (now, used);
        let Some((before, used)) = before.zip(used) else {
            return false;
        };
        let grown = used.saturating_sub(before);
        self.limit.available = (self.limit.available + before).saturating_sub(used);
        let is_exhausted_soon =
            |available| is_exhausted_within(RELEASE_TIME, available, grown, elapsed);
        if !is_exhausted_soon(self.limit.available) {
            return false;
        }
        // The growth may be page cache, which the kernel drops.
        if let Some(available) = self.limit.read_available() {
            self.limit.available = available;
        }
        is_exhausted_soon(self.limit.available)
    }
}

/// Whether `available` bytes are used up within `time` at a rate of `grown` bytes in `elapsed`.
fn is_exhausted_within(time: Duration, available: u64, grown: u64, elapsed: Duration) -> bool {
    let rate = u128::from(grown) * time.as_micros();
    rate > u128::from(available) * elapsed.as_micros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_is_ended_while_fast_growth_leaves_time() {
        let check = |available: u64, grown: u64, expected| {
            let found = is_exhausted_within(RELEASE_TIME, available << 20, grown << 20, INTERVAL);
            assert_eq!(found, expected, "{available} {grown}");
        };
        // MiB that are left, and those that were used in 5 ms.
        check(70, 8, true);
        check(30, 2, true);
        check(30, 1, false);
        check(1000, 8, false);
        check(0, 0, false);
        check(0, 1, true);
    }
}
