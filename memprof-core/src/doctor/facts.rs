//! Facts about the process, gathered first, so that the diagnosis is a pure function.

use std::path::PathBuf;

use super::malloc_conf::ConfSource;
use crate::allocators::unprofilable::Unprofilable;
use memprof_messages::{AllocatorKind, RuntimeHeap};

/// Facts that the diagnosis uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// Reason why profiling is impossible. `None` if it is possible.
    pub unavailable: Option<Unprofilable>,
    /// All allocators, including jemallocs.
    pub allocators: Vec<AllocatorFacts>,
    pub jemallocs: Vec<JemallocFacts>,
    /// File of the `malloc` that serves the process, if it belongs to no known allocator.
    pub unknown_malloc: Option<PathBuf>,
    /// File of the program, if it contains a jemalloc that memprof cannot control.
    pub stripped_jemalloc: Option<PathBuf>,
    /// Name and value of each environment variable that some jemalloc reads.
    pub environment: Vec<(String, String)>,
    /// Whether the loader has `_dl_find_object`, so that libgcc unwinds without a lock.
    pub lock_free_unwinding: bool,
    /// Whether the C library is musl.
    pub is_musl: bool,
    /// File whose `dl_iterate_phdr` interposes the C library's.
    pub interposer: Option<String>,
    /// Jemallocs from which memprof's walker was uninstalled, each with the reason.
    pub walker_disagreements: Vec<String>,
    /// Whether a seccomp filter restricts the process's system calls.
    pub has_seccomp_filter: bool,
    /// Language runtimes whose objects come from no allocator.
    pub runtime_heaps: Vec<RuntimeHeap>,
    pub dump_dir: DumpDirFacts,
}

/// Facts about an allocator of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllocatorFacts {
    /// Kind and release, such as `tcmalloc 2.10`.
    pub name: String,
    pub kind: AllocatorKind,
    /// Reason why memprof samples in its place. `None` unless it does.
    pub fallback_reason: Option<Unprofilable>,
    /// Symbols that the build lacks.
    pub missing: Vec<&'static str>,
    pub sample_interval: Option<u64>,
}

/// Facts about a jemalloc and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JemallocFacts {
    pub version: String,
    pub conf_variable: Option<String>,
    /// Name of a variable with options that the program defines but this jemalloc cannot see.
    pub hidden_conf_symbol: Option<String>,
    /// Reason why its own profiler cannot be used.
    pub unprofilable: Option<Unprofilable>,
    pub config_stats: bool,
    pub opt_prof: bool,
    pub lg_sample: Option<u64>,
    pub allocated: Option<u64>,
    /// Value of `opt.prof_prefix`.
    pub prefix: String,
    /// Whether every user may write to the directory of `prefix`.
    pub is_prefix_dir_world_writable: bool,
    /// Sources of its options, in the order in which it reads them.
    pub sources: Vec<ConfSource>,
    /// Path of a file that it would read if that were a symbolic link.
    pub misplaced_conf_file: Option<String>,
    /// Whether it writes dumps without memprof: `prof_final`, `prof_gdump` or `lg_prof_interval`.
    pub has_builtin_dumps: bool,
    /// Whether it writes one at each new maximum of its memory (`prof.gdump`).
    pub has_builtin_gdump: bool,
    /// Whether it may not sample some of the threads.
    pub leaves_threads_out: bool,
}

/// Facts about the dump directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct DumpDirFacts {
    pub path: PathBuf,
    /// Reason and remedy, if dumps cannot be kept there.
    pub unusable: Option<(String, String)>,
    /// Bytes that this user may still write there.
    pub free_bytes: Option<u64>,
    /// Whether the file system may block for long, as NFS and FUSE do.
    pub may_block: bool,
}
