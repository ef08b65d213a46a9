//! Uncopied memory, and objects that are written through hidden pointers.

use memprof_leaks::{AnalysisOptions, Proof, prove_leaks};

use crate::leaks::LONG_PAUSE;
use crate::start;

/// Usable sizes in glibc of the objects in moves.c that are written.
const SIZES_OF_WRITTEN: [u64; 2] = [504, 520];
/// Usable sizes of those that are not.
const SIZES_OF_LEAKED: [u64; 2] = [712, 728];
/// Number of objects that are not written.
const LEAKED: u64 = 1 << 10;

fn leaked(mib: &str, options: AnalysisOptions) -> Proof {
    let mut target = start("moves", &[mib]);
    let proof = prove_leaks(target.pid, options, &|_| {}).unwrap();
    target.assert_unharmed();
    proof
}

fn check(mib: &str, options: AnalysisOptions) {
    let proof = leaked(mib, options);
    assert_eq!(proof.report.unsearched, []);
    let mut found = 0;
    for group in &proof.leaked {
        assert!(SIZES_OF_LEAKED.contains(&group.size), "{:?}", proof.leaked);
        found += group.objects;
    }
    // A stale word in a register may hold an object.
    assert!((LEAKED - 3..=LEAKED).contains(&found), "{:?}", proof.leaked);
}

#[test]
fn written_objects_are_not_leaked() {
    let proof = leaked("1", LONG_PAUSE);
    let mut written = proof.leaked.iter();
    assert!(
        written.all(|group| !SIZES_OF_WRITTEN.contains(&group.size)),
        "{proof:?}"
    );
}

#[test]
fn objects_held_by_uncopied_memory_are_not_leaked() {
    check("8", LONG_PAUSE);
}

/// The memory does not fit into the limit, but the words that may be pointers do.
#[test]
fn objects_held_by_large_uncopied_memory_are_not_leaked() {
    let max_memory = Some(32 << 20);
    check(
        "32",
        AnalysisOptions {
            max_memory,
            ..LONG_PAUSE
        },
    );
}
