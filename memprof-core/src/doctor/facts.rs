//! What is known of the process before it is judged, so that the judgement is pure.

use std::path::PathBuf;

use super::malloc_conf::ConfSource;
use crate::allocators::unprofilable::Unprofilable;
use memprof_messages::AllocatorKind;

/// What of the process the rules look at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// Why profiling cannot be on.
    pub unavailable: Option<Unprofilable>,
    /// All of them, jemallocs too.
    pub allocators: Vec<AllocatorFacts>,
    pub jemallocs: Vec<JemallocFacts>,
    /// The file whose `malloc` serves the process, where that is none of the allocators.
    pub unknown_malloc: Option<PathBuf>,
    /// The program's file, where it contains a jemalloc that cannot be driven.
    pub stripped_jemalloc: Option<PathBuf>,
    /// The variables for allocators that are set, with their values.
    pub environment: Vec<(String, String)>,
    /// The loader offers `_dl_find_object`, so libgcc unwinds without a lock.
    pub lock_free_unwinding: bool,
    /// The C library is musl.
    pub is_musl: bool,
    /// The file whose `dl_iterate_phdr` stands before the C library's.
    pub interposer: Option<String>,
    /// Allocators whose stacks our walk did not find.
    pub given_up_walks: Vec<String>,
    /// A seccomp filter decides which system calls it may make.
    pub is_filtered: bool,
    /// The language runtimes that keep objects where no allocator is asked.
    pub own_heaps: Vec<RuntimeHeap>,
    pub dump_dir: DumpDirFacts,
}

/// A language runtime, or library, whose objects do not come from malloc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuntimeHeap {
    /// pymalloc.
    Python,
    /// The Zend memory manager.
    Php,
    V8,
    Jvm,
    Ruby,
    Erlang,
    LuaJit,
    /// The Apache Portable Runtime, of httpd and Subversion.
    Apr,
    /// Of MariaDB and MySQL.
    InnoDb,
}

/// Any allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllocatorFacts {
    /// `tcmalloc 2.10`.
    pub name: String,
    pub kind: AllocatorKind,
    /// Why memprof samples in its place.
    pub in_place: Option<Unprofilable>,
    /// Symbols that it should have.
    pub missing: Vec<&'static str>,
    pub sample_interval: Option<u64>,
}

/// A jemalloc and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JemallocFacts {
    pub version: String,
    pub conf_variable: Option<String>,
    /// What the program sets in a variable of its own that this jemalloc cannot see.
    pub hidden_conf: Option<String>,
    /// Why it cannot be profiled by itself.
    pub unprofilable: Option<Unprofilable>,
    pub config_stats: bool,
    pub opt_prof: bool,
    pub lg_sample: Option<u64>,
    pub allocated: Option<u64>,
    /// `opt.prof_prefix`.
    pub prefix: String,
    /// Everybody may write to the directory of `prefix`.
    pub prefix_is_shared: bool,
    /// Where its options come from, in the order in which it reads them.
    pub sources: Vec<ConfSource>,
    /// A file that it would read if it were a symbolic link.
    pub unlinked_conf: Option<String>,
    /// It dumps by itself: `prof_final`, `prof_gdump` or `lg_prof_interval`.
    pub dumps_by_itself: bool,
}

/// The dump directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct DumpDirFacts {
    pub path: PathBuf,
    /// Why dumps cannot be kept there, with the remedy.
    pub unusable: Option<(String, String)>,
    /// Bytes that this user may still write there.
    pub room: Option<u64>,
    /// The file system may block for long, as NFS and FUSE do.
    pub may_block: bool,
}
