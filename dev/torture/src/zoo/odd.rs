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
const fn long_suite_variant(kind: &'static str) -> Odd {
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
        ..long_suite_variant(kind)
    }
}

/// A variant in a program of [`LINKED`], which only the long suite runs.
const fn built_as(program: &'static str, kind: &'static str) -> Odd {
    Odd {
        program,
        ..long_suite_variant(kind)
    }
}

/// The variant `small-stacks` with an environment variable, which only the long suite runs.
const fn with_variable(name: &'static str, value: &'static str) -> Odd {
    Odd {
        variable: Some((name, value)),
        ..long_suite_variant("small-stacks")
    }
}

pub(super) const ODD: &[Odd] = &[
    long_suite_variant("alternate-stack"),
    long_suite_variant("batch"),
    long_suite_variant("blocked"),
    long_suite_variant("chroot"),
    long_suite_variant("clone"),
    long_suite_variant("coroutine"),
    long_suite_variant("dlmopen"),
    long_suite_variant("dlopen"),
    in_both_suites("exec"),
    long_suite_variant("faults"),
    long_suite_variant("fork"),
    long_suite_variant("handlers"),
    long_suite_variant("hidden"),
    long_suite_variant("idle"),
    long_suite_variant("ignored-children"),
    long_suite_variant("large-stacks"),
    long_suite_variant("limited-files"),
    long_suite_variant("limited-locked"),
    long_suite_variant("limited-size"),
    long_suite_variant("limited-space"),
    long_suite_variant("limited-stack"),
    in_both_suites("little"),
    long_suite_variant("locked"),
    long_suite_variant("no-new-privileges"),
    long_suite_variant("no-sockets"),
    in_both_suites("no-stdio"),
    long_suite_variant("no-threads"),
    long_suite_variant("plain"),
    long_suite_variant("ring"),
    long_suite_variant("setuid"),
    long_suite_variant("signalfd"),
    in_both_suites("skewed"),
    long_suite_variant("small-stacks"),
    long_suite_variant("spawn"),
    long_suite_variant("threads"),
    long_suite_variant("timerfd"),
    long_suite_variant("timers"),
    long_suite_variant("unshared"),
    long_suite_variant("unshared-files"),
    long_suite_variant("vectors"),
    long_suite_variant("vfork"),
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
