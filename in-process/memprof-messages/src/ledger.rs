//! The reply to `ledger`: the parts of the resident memory.

use serde::{Deserialize, Serialize};

use crate::open_enum::{OpenEnum, named_enums};
use crate::{AllocatorKind, HeapUsage};

/// Resident memory divided into parts: the rows sum to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ledger {
    /// Resident memory in bytes, as the kernel counts it.
    pub rss_bytes: u64,
    /// Parts in a fixed order; they sum to `rss_bytes`.
    pub rows: Vec<LedgerRow>,
    /// Each allocator's report of its heap.
    pub allocators: Vec<AllocatorHeap>,
    /// Memory cgroup of the process.
    pub cgroup: Option<Cgroup>,
    /// Significant findings, with remedies.
    pub verdicts: Vec<LedgerFinding>,
    /// The kernel's account of all mappings, if it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smaps: Option<Smaps>,
    /// The heaps' walk from outside the process, if `memprof ledger` made one: the rows are then exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walk: Option<HeapWalk>,
    /// Parts of `not_the_allocator`, which they sum to, and of memory outside of RSS, the largest first; only
    /// `memprof ledger` fills them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<MemoryPart>,
}

/// Memory outside of the allocators with one owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryPart {
    /// Owner for people, e.g. `Java heap`.
    pub owner: String,
    /// Kind of the memory.
    pub kind: OpenEnum<MemoryPartKind>,
    /// Resident bytes; 0 for memory that RSS does not contain.
    pub resident_bytes: u64,
    /// Bytes of its address ranges.
    pub mapped_bytes: u64,
}

/// Walk of the heaps from outside the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeapWalk {
    /// Names of the allocators whose heaps were walked.
    pub allocators: Vec<String>,
    /// Bytes of live objects that are not resident: never written to, or swapped out.
    pub untouched_bytes: u64,
    /// Bytes of live objects in huge pages of hugetlbfs, which RSS does not contain.
    pub huge_page_bytes: u64,
    /// Bytes that `purge` would give back now.
    pub purgeable_bytes: u64,
    /// Time in microseconds for which the process was stopped.
    pub stopped_us: u64,
}

/// One part of the resident memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LedgerRow {
    /// Name of the part.
    pub name: OpenEnum<LedgerPart>,
    /// Size in bytes.
    pub bytes: u64,
}

/// One allocator's report of its heap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AllocatorHeap {
    /// Name of the allocator.
    pub kind: OpenEnum<AllocatorKind>,
    /// Version as the allocator reports it: `5.3.0-0-g54eaed1d…`.
    pub version: String,
    /// Whether it serves this process's `malloc`.
    pub owns_malloc: bool,
    /// Sizes of its heap; absent if it keeps no count.
    #[serde(flatten)]
    pub totals: Option<HeapUsage>,
    /// Memory used by sampling, if the allocator samples or has sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<SampledObjects>,
    /// Reason for which it reports no sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Live sampled small objects, estimated from the size classes of the unsampled ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SampledObjects {
    /// Number of objects.
    pub objects: u64,
    /// Bytes that the program requested, rounded up to size classes.
    pub bytes: u64,
    /// Bytes of the memory in which they are laid out, which `active` of the heap includes.
    pub active: u64,
    /// Bytes that `allocated` of the heap includes for them.
    pub allocated: u64,
    /// Bytes of the pages that contain the objects.
    pub pages: u64,
}

/// Memory of the process's memory cgroup, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cgroup {
    /// Memory that all processes of the cgroup and their page cache use.
    pub usage_bytes: u64,
    /// Limit of the cgroup; absent if there is none.
    pub limit_bytes: Option<u64>,
    /// Files in memory that the kernel can free: `file` of memory.stat without `shmem`; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_cache_bytes: Option<u64>,
    /// Shared memory, memfds and tmpfs, which the kernel can only swap out; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_bytes: Option<u64>,
}

/// A significant finding in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LedgerFinding {
    /// Subject of the finding.
    pub kind: OpenEnum<LedgerFindingKind>,
    /// Reason: the sizes, and the threshold that they exceed.
    pub why: String,
    /// Remedy, and the measures that would not help.
    pub remedy: String,
}

/// Sums over all mappings (`proc_pid_smaps(5)`), in bytes. The kernel walks every page to compute them: 12 to 22 ms for
/// 150 MB, seconds for 200 GB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Smaps {
    /// Resident, where the size of each shared page is divided by the number of processes that share it.
    pub pss_bytes: u64,
    /// Written by this process only: the memory that its end would free.
    pub private_dirty_bytes: u64,
    /// Marked as free until the kernel needs it (`MADV_FREE`).
    pub lazy_free_bytes: u64,
    /// Backed by huge pages.
    pub anon_huge_pages_bytes: u64,
    /// Swapped out, so not part of RSS.
    pub swap_bytes: u64,
}

named_enums! {
    /// A part of the resident memory.
    LedgerPart {
        /// Memory that the program has allocated.
        LiveHeap = "live_heap",
        /// Freed objects in the caches of threads.
        ThreadCaches = "thread_caches",
        /// Memory that samples use beside the objects.
        Sampling = "sampling",
        /// Free memory in pages that contain live objects.
        Fragmentation = "fragmentation",
        /// Free pages that were not returned to the kernel yet.
        Dirty = "dirty",
        /// Memory of the allocators for themselves.
        Metadata = "metadata",
        /// Memory of allocators that do not distinguish live memory from free, or count more than is resident.
        UndividedHeap = "undivided_heap",
        /// Stacks, static data, and mappings that no allocator made.
        NotTheAllocator = "not_the_allocator",
        /// Memory of which it is not known whether an allocator or the program mapped it.
        NotKnown = "not_known",
        /// Pages of files.
        File = "file",
        /// Shared memory.
        Shared = "shared",
    }

    /// Kind of memory outside of the allocators.
    MemoryPartKind {
        /// Objects of a language runtime, which no `malloc` served.
        LanguageHeap = "language_heap",
        /// Code that a runtime has compiled.
        CompiledCode = "compiled_code",
        /// Stacks of threads.
        ThreadStacks = "thread_stacks",
        /// Variables of the program and its libraries, and other changed pages of files.
        Variables = "variables",
        /// The mapping `[heap]`, as far as no walk explains it.
        Brk = "brk",
        /// Mappings that the process has named.
        Named = "named",
        /// Tables of memprof's sampler.
        Memprof = "memprof",
        /// Anonymous memory of which nothing is known.
        NotKnown = "not_known",
        /// Huge pages of hugetlbfs, outside of RSS.
        HugePages = "huge_pages",
        /// Memory of devices, outside of RSS.
        Device = "device",
    }

    /// Subject of a finding.
    LedgerFindingKind {
        /// The live heap is growing.
        Growth = "growth",
        /// Sampling uses much memory.
        Sampling = "sampling",
        /// A large part of the heap's pages is free.
        Fragmentation = "fragmentation",
        /// Many pages could be purged.
        Dirty = "dirty",
        /// Much freed memory is in the caches of threads.
        ThreadCaches = "thread_caches",
        /// A notable part of the rows is not certain.
        Uncertain = "uncertain",
        /// Much memory is outside of the heap.
        NotTheAllocator = "not_the_allocator",
        /// A large part of the cgroup's memory is page cache.
        PageCache = "page_cache",
        /// A large part of the cgroup's memory is shared memory, which the kernel cannot free.
        SharedMemory = "shared_memory",
    }
}

impl LedgerFinding {
    /// Least size in bytes of a part that is worth a finding.
    pub const MIN_BYTES: u64 = 16 << 20;
    /// Share of the whole above which a part is worth a finding.
    pub const MIN_SHARE: f64 = 0.10;

    /// Whether a part of `bytes` is notable in a `whole` of that many.
    pub fn is_notable(bytes: u64, whole: u64) -> bool {
        let share = bytes as f64 / whole.max(1) as f64;
        share > Self::MIN_SHARE && bytes >= Self::MIN_BYTES
    }
}

impl SampledObjects {
    /// Returns the sum of two allocators' sampled objects.
    #[must_use]
    pub const fn sum(self, other: Self) -> Self {
        Self {
            objects: self.objects.saturating_add(other.objects),
            bytes: self.bytes.saturating_add(other.bytes),
            active: self.active.saturating_add(other.active),
            allocated: self.allocated.saturating_add(other.allocated),
            pages: self.pages.saturating_add(other.pages),
        }
    }
}
