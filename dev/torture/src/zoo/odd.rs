//! Variants of odd.c: by its first argument, its linking and its environment.

use super::lines::Lines;
use xtask::dist::dist_dir;

/// Programs built from odd.c, with their linker options.
pub(crate) const LINKED: [(&str, &[&str]); 4] = [
    ("odd", &["-lpthread", "-ldl"]),
    ("odd_static", &["-static-pie"]),
    ("odd_fixed", &["-no-pie", "-Wl,-z,now", "-lpthread", "-ldl"]),
    ("odd_jemalloc", &["-l:libjemalloc.a", "-lstdc++", "-lm"]),
];

/// A variant of odd.c.
pub(super) struct Odd {
    program: &'static str,
    kind: &'static str,
    variable: Option<(&'static str, &'static str)>,
    pub(super) is_short: bool,
}

/// A variant that only the long suite runs.
const fn in_long_suite(kind: &'static str) -> Odd {
    Odd {
        program: "odd",
        kind,
        variable: None,
        is_short: false,
    }
}

/// A variant that the short suite runs, too.
const fn in_both_suites(kind: &'static str) -> Odd {
    Odd {
        is_short: true,
        ..in_long_suite(kind)
    }
}

/// A variant in a program of [`LINKED`], which only the long suite runs.
const fn built_as(program: &'static str, kind: &'static str) -> Odd {
    Odd {
        program,
        ..in_long_suite(kind)
    }
}

/// The variant `small-stacks` with an environment variable, which only the long suite runs.
const fn with_variable(name: &'static str, value: &'static str) -> Odd {
    Odd {
        variable: Some((name, value)),
        ..in_long_suite("small-stacks")
    }
}

pub(super) const ODD: &[Odd] = &[
    in_long_suite("alternate-stack"),
    in_long_suite("batch"),
    in_long_suite("blocked"),
    in_long_suite("chroot"),
    in_long_suite("clone"),
    in_long_suite("coroutine"),
    in_long_suite("dlmopen"),
    in_long_suite("dlopen"),
    in_both_suites("exec"),
    in_long_suite("faults"),
    in_long_suite("fork"),
    in_long_suite("handlers"),
    in_long_suite("hidden"),
    in_long_suite("idle"),
    in_long_suite("ignored-children"),
    in_long_suite("large-stacks"),
    in_long_suite("limited-files"),
    in_long_suite("limited-locked"),
    in_long_suite("limited-size"),
    in_long_suite("limited-space"),
    in_long_suite("limited-stack"),
    in_both_suites("little"),
    in_long_suite("locked"),
    in_long_suite("no-new-privileges"),
    in_long_suite("no-sockets"),
    in_both_suites("no-stdio"),
    in_long_suite("no-threads"),
    in_long_suite("plain"),
    in_long_suite("ring"),
    in_long_suite("setuid"),
    in_long_suite("signalfd"),
    in_both_suites("skewed"),
    in_long_suite("small-stacks"),
    in_long_suite("spawn"),
    in_long_suite("threads"),
    in_long_suite("timerfd"),
    in_long_suite("timers"),
    in_long_suite("unshared"),
    in_long_suite("unshared-files"),
    in_long_suite("vectors"),
    in_long_suite("vfork"),
    built_as("odd_static", "plain"),
    built_as("odd_fixed", "skewed"),
    built_as("odd_fixed", "small-stacks"),
    built_as("odd_jemalloc", "coroutine"),
    built_as("odd_jemalloc", "fork"),
    built_as("odd_jemalloc", "small-stacks"),
    with_variable("LD_PRELOAD", "libjemalloc.so.2"),
    with_variable("LD_PRELOAD", "libtcmalloc.so.4"),
    with_variable("LD_PRELOAD", "libtcmalloc_minimal.so.4"),
    with_variable("LD_PRELOAD", "libmimalloc.so.2"),
    with_variable(
        "GLIBC_TUNABLES",
        "glibc.pthread.rseq=0:glibc.malloc.tcache_count=0",
    ),
    with_variable("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=64"),
    with_variable("LD_BIND_NOW", "1"),
    with_variable("MALLOC_PERTURB_", "165"),
    with_variable("MALLOC_ARENA_MAX", "1"),
];

impl Odd {
    /// Name in the suite's output: the program, its first argument and its environment variable.
    pub(super) fn name(&self) -> String {
        let Self { program, kind, .. } = self;
        match self.variable {
            Some((name, value)) => format!("{program} {kind} {name}={value}"),
            None => format!("{program} {kind}"),
        }
    }

    /// Returns the command that starts the variant, and the line to which it replies.
    pub(super) fn lines(&self) -> Lines {
        let program = dist_dir().join("torture").join(self.program);
        Lines {
            words: vec![program.display().to_string(), self.kind.to_owned()],
            variable: self.variable,
            first: "",
            line: "a\n",
        }
    }
}
