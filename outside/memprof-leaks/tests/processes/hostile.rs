//! Heaps that say what they like: looking at them ends, and says what did not prove itself.

use memprof_leaks::{Error, prove};

use crate::leaks::PATIENT;
use crate::start;

/// Each takes the time between two snapshots, at least.
const ROUNDS: usize = 4;

#[test]
fn a_heap_of_nonsense_ends_the_look_and_not_the_process() {
    let mut target = start("hostile", &[]);
    for round in 0..ROUNDS {
        match prove(target.pid, PATIENT, &|_| {}) {
            Ok(_) | Err(Error::NoHeap(_)) => {}
            Err(error) => panic!("{round}: {error}"),
        }
        target.write(b"\n");
        assert_eq!(target.line(), "done\n");
    }
}
