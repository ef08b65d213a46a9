//! Heaps whose objects do not lie in the order in which they are reached.

use std::process::Command;

use memprof_leaks::{
    AnalysisOptions, Detail, GroupKind, HeapObjectKind, Holding, Method, Proof,
    find_process_holders, prove_leaks,
};

use crate::compiled;
use crate::leaks::{JEMALLOC, LONG_PAUSE};
use crate::target::Target;

const SHAPES: [&str; 3] = ["list", "tree", "rings"];
const COUNT: u64 = 100_000;

fn scattered(shape: &str, library: &str) -> Target {
    let mut command = Command::new(compiled("scattered"));
    command.args([shape, &COUNT.to_string()]);
    Target::from_command(command.env("LD_PRELOAD", library))
}

fn proof(shape: &str, library: &str, max_memory: Option<u64>) -> Proof {
    let mut target = scattered(shape, library);
    let options = AnalysisOptions {
        max_memory,
        ..LONG_PAUSE
    };
    let proof = prove_leaks(target.pid, options, &|_| {}).unwrap();
    target.assert_unharmed();
    let leaked = proof.leaked.iter().map(|group| group.objects);
    assert_eq!(leaked.sum::<u64>(), 7, "{shape} {library}: {proof:?}");
    proof
}

#[test]
fn scattered_objects_are_read_in_large_pieces() {
    for shape in SHAPES {
        for library in ["", JEMALLOC] {
            let reads = proof(shape, library, None).report.reads;
            assert!(reads < COUNT / 50, "{shape} {library}: {reads} reads");
        }
    }
}

#[test]
fn search_without_room_for_all_pointers_finds_the_same() {
    // Without room for any, for some, and for nearly all.
    for kibibytes in [24_600, 25_100, 25_300, 25_600] {
        for shape in SHAPES {
            proof(shape, "", Some(kibibytes << 10));
        }
    }
}

fn holding(shape: &str, max_memory: Option<u64>) -> Holding {
    let options = AnalysisOptions {
        max_memory,
        ..LONG_PAUSE
    };
    find_process_holders(scattered(shape, "").pid, Detail::None, options, &|_| {}).unwrap()
}

/// Number of objects of the program's structure, and the number of groups that they form.
fn held_objects(holding: &Holding) -> (u64, usize) {
    let kind = GroupKind::Objects(HeapObjectKind::for_size(56));
    let groups = holding.groups.iter().filter(|group| group.kind == kind);
    groups.fold((0, 0), |(objects, count), group| {
        (objects + group.objects, count + 1)
    })
}

#[test]
fn holders_are_found_in_two_bytes_for_each_object() {
    for shape in SHAPES {
        // Room for 14 bytes for each object.
        let short = holding(shape, Some((20 << 20) + 14 * COUNT));
        assert_eq!(short.method, Method::ShortestPath);
        let full = holding(shape, None);
        assert_eq!(full.method, Method::Dominators);
        assert_eq!(held_objects(&short).0, COUNT, "{shape}: {short:?}");
        assert_eq!(held_objects(&short), held_objects(&full), "{shape}");
    }
}
