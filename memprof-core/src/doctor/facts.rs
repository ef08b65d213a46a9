//! Facts about the process. They are gathered first, so that the diagnosis is a pure function of them.

use std::path::PathBuf;

use super::malloc_conf::ConfSource;
use crate::allocators::unprofilable::Unprofilable;
use memprof_messages::{AllocatorKind, RuntimeHeap};

/// All facts that the diagnosis uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// Reason why profiling is impossible. `None` if it is possible.
    pub unavailable: Option<Unprofilable>,
    /// All allocators, including jemallocs.
    pub allocators: Vec<AllocatorFacts>,
    pub jemallocs: Vec<JemallocFacts>,
    /// File of the `malloc` that serves the process, if it belongs to no known allocator.
    pub unknown_malloc: Option<PathBuf>,
    /// File of the program, if it contains a jemalloc without symbols, which memprof cannot control.
    pub stripped_jemalloc: Option<PathBuf>,
    /// Names and values of the environment variables that some jemalloc may read.
    pub environment: Vec<(String, String)>,
    /// Whether the loader has `_dl_find_object`. If it does, libgcc walks stacks without a lock.
    pub lock_free_unwinding: bool,
    /// Whether the C library is musl.
    pub is_musl: bool,
    /// File that interposes `dl_iterate_phdr` of the C library.
    pub interposer: Option<String>,
    /// Jemallocs from which memprof's walker was removed, each with the reason.
    pub walker_disagreements: Vec<String>,
    /// Whether a seccomp filter restricts the process's system calls.
    pub has_seccomp_filter: bool,
    /// Language runtimes that allocate objects without any allocator that memprof knows.
    pub runtime_heaps: Vec<RuntimeHeap>,
    pub dump_dir: DumpDirFacts,
}

/// Facts about an allocator of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllocatorFacts {
    /// Kind and release, such as `tcmalloc 2.10`.
    pub name: String,
    pub kind: AllocatorKind,
    /// Reason why memprof's sampler replaces the allocator's. `None` if it does not.
    pub fallback_reason: Option<Unprofilable>,
    /// Symbols that the build lacks.
    pub missing: Vec<&'static str>,
    pub sample_interval: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JemallocFacts {
    pub version: String,
    pub conf_variable: Option<String>,
    /// Name of a variable with options that the program defines but does not export, so this jemalloc cannot see it.
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
    /// Path of a file that it would read as options if the file were a symbolic link.
    pub misplaced_conf_file: Option<String>,
    /// Whether it writes dumps without memprof: `prof_final`, `prof_gdump` or `lg_prof_interval`.
    pub has_builtin_dumps: bool,
    /// Whether it writes a dump at each new maximum of its memory (`prof.gdump`).
    pub has_builtin_gdump: bool,
    /// Whether some threads may be unsampled.
    pub may_skip_threads: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct DumpDirFacts {
    pub path: PathBuf,
    /// Reason and remedy, if dumps cannot be stored there.
    pub unusable: Option<(String, String)>,
    /// Free space that this user may still use there, in bytes.
    pub free_bytes: Option<u64>,
    /// Whether operations of the file system may block for long, as on NFS and FUSE.
    pub may_block: bool,
}
