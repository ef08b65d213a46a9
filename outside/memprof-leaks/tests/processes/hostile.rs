//! Heaps with random content: the analysis ends, and reports the inconsistent parts.

use memprof_leaks::{Error, prove_leaks};

use crate::leaks::LONG_PAUSE;
use crate::start;

/// Each round takes at least the time between two snapshots.
const ROUNDS: usize = 4;

#[test]
fn random_heap_content_ends_analysis_without_harm() {
    let mut target = start("hostile", &[]);
    for round in 0..ROUNDS {
        match prove_leaks(target.pid, LONG_PAUSE, &|_| {}) {
            Ok(_) | Err(Error::NoHeap(_)) => {}
            Err(error) => panic!("{round}: {error}"),
        }
        target.write(b"\n");
        assert_eq!(target.line(), "done\n");
    }
}
