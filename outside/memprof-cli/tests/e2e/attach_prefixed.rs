//! `memprof attach` and `record` where the program's allocator does not serve malloc, but has functions of other names:
//! a jemalloc with a prefix, as in Rust, and gperftools' own names.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::attach::detach;
use crate::attach_linked::{FUNCTIONS, Linked, Program};
use crate::dist::{dist, tool_text};

/// An allocator whose functions have other names.
struct Renamed {
    kind: &'static str,
    /// Allocator among whose figures its samples are, and the method: one that holds little yet is sampled beside malloc.
    sampled_as: (&'static str, bool, &'static str),
    /// Its static library, of which the symbols of [`RENAMED`] get the prefix.
    archive: &'static str,
    prefix: &'static str,
    /// Compiler options, and functions that it has beside C's.
    more: &'static [&'static str],
    functions: &'static [&'static str],
}

const PREFIXED: [Renamed; 2] = [
    Renamed {
        kind: "jemalloc",
        sampled_as: ("jemalloc", false, "entry_patches"),
        archive: "libjemalloc.a",
        prefix: "je_",
        more: &["-DMALLOCX"],
        functions: &["mallocx", "rallocx", "xallocx"],
    },
    Renamed {
        kind: "tcmalloc",
        sampled_as: ("glibc", true, "slots"),
        archive: "libtcmalloc_minimal.a",
        prefix: "tc_",
        more: &[],
        functions: &[],
    },
];

/// Functions of C and of jemalloc.
const RENAMED: [&str; 24] = [
    "malloc",
    "calloc",
    "realloc",
    "free",
    "memalign",
    "aligned_alloc",
    "valloc",
    "pvalloc",
    "posix_memalign",
    "reallocarray",
    "cfree",
    "malloc_usable_size",
    "mallocx",
    "rallocx",
    "xallocx",
    "sallocx",
    "dallocx",
    "sdallocx",
    "nallocx",
    "mallctl",
    "mallctlnametomib",
    "mallctlbymib",
    "malloc_stats_print",
    "malloc_message",
];

impl Renamed {
    /// The static library with renamed symbols, made once. Names that it has already are left alone.
    fn library(&self) -> PathBuf {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let library = place.join(format!("{}{}", self.prefix, self.archive));
        let mut cc = Command::new("cc");
        let original = tool_text("gcc", cc.arg(format!("-print-file-name={}", self.archive)));
        let mut objcopy = Command::new("objcopy");
        for name in RENAMED {
            // gperftools has these names beside those of C, which hide.
            let renamed = match self.kind {
                "tcmalloc" => format!("hidden_{name}"),
                _ => format!("{}{name}", self.prefix),
            };
            objcopy.arg(format!("--redefine-sym={name}={renamed}"));
        }
        let temporary = tempfile::NamedTempFile::new_in(place).unwrap();
        tool_text(
            "binutils",
            objcopy.arg(original.trim()).arg(temporary.path()),
        );
        temporary.persist(&library).unwrap();
        library
    }

    fn start(&self) -> Program {
        let linked = Linked {
            name: self.sampled_as.0,
            options: &[],
            library: None,
        };
        let names = RENAMED.map(|name| match (self.kind, name) {
            ("tcmalloc", "aligned_alloc") => format!("-D{name}=tc_memalign"),
            _ => format!("-D{name}={}{name}", self.prefix),
        });
        let library = self.library();
        let names = names.iter().map(|name| &**name);
        let libraries = [library.to_str().unwrap(), "-lstdc++", "-lm"];
        let more: Vec<_> = names
            .chain(self.more.iter().copied())
            .chain(libraries)
            .collect();
        linked.start(&more)
    }
}

#[test]
fn functions_with_a_prefix_are_patched_sampled_and_restored() {
    for renamed in PREFIXED {
        let mut program = renamed.start();
        let kind = renamed.kind;
        let before = program.text();
        let attached = program.attach(&[]).exits(0).json();
        let entries = &attached["entries"];
        assert!(entries["functions"].as_u64() >= Some(7), "{attached}");
        assert_eq!(
            entries["left_out"].as_array().unwrap().len(),
            0,
            "{attached}"
        );
        let text = attached["text"].as_str().unwrap();
        assert!(text.contains(renamed.prefix), "{text}");
        program.activate();
        let own = program.own_malloc();
        let (_, owns_malloc, interception) = renamed.sampled_as;
        let expected = [
            Value::from(owns_malloc),
            "memprof".into(),
            interception.into(),
        ];
        let found = ["owns_malloc", "sampler", "interception"].map(|field| own[field].clone());
        assert_eq!(found, expected, "{own}");
        for function in FUNCTIONS.iter().chain(renamed.functions) {
            let [samples, live] = program.counts();
            program.does(&format!("keep {function} 400"));
            let [all, alive] = program.counts();
            assert!(
                (399..=400).contains(&(alive - live)),
                "{kind} {function}: {}",
                alive - live
            );
            // 64 bytes before each change of a size, of which one in 16 is sampled; twice in place.
            let most = match *function {
                "realloc" | "rallocx" => 450,
                "xallocx" => 800,
                _ => 400,
            };
            assert!(
                (399..=most).contains(&(all - samples)),
                "{kind} {function}: {}",
                all - samples
            );
        }
        // In the same profile, as the C library is the allocator of others in the process.
        let [_, live] = program.counts();
        program.does("libc 100");
        assert!((99..=100).contains(&(program.counts()[1] - live)), "{kind}");
        let count = FUNCTIONS.len() + renamed.functions.len();
        program
            .host
            .dump_of(count as u64 * 400 * (12 << 10) * 9 / 10);
        program.host.memprof("deactivate", &[]).exits(0);
        program.does("drop");
        // Those of the C library stay.
        assert!(program.counts()[1] <= 100, "{kind}");

        detach(&program.host, &[]).exits(0);
        assert!(program.text() == before, "{kind}");
        program.leads();
        program.activate();
        program.does("keep malloc 100");
        // Activated again, it does not drop what it has.
        program.activate();
        assert!(program.counts()[1] >= 99, "{kind}");
        detach(&program.host, &[]).exits(0);
        assert!(program.text() == before, "{kind}");
        program.does("drop");
    }
}

#[test]
fn threads_that_allocate_by_prefixed_functions_survive_patching() {
    for renamed in PREFIXED {
        let mut program = renamed.start();
        let before = program.text();
        program.does("storm");
        for _ in 0..10 {
            program.leads();
            program.activate();
            detach(&program.host, &[]).exits(0);
            assert!(program.text() == before, "{}", renamed.kind);
        }
        program.does("calm");
        let said = program.host.wait_for_log(" damaged");
        assert!(said.ends_with(" rounds, 0 damaged"), "{said}");
    }
}

#[test]
fn record_names_the_caller_of_a_prefixed_malloc() {
    let mut program = PREFIXED[0].start();
    let before = program.text();
    let mut record = Command::new(dist("bin/memprof"));
    record.args(["record", &program.host.pid().to_string(), "--for", "2s"]);
    record.env("MEMPROF_SOCKET_DIR", program.host.socket_dir());
    record.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut record = record.spawn().unwrap();
    let is_sampling = || {
        let status = program.host.memprof("status", &["--json"]);
        let allocators = (status.code == 0).then(|| status.json()["allocators"].take());
        allocators.is_some_and(|all| {
            let mut all = all.as_array().unwrap().iter();
            all.any(|each| each["prof_active"] == true)
        })
    };
    while record.try_wait().unwrap().is_none() && !is_sampling() {}
    while record.try_wait().unwrap().is_none() {
        program.does("keep malloc 100");
    }
    let output = record.wait_with_output().unwrap();
    let (table, notes) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(output.status.success(), "{notes}");
    let first = table.lines().nth(2).unwrap_or_default();
    assert!(first.ends_with("  one"), "{table}");
    assert!(program.text() == before);
}
