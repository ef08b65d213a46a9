//! Leaked objects that are found, and objects that are not leaked.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use memprof_leaks::{AnalysisOptions, Proof, prove_leaks};
use testkit::planted;

use crate::target::{Target, built};
use crate::{compiled, start};

/// A long pause, because a loaded machine stops threads late.
pub(crate) const LONG_PAUSE: AnalysisOptions = AnalysisOptions {
    max_pause: Duration::from_secs(5),
    max_memory: None,
};

/// jemalloc's library in its package, to be preloaded.
pub(crate) const JEMALLOC: &str = "libjemalloc.so.2";

/// Allocator that planted.c uses.
#[derive(Clone, Copy, Debug)]
enum Allocator {
    /// glibc 2.36 of Debian 12.
    Glibc,
    /// jemalloc 5.3.0 of Debian 12, stripped.
    Preloaded,
    /// jemalloc 5.3.1, statically linked with a prefix, as in programs in Rust.
    Static,
}

const ALLOCATORS: [Allocator; 3] = [Allocator::Glibc, Allocator::Preloaded, Allocator::Static];

impl Allocator {
    fn command(self) -> Command {
        let mut command = Command::new(match self {
            Self::Glibc | Self::Preloaded => compiled("planted"),
            Self::Static => with_static_jemalloc(),
        });
        if let Self::Preloaded = self {
            command.env("LD_PRELOAD", JEMALLOC);
        }
        command
    }
}

fn with_static_jemalloc() -> PathBuf {
    // The tests are in `deps`; the crate's build of jemalloc's source is beside it.
    let tests = std::env::current_exe().unwrap();
    let builds = tests.ancestors().nth(2).unwrap().join("build");
    let mut builds = fs::read_dir(builds).unwrap();
    let archive = builds.find_map(|build| {
        let archive = build.unwrap().path().join("out/lib/libjemalloc_pic.a");
        archive.exists().then_some(archive)
    });
    let archive = archive.expect("tikv-jemalloc-sys is a dependency of the tests");
    built("planted_static", |path| {
        let mut command = Command::new("cc");
        command.args(["-O1", "-pthread", "-Dmalloc=_rjem_malloc"]);
        command.args(["-Dfree=_rjem_free", "planted.c", "-o"]);
        command.arg(path).arg(archive).args(["-lm", "-ldl"]);
        command
    })
}

fn prove_in_mode(mode: &str, allocator: Allocator) -> Proof {
    let mut target = Target::from_command(allocator.command().arg(mode));
    let proof = prove_leaks(target.pid, LONG_PAUSE, &|_| {}).unwrap();
    target.assert_unharmed();
    let expected = match allocator {
        Allocator::Glibc => &["glibc"][..],
        Allocator::Preloaded => &["jemalloc"],
        // The C library uses glibc's malloc.
        Allocator::Static => &["glibc", "jemalloc"],
    };
    assert_eq!(proof.report.allocators, expected);
    assert_eq!(proof.report.warnings, [""; 0]);
    assert_eq!(proof.report.unsearched, []);
    assert!(proof.report.objects > 200_000, "{proof:?}");
    proof
}

/// Checks that the planted objects are found, by usable size, and nothing else. glibc's objects may be 16
/// bytes larger: it does not split off a rest that is too small for an object.
fn check(allocator: Allocator, planted: &[(u64, u64)]) {
    let proof = prove_in_mode("leaks", allocator);
    let mut found: Vec<_> = planted.iter().map(|(size, _)| (*size, 0)).collect();
    for group in &proof.leaked {
        let expected = found
            .iter_mut()
            .find(|(size, _)| [*size, *size + 16].contains(&group.size));
        expected.unwrap_or_else(|| panic!("{group:?}")).1 += group.objects;
    }
    let missed = planted.iter().zip(&found).map(|(planted, found)| {
        // A stale word in a register, or on a stack that is in use, may hold an object.
        planted.1.checked_sub(found.1).unwrap()
    });
    assert!(missed.sum::<u64>() <= 3, "{found:?}");
}

#[test]
fn leaks_in_glibc_are_found_and_nothing_else() {
    check(Allocator::Glibc, planted::IN_GLIBC);
}

#[test]
fn leaks_in_jemalloc_are_found_and_nothing_else() {
    check(Allocator::Preloaded, planted::IN_JEMALLOC);
}

#[test]
fn leaks_in_static_jemalloc_are_found_and_nothing_else() {
    check(Allocator::Static, planted::IN_JEMALLOC);
}

/// About one in 20 of the leaked objects is sampled; the others are shown without a stack.
#[test]
fn leaks_sampled_by_jemallocs_profiler_have_stacks() {
    let options = "prof:true,prof_active:true,lg_prof_sample:12";
    for (allocator, variable) in [
        (Allocator::Preloaded, "MALLOC_CONF"),
        (Allocator::Static, "_RJEM_MALLOC_CONF"),
    ] {
        let mut command = allocator.command();
        let mut target = Target::from_command(command.arg("leaks").env(variable, options));
        let proof = prove_leaks(target.pid, LONG_PAUSE, &|_| {}).unwrap();
        target.assert_unharmed();
        check_stacks(&proof);
    }
}

fn check_stacks(proof: &Proof) {
    let mut sampled = 0;
    for group in &proof.leaked {
        let Some(stack) = &group.stack else { continue };
        sampled += group.objects;
        let from = match group.size {
            224 => "tree",
            256 => "in_second_arena",
            320 => "gives",
            _ => "leak",
        };
        assert_eq!(stack.functions[..2], ["make", from], "{group:?}");
    }
    assert!((30..1000).contains(&sampled), "{proof:?}");
    let objects = proof.leaked.iter().map(|group| group.objects);
    assert!(objects.sum::<u64>() > 3000, "{proof:?}");
}

#[test]
fn reachable_objects_are_not_leaked() {
    for allocator in ALLOCATORS {
        assert_eq!(
            prove_in_mode("clean", allocator).leaked,
            [],
            "{allocator:?}"
        );
    }
}

/// Only a register points to the list, and its pointers are xored.
#[test]
fn chunks_about_to_be_merged_are_not_leaked() {
    assert_eq!(prove_in_mode("merges", Allocator::Glibc).leaked, []);
}

#[test]
fn objects_whose_pointers_move_are_not_leaked() {
    for allocator in ALLOCATORS {
        assert_eq!(
            prove_in_mode("churn", allocator).leaked,
            [],
            "{allocator:?}"
        );
    }
}

/// Python's collector has all these objects in its list, also the garbage that it will free.
#[test]
fn python_objects_with_lost_reference_are_leaked() {
    const COUNT: u64 = 3000;
    let cases = ["malloc", "pymalloc", "malloc_debug", "pymalloc_debug"]
        .map(|allocator| [("object", allocator), ("Exception", allocator)]);
    for (base, allocator) in cases.into_iter().flatten() {
        let mut command = Command::new("python3");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/processes/lost.py");
        command.args([script, &COUNT.to_string(), base]);
        let mut target = Target::from_command(command.env("PYTHONMALLOC", allocator));
        let proof = prove_leaks(target.pid, LONG_PAUSE, &|_| {}).unwrap();
        target.assert_unharmed();
        let of_class = |class: &str| {
            let groups = proof.leaked.iter();
            let of_class = groups.filter(|group| group.class.as_deref() == Some(class));
            of_class.map(|group| group.objects).sum::<u64>()
        };
        // Stale words on a stack, or on a free list of the interpreter, hold some of them.
        let most = COUNT / 100 * 98..=COUNT;
        assert!(
            most.contains(&of_class("__main__.Lost")),
            "{base} {allocator}: {proof:?}"
        );
        assert!(
            most.contains(&of_class("list")),
            "{base} {allocator}: {proof:?}"
        );
        assert_eq!(
            of_class("__main__.Garbage"),
            0,
            "{base} {allocator}: {proof:?}"
        );
    }
}

/// Objects cross the ends of mappings, and are read at once.
#[test]
fn objects_in_heap_of_many_mappings_are_not_leaked() {
    let mut target = start("split", &[]);
    let proof = prove_leaks(target.pid, LONG_PAUSE, &|_| {}).unwrap();
    target.assert_unharmed();
    assert_eq!(proof.leaked, []);
    assert!(proof.report.objects >= 40_000, "{proof:?}");
}
