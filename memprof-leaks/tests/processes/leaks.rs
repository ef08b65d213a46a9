//! What is told to be leaked.

use std::collections::BTreeMap;
use std::time::Duration;

use memprof_leaks::{Options, Proof, prove};

use crate::start;

/// A loaded machine stops threads late.
pub(crate) const PATIENT: Options = Options {
    max_pause: Duration::from_secs(5),
};

fn of(mode: &str) -> Proof {
    let mut target = start("planted", &[mode]);
    let proof = prove(target.pid, PATIENT, &|_| {}).unwrap();
    target.is_unharmed();
    assert_eq!(proof.warnings, [""; 0]);
    assert_eq!(proof.unread, [""; 0]);
    assert!(proof.objects > 200_000, "{proof:?}");
    proof
}

#[test]
fn what_nothing_points_to_is_found_and_nothing_else() {
    let proof = of("leaks");
    let found: BTreeMap<u64, u64> = proof
        .leaked
        .iter()
        .map(|group| (group.size, group.objects))
        .collect();
    // The last pointer to one may stay in a register or a stack that is in use.
    let planted = [
        (120, 500),
        (136, 500),
        (152, 500),
        (168, 511),
        (184, 500),
        (200, 500),
    ];
    let large = 1_052_656;
    assert_eq!(found.get(&large), Some(&1), "{found:?}");
    let mut missed = 0;
    for (size, count) in planted {
        missed += count - found.get(&size).copied().unwrap_or(0);
    }
    assert!(missed <= 3, "{found:?}");
    assert_eq!(found.len(), planted.len() + 1, "{found:?}");
}

#[test]
fn what_is_held_in_whatever_way_is_not() {
    assert_eq!(of("clean").leaked, []);
}

#[test]
fn what_is_on_its_way_is_not() {
    assert_eq!(of("churn").leaked, []);
}
