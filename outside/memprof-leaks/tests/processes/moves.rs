//! What a copy of a process lacks, and what is written to without a pointer that is seen.

use memprof_leaks::{AnalysisOptions, Proof, prove};

use crate::leaks::PATIENT;
use crate::start;

/// As glibc gives them out, of those in moves.c that are written to.
const SIZES_OF_WRITTEN: [u64; 2] = [504, 520];
/// And of those that are not, and how many there are.
const SIZES_OF_LEFT: [u64; 2] = [712, 728];
const LEFT: u64 = 1 << 10;

fn leaked(mib: &str, options: AnalysisOptions) -> Proof {
    let mut target = start("moves", &[mib]);
    let proof = prove(target.pid, options, &|_| {}).unwrap();
    target.assert_unharmed();
    proof
}

fn check(mib: &str, options: AnalysisOptions) {
    let proof = leaked(mib, options);
    assert_eq!(proof.report.unread, [""; 0]);
    let mut left = 0;
    for group in &proof.leaked {
        assert!(SIZES_OF_LEFT.contains(&group.size), "{:?}", proof.leaked);
        left += group.objects;
    }
    // A stale word in a register may hold one.
    assert!((LEFT - 3..=LEFT).contains(&left), "{:?}", proof.leaked);
}

#[test]
fn what_is_written_to_is_held_by_somebody() {
    let proof = leaked("1", PATIENT);
    let mut written = proof.leaked.iter();
    assert!(
        written.all(|group| !SIZES_OF_WRITTEN.contains(&group.size)),
        "{proof:?}"
    );
}

#[test]
fn what_moves_in_memory_that_a_copy_lacks_is_held() {
    check("8", PATIENT);
}

/// Where that memory does not fit, what may be pointers does.
#[test]
fn what_moves_in_more_of_it_than_there_is_room_for_is_held() {
    let max_memory = Some(32 << 20);
    check(
        "32",
        AnalysisOptions {
            max_memory,
            ..PATIENT
        },
    );
}
