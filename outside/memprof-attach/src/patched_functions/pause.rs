//! Estimates for how long all threads of a process would be stopped, before any of them is.

use std::time::Duration;

use memprof_ptrace::process::ProcStatus;

use crate::error::AttachError;
use crate::target::Target;

/// Time to stop a thread, scan its stack and detach it: 3,000 threads took 119 ms on two busy processors.
const PAUSE_PER_THREAD: Duration = Duration::from_micros(50);
/// Time to write the patches.
const MIN_PAUSE: Duration = Duration::from_millis(1);

/// Fails with `LongPause` if all threads of the process would be stopped for longer than `max_pause`, by an estimate
/// from their number. Also fails if that number cannot be read.
pub(super) fn require_short_pause(target: &Target, max_pause: Duration) -> Result<(), AttachError> {
    let threads = ProcStatus::read_thread(target.pid)?.threads;
    let estimate = estimate_pause(threads);
    match estimate > max_pause {
        true => Err(AttachError::LongPause {
            threads,
            estimate,
            most: max_pause,
        }),
        false => Ok(()),
    }
}

/// Estimates for how long all threads are stopped: a fixed time, plus a time for each of the threads.
fn estimate_pause(threads: u32) -> Duration {
    MIN_PAUSE + PAUSE_PER_THREAD * threads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_grows_with_the_threads() {
        assert_eq!(estimate_pause(3000), Duration::from_millis(151));
        assert!(estimate_pause(1000) < Duration::from_millis(100));
    }
}
