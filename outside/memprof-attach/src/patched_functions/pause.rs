//! How long all threads of a process will stand still, estimated before any of them does.

use std::time::Duration;

use memprof_ptrace::process::ProcStatus;

use crate::error::Error;
use crate::target::Target;

/// For one thread to be stopped, to have its stack searched and to be let go: 3,000 took 119 ms on two busy processors.
const OF_A_THREAD: Duration = Duration::from_micros(50);
/// For the writing.
const LEAST: Duration = Duration::from_millis(1);

/// Fails where they would stand still for longer than that.
pub(super) fn require_short(target: &Target, most: Duration) -> Result<(), Error> {
    let threads = ProcStatus::read_thread(target.pid)?.threads;
    let estimate = estimate(threads);
    match estimate > most {
        true => Err(Error::LongPause {
            threads,
            estimate,
            most,
        }),
        false => Ok(()),
    }
}

fn estimate(threads: u32) -> Duration {
    LEAST + OF_A_THREAD * threads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_grows_with_the_threads() {
        assert_eq!(estimate(3000), Duration::from_millis(151));
        assert!(estimate(1000) < Duration::from_millis(100));
    }
}
