//! Memory of glibc's malloc wherever the kernel gave it: seven objects of 5000 bytes are lost in each case.

use std::process::Command;

use memprof_leaks::{Proof, prove_leaks};

use crate::compiled;
use crate::leaks::LONG_PAUSE;
use crate::target::Target;

fn proof(command: &mut Command) -> Proof {
    let mut target = Target::from_command(command);
    let proof = prove_leaks(target.pid, LONG_PAUSE, &|_| {}).unwrap();
    target.assert_unharmed();
    proof
}

/// Checks that exactly these objects are leaked, by usable size and number, and that nothing is left out.
fn check(command: &mut Command, expected: &[(u64, u64)]) {
    let proof = proof(command);
    let found = proof.leaked.iter().map(|group| (group.size, group.objects));
    let mut found: Vec<_> = found.collect();
    found.sort_unstable();
    assert_eq!(found, expected, "{command:?}");
    assert_eq!(proof.report.warnings, [""; 0], "{command:?}");
    assert_eq!(proof.report.unsearched, [], "{command:?}");
}

fn mode(name: &str) -> Command {
    let mut command = Command::new(compiled("arenas"));
    command.arg(name);
    command
}

#[test]
fn leaks_beside_break_of_others_are_found() {
    for name in ["early_break", "held_in_break", "foreign_break"] {
        check(&mut mode(name), &[(5000, 7)]);
    }
}

#[test]
fn leaks_outside_break_are_found() {
    for name in ["blocked_break", "many_heaps", "no_mappings"] {
        check(&mut mode(name), &[(5000, 7)]);
    }
    // Each block fills its pages.
    check(&mut mode("mapped_only"), &[(8176, 7)]);
}

#[test]
fn program_without_free_is_searched() {
    check(&mut mode("no_frees"), &[(5000, 7)]);
}

#[test]
fn aligned_blocks_have_their_size_after_realloc() {
    check(&mut mode("aligned"), &[(5000, 7), (3_149_824, 1)]);
}

#[test]
fn blocks_whose_mapping_is_split_are_found() {
    check(&mut mode("split_blocks"), &[(5000, 7), (1_052_656, 1)]);
}

/// Checks that all leaks are found with each of the values of an environment variable.
fn check_with(variable: &str, values: &[&str]) {
    for value in values {
        for name in ["many_heaps", "foreign_break"] {
            check(mode(name).env(variable, value), &[(5000, 7)]);
        }
        let large = &[(5000, 7), (3_149_824, 1)];
        check(mode("aligned").env(variable, value), large);
    }
}

#[test]
fn huge_pages_hide_no_part_of_heap() {
    let values = ["glibc.malloc.hugetlb=1", "glibc.malloc.hugetlb=2"];
    check_with("GLIBC_TUNABLES", &values);
}

#[test]
fn limits_of_caches_hide_no_part_of_heap() {
    let values = [
        "glibc.malloc.tcache_count=0",
        "glibc.malloc.tcache_max=64",
        "glibc.malloc.mxfast=0",
    ];
    check_with("GLIBC_TUNABLES", &values);
}

#[test]
fn other_settings_of_malloc_hide_no_part_of_heap() {
    check_with("MALLOC_TOP_PAD_", &["100000000"]);
    check_with("MALLOC_ARENA_MAX", &["1"]);
    check_with("MALLOC_PERTURB_", &["85"]);
}
