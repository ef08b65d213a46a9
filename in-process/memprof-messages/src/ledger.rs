//! The reply to `ledger`: where the resident memory is.

use serde::{Deserialize, Serialize};

use crate::open_enum::{OpenEnum, words};
use crate::{AllocatorKind, HeapUsage};

/// RSS, accounted for: the rows sum to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ledger {
    /// Resident memory as the kernel counts it.
    pub rss_bytes: u64,
    /// In the order in which they are told; they sum to `rss_bytes`.
    pub rows: Vec<LedgerRow>,
    /// What each allocator says of the heap's rows.
    pub allocators: Vec<AllocatorHeap>,
    /// The limits that the process lives under.
    pub cgroup: Option<Cgroup>,
    /// What is worth a word.
    pub verdicts: Vec<LedgerFinding>,
    /// The kernel's account of all mappings, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smaps: Option<Smaps>,
}

/// One part of the resident memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LedgerRow {
    /// Which part.
    pub name: OpenEnum<LedgerPart>,
    /// How much.
    pub bytes: u64,
}

/// One allocator's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AllocatorHeap {
    /// Which one.
    pub kind: OpenEnum<AllocatorKind>,
    /// As the allocator tells it: `5.3.0-0-g54eaed1d…`.
    pub version: String,
    /// Serves this process's `malloc`.
    pub owns_malloc: bool,
    /// What it says that it holds; absent where it keeps no count.
    #[serde(flatten)]
    pub totals: Option<HeapUsage>,
    /// What sampling costs, where it samples or did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<SampledObjects>,
    /// Why it does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Sampled small objects that live, as estimated from the sizes that live unsampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SampledObjects {
    /// How many.
    pub objects: u64,
    /// What the program asked for, as size classes.
    pub bytes: u64,
    /// What they are laid out in, and `active` counts.
    pub active: u64,
    /// What `allocated` counts for them.
    pub allocated: u64,
    /// The pages that the objects themselves lie in.
    pub pages: u64,
}

/// What the process's memory cgroup says, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cgroup {
    /// What all its processes and their page cache use.
    pub usage_bytes: u64,
    /// Its limit; absent when there is none.
    pub limit_bytes: Option<u64>,
}

/// Something in the ledger that is worth a word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LedgerFinding {
    /// What it is about.
    pub kind: OpenEnum<LedgerFindingKind>,
    /// The figures, and the threshold that they pass.
    pub why: String,
    /// What would help, and what would not.
    pub remedy: String,
}

/// The sums over all mappings (`proc_pid_smaps(5)`), in bytes. The kernel walks every page for
/// them: 12 to 22 ms for 150 MB, seconds for 200 GB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Smaps {
    /// Resident, each shared page divided by its sharers.
    pub pss_bytes: u64,
    /// Written by this process alone: what its end would free.
    pub private_dirty_bytes: u64,
    /// Marked as free, until the kernel needs it (`MADV_FREE`).
    pub lazy_free_bytes: u64,
    /// In huge pages.
    pub anon_huge_pages_bytes: u64,
    /// Swapped out: not in RSS.
    pub swap_bytes: u64,
}

words! {
    /// A part of the resident memory.
    LedgerPart {
        /// What the program holds.
        LiveHeap = "live_heap",
        /// What the samples take beside it.
        Sampling = "sampling",
        /// Free, in pages that hold something.
        Fragmentation = "fragmentation",
        /// Free pages that the kernel has not got back.
        Dirty = "dirty",
        /// The allocators' own.
        Metadata = "metadata",
        /// Of allocators that do not tell live memory from free.
        UndividedHeap = "undivided_heap",
        /// Stacks, static data, what was mapped without an allocator.
        NotTheAllocator = "not_the_allocator",
        /// Pages of files.
        File = "file",
        /// Shared memory.
        Shared = "shared",
    }

    /// What a verdict is about.
    LedgerFindingKind {
        /// The live heap grows.
        Growth = "growth",
        /// Sampling takes much.
        Sampling = "sampling",
        /// Much of the heap's pages is free.
        Fragmentation = "fragmentation",
        /// Many pages could be given back.
        Dirty = "dirty",
        /// Much is outside of the heap.
        NotTheAllocator = "not_the_allocator",
        /// Much of the cgroup's use is page cache.
        PageCache = "page_cache",
    }
}

impl SampledObjects {
    /// The sum of two allocators' samples.
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
