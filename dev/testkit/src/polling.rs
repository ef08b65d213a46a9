//! Waiting for what announces no change.

use std::thread;
use std::time::Duration;

/// Short against what tests wait for, and long against a read of a file in /proc.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Sleeps for a poll interval of 5 ms, between two polls of a state that announces no change. A loop without it takes a
/// processor from the process that it waits for.
pub fn pause() {
    thread::sleep(POLL_INTERVAL);
}
