//! Objects and variables of Python programs.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use memprof_leaks::{
    AnalysisOptions, Detail, Error, GroupKind, HeapObjectKind, Holder, HolderGroup, Holding,
    Method, find_process_holders, prove_leaks, take_census,
};

use crate::leaks::LONG_PAUSE;
use crate::start;
use crate::target::{Target, built};

const COUNT: u64 = 20_000;
/// The folder of this file.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/processes");
/// The allocators that a Python may be started with.
const ALLOCATORS: [&str; 4] = ["malloc", "pymalloc", "malloc_debug", "pymalloc_debug"];

/// Starts a program of this folder.
fn python(program: &str, arguments: &[&str], allocator: &str) -> Target {
    let mut command = Command::new("python3");
    command.arg(format!("{FOLDER}/{program}")).args(arguments);
    Target::from_command(command.env("PYTHONMALLOC", allocator))
}

fn find_holders(target: &mut Target) -> Holding {
    let options = AnalysisOptions {
        max_memory: Some(1 << 30),
        ..LONG_PAUSE
    };
    let holding = find_process_holders(target.pid, Detail::None, options, &|_| {}).unwrap();
    target.assert_unharmed();
    assert_eq!(holding.method, Method::Dominators);
    holding
}

/// Objects of a type below any holder.
fn objects_of_type(holding: &Holding, name: &str) -> u64 {
    let kind = GroupKind::Objects(HeapObjectKind::Class(name.into()));
    let groups = holding.groups.iter().filter(|group| group.kind == kind);
    groups.map(|group| group.objects).sum()
}

/// Group of a variable, with its index.
fn variable<'a>(holding: &'a Holding, name: &str, class: &str) -> (usize, &'a HolderGroup) {
    let kind = GroupKind::Holder(Holder::PythonVariable {
        name: name.to_owned(),
        class: class.to_owned(),
    });
    let found = holding.groups.iter().position(|group| group.kind == kind);
    let index = found.unwrap_or_else(|| panic!("{name} ({class}): {:?}", holding.report.warnings));
    (index, &holding.groups[index])
}

#[test]
fn variables_hold_their_objects_of_every_type() {
    // Since Python 3.11 an object contains its attributes. Exceptions still have a dict for them, as all objects had
    // before.
    for (base, attributes) in [("object", 0), ("Exception", COUNT)] {
        for allocator in ALLOCATORS {
            // A stale word of the interpreter's may point to an object by chance, other ones in another process.
            let is_apart = || sessions_hold_theirs(base, attributes, allocator);
            assert!((0..4).any(|_| is_apart()), "{base} {allocator}");
        }
    }
}

/// Checks what the variable `sessions` of a new process holds. Returns whether nothing else seems to hold much of it.
fn sessions_hold_theirs(base: &str, attributes: u64, allocator: &str) -> bool {
    let mut target = python("sessions.py", &[&COUNT.to_string(), base], allocator);
    let holding = find_holders(&mut target);
    assert_eq!(
        objects_of_type(&holding, "__main__.Session"),
        COUNT,
        "{base}"
    );
    assert_eq!(
        objects_of_type(&holding, "__main__.Order"),
        3 * COUNT,
        "{base}"
    );
    assert!(
        objects_of_type(&holding, "__main__.Session.__dict__") >= attributes,
        "{base}"
    );
    let (index, sessions) = variable(&holding, "__main__.sessions", "dict");
    assert!(
        sessions.held_bytes > COUNT * 3 * 200,
        "{base} {allocator}: {sessions:?}"
    );
    // Of its texts, some are constants that others hold, too.
    let mut below = holding.groups.iter().filter(|group| group.parent == index);
    !below.any(|group| group.is_shared && group.held_objects > 10)
}

#[test]
fn each_variable_and_class_attribute_holds_what_is_its_own() {
    for allocator in ALLOCATORS {
        // As above.
        let first_unequal = || variable_that_does_not_hold_its_own(allocator);
        let unequal: Vec<_> = (0..4).map_while(|_| first_unequal()).collect();
        assert!(unequal.len() < 4, "{allocator}: {unequal:#?}");
    }
}

/// Checks what the variables of a new process hold. Returns the first that holds more or less than is its own.
fn variable_that_does_not_hold_its_own(allocator: &str) -> Option<String> {
    // Key, tuple, text and number; user, text, number, point and, by version, values and dict; name, list and array;
    // dict, table, bytes and number.
    const VARIABLES: [(&str, &str, RangeInclusive<u64>); 5] = [
        ("__main__.CACHE", "dict", 4..=4),
        ("__main__.REGISTRY", "__main__.Registry", 4..=7),
        ("__main__.User.names", "dict", 3..=4),
        ("__main__.QUEUE", "list", 4..=4),
        ("__main__.SEEN", "set", 1..=1),
    ];
    let mut target = python("census.py", &[], allocator);
    target.line();
    let holding = find_holders(&mut target);
    VARIABLES.iter().find_map(|(name, class, each)| {
        let (_, group) = variable(&holding, name, class);
        let objects = group.held_objects / (COUNT / 100);
        // Empty bytes, and numbers up to 256, are constants.
        let expected = each.start() * 100 - 8..=each.end() * 100 + 4;
        (!expected.contains(&objects)).then(|| format!("{name}: {group:?}"))
    })
}

#[test]
fn census_is_that_of_collector_and_getsizeof() {
    for allocator in ALLOCATORS {
        let mut target = python("census.py", &[], allocator);
        let truth: BTreeMap<String, [u64; 2]> = parse_truth(&target.line());
        let counted = take_census(target.pid, LONG_PAUSE, &|_| {}).unwrap();
        target.assert_unharmed();
        assert_eq!(counted.pools > 0, allocator.starts_with("pymalloc"));
        assert!(counted.pool_used <= counted.pools);
        let warnings = &counted.report.warnings;
        assert!(warnings.is_empty(), "{allocator}: {warnings:?}");
        for name in [
            "dict",
            "tuple",
            "list",
            "set",
            "__main__.User",
            "__main__.Point",
            "function",
            "type",
        ] {
            let [objects, bytes] = truth[name];
            let found = counted
                .types
                .iter()
                .find(|found| found.name == name)
                .unwrap();
            // The program has made some since, and the collector does not know all tuples and dicts.
            let least = match name {
                "tuple" | "dict" => [objects, bytes],
                _ => [objects - objects / 100, bytes - bytes / 100],
            };
            let is_right = found.objects >= least[0]
                && found.bytes >= least[1] - least[1] / 100
                && (matches!(name, "tuple" | "dict")
                    || found.objects <= objects + objects / 100 + 3
                        && found.bytes <= bytes + bytes / 100 + 1000);
            assert!(
                is_right,
                "{allocator}: {found:?}, {objects} and {bytes} by gc"
            );
        }
    }
}

/// Parses the object with a pair of numbers for each name.
fn parse_truth(line: &str) -> BTreeMap<String, [u64; 2]> {
    let entries = line.trim().trim_matches(['{', '}']).split("], ");
    let entries = entries.map(|entry| {
        let (name, numbers) = entry.split_once(": [").unwrap();
        let (objects, bytes) = numbers.trim_end_matches(']').split_once(", ").unwrap();
        let numbers = [objects.parse().unwrap(), bytes.parse().unwrap()];
        (name.trim_matches('"').to_owned(), numbers)
    });
    entries.collect()
}

#[test]
fn census_says_what_it_could_not_read_with_its_size() {
    let mut target = python("unread.py", &["300", "100000"], "pymalloc");
    let counted = take_census(target.pid, LONG_PAUSE, &|_| {}).unwrap();
    target.assert_unharmed();
    let warnings = &counted.report.warnings;
    let is_said = |text: &str| warnings.iter().any(|warning| warning.contains(text));
    // Strings of 22 characters, in blocks of 80 bytes; pointers of eight.
    assert!(
        is_said("23.44KiB in 300 objects have inconsistent fields"),
        "{warnings:?}"
    );
    assert!(
        is_said("781.25KiB in 1 tables of objects do not count"),
        "{warnings:?}"
    );
}

#[test]
fn census_of_program_without_python_is_refused() {
    let mut target = start("held", &["in_pipe"]);
    let error = take_census(target.pid, LONG_PAUSE, &|_| {}).unwrap_err();
    target.assert_unharmed();
    assert!(matches!(error, Error::NoPython), "{error}");
}

/// Bytes of an object of two slots, behind the collector's two words.
const LOST_SIZE: u64 = 48;
/// Lost blocks and objects of each kind in shapes.py.
const LOST: u64 = 57;

#[test]
fn only_lost_objects_are_leaked_among_those_of_every_form() {
    for python in interpreters() {
        let mut command = Command::new(&python);
        let mut target = Target::from_command(command.arg(format!("{FOLDER}/shapes.py")));
        let proof = prove_leaks(target.pid, LONG_PAUSE, &|_| {}).unwrap();
        target.assert_unharmed();
        let mut found = BTreeMap::new();
        for group in &proof.leaked {
            *found
                .entry((group.class.as_deref(), group.size))
                .or_insert(0) += group.objects;
        }
        let planted = [
            (None, 3336),
            (None, 352),
            (Some("__main__.Lost"), LOST_SIZE),
        ];
        for kind in planted {
            let objects = found.remove(&kind).unwrap_or(0);
            // Stale words hold some.
            assert!(
                (LOST - 5..=LOST).contains(&objects),
                "{python}: {kind:?} {proof:?}"
            );
        }
        assert_eq!(found, BTreeMap::new(), "{python}");
    }
}

/// The interpreters on the path that `holders` can read, without 3.8, which itself loses a module `_warnings` at its
/// start.
fn interpreters() -> Vec<String> {
    let runs = |name: &String| {
        let output = Command::new(name).arg("--version").output();
        output.is_ok_and(|output| output.status.success())
    };
    let names = (9..=14).map(|minor| format!("python3.{minor}"));
    names.filter(runs).collect()
}

/// Processes whose random content differs, and rounds of each, with twice as many changed words as the one before.
const SEEDS: [&str; 3] = ["1", "2", "3"];
const ROUNDS: usize = 5;
/// An analysis that takes longer is not bounded: it takes some seconds, and a minute on a slow machine that is loaded.
const MAX_TIME: Duration = Duration::from_secs(600);

#[test]
fn random_content_of_interpreter_ends_analysis_without_harm() {
    let library = compiled_library("hostile_python");
    for seed in SEEDS {
        let arguments = [library.to_str().unwrap(), seed];
        let mut target = python("hostile_python.py", &arguments, "pymalloc");
        for round in 0..ROUNDS {
            let pid = target.pid;
            check_ends(round, || prove_leaks(pid, LONG_PAUSE, &|_| {}).err());
            check_ends(round, || take_census(pid, LONG_PAUSE, &|_| {}).err());
            check_ends(round, || {
                find_process_holders(pid, Detail::None, LONG_PAUSE, &|_| {}).err()
            });
            target.write(b"\n");
            assert_eq!(target.line(), "done\n");
        }
    }
}

#[test]
fn lists_of_running_collection_hold_nothing() {
    const COUNT: u64 = 2_000;
    let library = compiled_library("collecting");
    for allocator in ["pymalloc", "debug"] {
        let count = COUNT.to_string();
        let arguments = [library.to_str().unwrap(), &count];
        let mut target = python("collecting.py", &arguments, allocator);
        for phase in ["counting", "separating"] {
            let proof = prove_leaks(target.pid, LONG_PAUSE, &|_| {}).unwrap();
            let of_class = |name: &str| {
                let groups = proof.leaked.iter();
                let groups = groups.filter(|group| group.class.as_deref() == Some(name));
                groups.map(|group| group.objects).sum::<u64>()
            };
            let lost = of_class("__main__.Lost");
            // Stale words hold some.
            let most = COUNT / 100 * 99..=COUNT;
            assert!(most.contains(&lost), "{allocator} {phase}: {lost}");
            assert_eq!(of_class("__main__.Kept"), 0, "{allocator} {phase}");
            target.write(b"\n");
            if phase == "counting" {
                assert_eq!(target.line(), "ready\n");
            }
        }
    }
}

/// Types in the hostile table: with what each is a subtype of, more than are read.
const HOSTILE_TYPES: &str = "20000";

#[test]
fn table_of_many_types_ends_analysis_in_bounded_time() {
    let mut target = python("many_types.py", &[HOSTILE_TYPES], "pymalloc");
    let pid = target.pid;
    let mut warnings = Vec::new();
    check_ends(0, || {
        find_process_holders(pid, Detail::None, LONG_PAUSE, &|_| {})
            .map(|holding| warnings = holding.report.warnings)
            .err()
    });
    target.assert_unharmed();
    let is_said = |warnings: &[String], text: &str| {
        let is_said = warnings.iter().any(|warning| warning.contains(text));
        assert!(is_said, "{warnings:?}");
    };
    is_said(&warnings, "types of Python were read");
    check_ends(1, || {
        take_census(pid, LONG_PAUSE, &|_| {})
            .map(|census| warnings = census.report.warnings)
            .err()
    });
    is_said(&warnings, "types of Python were read");
    is_said(&warnings, "objects are in no row: too many types were read");
}

/// Compiles a file of this folder to a library.
fn compiled_library(name: &str) -> PathBuf {
    built(&format!("{name}.so"), |path| {
        let mut command = Command::new("cc");
        command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
        command.arg(format!("{name}.c")).arg("-o").arg(path);
        command
    })
}

/// Checks that an analysis ends soon, with a result or a reason that the content may give.
fn check_ends(round: usize, analyze: impl FnOnce() -> Option<Error>) {
    let start = Instant::now();
    match analyze() {
        None | Some(Error::NoHeap(_) | Error::NoPython | Error::Memory { .. }) => {}
        Some(error) => panic!("{round}: {error}"),
    }
    assert!(start.elapsed() < MAX_TIME, "{round}: {:?}", start.elapsed());
}
