//! Variants of odd.c: by its first argument, its linking and its environment.

use super::lines::Lines;
use xtask::dist::dist;

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

const fn kind(kind: &'static str) -> Odd {
    Odd {
        program: "odd",
        kind,
        variable: None,
        is_short: false,
    }
}

const fn short(name: &'static str) -> Odd {
    Odd {
        is_short: true,
        ..kind(name)
    }
}

const fn linked(program: &'static str, name: &'static str) -> Odd {
    Odd {
        program,
        ..kind(name)
    }
}

const fn with_variable(name: &'static str, value: &'static str) -> Odd {
    Odd {
        variable: Some((name, value)),
        ..kind("small-stacks")
    }
}

pub(super) const ODD: &[Odd] = &[
    kind("alternate-stack"),
    kind("batch"),
    kind("blocked"),
    kind("chroot"),
    kind("clone"),
    kind("coroutine"),
    kind("dlmopen"),
    kind("dlopen"),
    short("exec"),
    kind("faults"),
    kind("fork"),
    kind("handlers"),
    kind("hidden"),
    kind("idle"),
    kind("ignored-children"),
    kind("large-stacks"),
    kind("limited-files"),
    kind("limited-locked"),
    kind("limited-size"),
    kind("limited-space"),
    kind("limited-stack"),
    short("little"),
    kind("locked"),
    kind("no-new-privileges"),
    kind("no-sockets"),
    short("no-stdio"),
    kind("no-threads"),
    kind("plain"),
    kind("ring"),
    kind("setuid"),
    kind("signalfd"),
    short("skewed"),
    kind("small-stacks"),
    kind("spawn"),
    kind("threads"),
    kind("timerfd"),
    kind("timers"),
    kind("unshared"),
    kind("unshared-files"),
    kind("vectors"),
    kind("vfork"),
    linked("odd_static", "plain"),
    linked("odd_fixed", "skewed"),
    linked("odd_fixed", "small-stacks"),
    linked("odd_jemalloc", "coroutine"),
    linked("odd_jemalloc", "fork"),
    linked("odd_jemalloc", "small-stacks"),
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
    pub(super) fn name(&self) -> String {
        let Self { program, kind, .. } = self;
        match self.variable {
            Some((name, value)) => format!("{program} {kind} {name}={value}"),
            None => format!("{program} {kind}"),
        }
    }

    pub(super) fn lines(&self) -> Lines {
        let program = dist().join("torture").join(self.program);
        Lines {
            words: vec![program.display().to_string(), self.kind.to_owned()],
            variable: self.variable,
            first: "",
            line: "a\n",
        }
    }
}
