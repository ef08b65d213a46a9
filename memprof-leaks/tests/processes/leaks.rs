//! What is told to be leaked.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use memprof_leaks::{Options, Proof, prove};

use crate::compiled;
use crate::target::Target;

/// A loaded machine stops threads late.
pub(crate) const PATIENT: Options = Options {
    max_pause: Duration::from_secs(5),
};

/// Preloaded, by the name of its package's library.
const JEMALLOC: &str = "libjemalloc.so.2";

fn of(mode: &str, preload: &str) -> Proof {
    let mut command = Command::new(compiled("planted"));
    let mut target = Target::of(command.arg(mode).env("LD_PRELOAD", preload));
    let proof = prove(target.pid, PATIENT, &|_| {}).unwrap();
    target.is_unharmed();
    let expected = if preload == JEMALLOC {
        "jemalloc"
    } else {
        "glibc"
    };
    assert_eq!(proof.allocators, [expected]);
    assert_eq!(proof.warnings, [""; 0]);
    assert_eq!(proof.unread, [""; 0]);
    assert!(proof.objects > 200_000, "{proof:?}");
    proof
}

/// What was planted, by size as the allocator gives it out, and nothing else.
fn check(preload: &str, planted: &[(u64, u64)]) {
    let proof = of("leaks", preload);
    let found = proof.leaked.iter().map(|group| (group.size, group.objects));
    let found: BTreeMap<u64, u64> = found.collect();
    let mut missed = 0;
    for (size, count) in planted {
        // A stale pointer to one, in a register or a stack that is in use, holds its tree.
        missed += count
            .checked_sub(found.get(size).copied().unwrap_or(0))
            .unwrap();
    }
    assert!(missed <= 15, "{found:?}");
    assert_eq!(found.len(), planted.len(), "{found:?}");
}

#[test]
fn what_nothing_points_to_in_glibc_is_found_and_nothing_else() {
    let large = (1_052_656, 1);
    let small = [
        (120, 500),
        (136, 500),
        (152, 500),
        (168, 510),
        (184, 500),
        (200, 500),
    ];
    check("", &[&small[..], &[large]].concat());
}

#[test]
fn what_nothing_points_to_in_jemalloc_is_found_and_nothing_else() {
    let large = (1 << 20, 1);
    check(
        JEMALLOC,
        &[(128, 500), (160, 1000), (192, 1010), (224, 500), large],
    );
}

#[test]
fn what_is_held_in_whatever_way_is_not() {
    assert_eq!(of("clean", "").leaked, []);
    assert_eq!(of("clean", JEMALLOC).leaked, []);
}

#[test]
fn what_is_on_its_way_is_not() {
    assert_eq!(of("churn", "").leaked, []);
    assert_eq!(of("churn", JEMALLOC).leaked, []);
}
