//! The reply to `ledger`: the parts of the resident memory.

use serde::{Deserialize, Serialize};

use crate::open_enum::{OpenEnum, named_enums};
use crate::{AllocatorKind, HeapUsage};

/// Resident memory divided into parts. The rows add up to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ledger {
    /// Resident memory in bytes, as the kernel counts it.
    pub rss_bytes: u64,
    /// Parts in a fixed order. They add up to `rss_bytes`.
    pub rows: Vec<LedgerRow>,
    /// Each allocator's report of its heap.
    pub allocators: Vec<AllocatorHeap>,
    /// Memory cgroup of the process.
    pub cgroup: Option<Cgroup>,
    /// Significant findings, with remedies.
    pub verdicts: Vec<LedgerFinding>,
    /// The kernel's sums over all mappings, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smaps: Option<Smaps>,
    /// Walk of the heaps from outside the process, if `memprof ledger` made one. The rows are exact then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walk: Option<HeapWalk>,
    /// Parts of `not_the_allocator`, which add up to it, and parts of memory outside of RSS; largest first. Only
    /// `memprof ledger` fills this list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<MemoryPart>,
}

/// Memory outside of the allocators with one owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryPart {
    /// Owner, for people, such as `Java heap`.
    pub owner: String,
    /// Kind of the memory.
    pub kind: OpenEnum<MemoryPartKind>,
    /// Resident bytes; 0 for memory that is not part of RSS.
    pub resident_bytes: u64,
    /// Size of its address ranges, in bytes.
    pub mapped_bytes: u64,
}

/// Walk of the heaps from outside the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeapWalk {
    /// Names of the allocators whose heaps were walked.
    pub allocators: Vec<String>,
    /// Bytes of live objects that are not resident, because they were never written or were swapped out.
    pub untouched_bytes: u64,
    /// Bytes of live objects in huge pages of hugetlbfs, which are not part of RSS.
    pub huge_page_bytes: u64,
    /// Bytes that `purge` would release now.
    pub purgeable_bytes: u64,
    /// Time for which the process was stopped, in microseconds.
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
    /// Version in the allocator's format, such as `5.3.0-0-g54eaed1d…`.
    pub version: String,
    /// Whether it serves this process's `malloc`.
    pub owns_malloc: bool,
    /// Sizes of its heap. Absent if it keeps no count.
    #[serde(flatten)]
    pub totals: Option<HeapUsage>,
    /// Memory that sampling uses, if the allocator samples or has sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<SampledObjects>,
    /// Reason why it reports no sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Live sampled small objects, estimated from the unsampled objects of each size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SampledObjects {
    /// Number of objects.
    pub objects: u64,
    /// Bytes that the program requested, rounded up to size classes.
    pub bytes: u64,
    /// Bytes that `active` of the heap includes for them.
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
    /// Memory that all processes of the cgroup use, including page cache.
    pub usage_bytes: u64,
    /// Limit of the cgroup. Absent if there is none.
    pub limit_bytes: Option<u64>,
    /// Files in memory that the kernel can free: `file` of memory.stat without `shmem`. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_cache_bytes: Option<u64>,
    /// Shared memory, memfds and tmpfs, which the kernel can only swap out. Absent if unknown.
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

/// Sums over all mappings (`proc_pid_smaps(5)`), in bytes. The kernel walks every page to compute them, which takes 12
/// to 22 ms for 150 MB, and seconds for 200 GB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Smaps {
    /// Resident memory, in which the size of each shared page is divided by the number of processes that share it.
    pub pss_bytes: u64,
    /// Memory that only this process has written. It would be free after the process's end.
    pub private_dirty_bytes: u64,
    /// Memory that the kernel may free when it needs it (`MADV_FREE`).
    pub lazy_free_bytes: u64,
    /// Memory in huge pages.
    pub anon_huge_pages_bytes: u64,
    /// Memory that was swapped out, so it is not part of RSS.
    pub swap_bytes: u64,
}

named_enums! {
    /// A part of the resident memory.
    LedgerPart {
        /// Memory that the program has allocated.
        LiveHeap = "live_heap",
        /// Freed objects in the caches of threads.
        ThreadCaches = "thread_caches",
        /// Memory that sampling uses in addition to the objects.
        Sampling = "sampling",
        /// Free memory in pages that contain live objects.
        Fragmentation = "fragmentation",
        /// Free pages that were not returned to the kernel yet.
        Dirty = "dirty",
        /// Memory that the allocators use internally.
        Metadata = "metadata",
        /// Memory of allocators that do not distinguish live from free memory, or that count more than is resident.
        UndividedHeap = "undivided_heap",
        /// Stacks, static data, and mappings that no allocator created.
        NotTheAllocator = "not_the_allocator",
        /// Memory that either an allocator or the program mapped; unknown which.
        NotKnown = "not_known",
        /// Pages of files.
        File = "file",
        /// Shared memory.
        Shared = "shared",
    }

    /// Kind of memory outside of the allocators.
    MemoryPartKind {
        /// Objects of a language runtime that does not allocate them with `malloc`.
        LanguageHeap = "language_heap",
        /// Code that a runtime compiled.
        CompiledCode = "compiled_code",
        /// Stacks of threads.
        ThreadStacks = "thread_stacks",
        /// Variables of the program and its libraries, and other changed pages of files.
        Variables = "variables",
        /// The part of the mapping `[heap]` that no walk explains.
        Brk = "brk",
        /// Mappings to which the process gave names.
        Named = "named",
        /// Tables of memprof's sampler.
        Memprof = "memprof",
        /// Other anonymous memory.
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
        /// A notable part of the rows is uncertain.
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
    /// Minimum size of a part for a finding, in bytes.
    pub const MIN_BYTES: u64 = 16 << 20;
    /// Share of the whole that a part must exceed for a finding.
    pub const MIN_SHARE: f64 = 0.10;

    /// Returns whether a part of `bytes` is notable: it has at least [`Self::MIN_BYTES`], and more than
    /// [`Self::MIN_SHARE`] of `whole`, which is also in bytes.
    pub fn is_notable(bytes: u64, whole: u64) -> bool {
        let share = bytes as f64 / whole.max(1) as f64;
        share > Self::MIN_SHARE && bytes >= Self::MIN_BYTES
    }
}

impl SampledObjects {
    /// Returns the sums of the fields of two allocators' sampled objects; a sum that is too large becomes `u64::MAX`.
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
