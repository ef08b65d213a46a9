//! Replies with the allocators' sizes and settings.

use serde::{Deserialize, Serialize};

use crate::{AllocatorKind, OpenEnum};

/// Sizes of an allocator's heap in bytes, as jemalloc defines them (jemalloc(3), `stats.*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeapTotals {
    /// Memory that the program has allocated.
    pub allocated: u64,
    /// Pages that contain allocated memory.
    pub active: u64,
    /// Memory that the allocator uses internally.
    pub metadata: u64,
    /// Physical memory.
    pub resident: u64,
    /// Size of the mapped extents.
    pub mapped: u64,
    /// Extents that were released to the kernel. They are only address space.
    pub retained: u64,
    /// Freed objects in the caches of threads, if the allocator reports them. They are part of `active`, but not of
    /// `allocated`.
    #[serde(default)]
    pub thread_caches: u64,
    /// Free pages that the kernel may take when memory is short (`MADV_FREE`). They are not part of `resident`.
    #[serde(default)]
    pub lazily_free: u64,
}

/// Sizes of a heap, as its allocator reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum HeapUsage {
    /// The allocator distinguishes live from free memory.
    Detailed(HeapTotals),
    /// The allocator does not distinguish live from free memory.
    CommittedOnly {
        /// Bytes of the pages that may have been touched.
        committed: u64,
    },
}

/// One allocator's statistics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stats {
    /// Name of the allocator.
    pub kind: OpenEnum<AllocatorKind>,
    /// Version in the allocator's format, such as `5.3.0-0-g54eaed1d…`.
    pub version: String,
    /// Sizes of its heap. Absent if it keeps no count.
    #[serde(flatten)]
    pub totals: Option<HeapUsage>,
    /// Reason why it reports no sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The allocator's printout, or the reason why there is none. By default, jemalloc omits single arenas.
    pub report: String,
}

/// Effect of `purge` on the resident anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PurgeResult {
    /// Bytes before the purge.
    pub anonymous_before_bytes: u64,
    /// Bytes after the purge.
    pub anonymous_after_bytes: u64,
    /// Bytes before minus bytes after; 0 if the memory grew.
    pub released_bytes: u64,
    /// Bytes that the allocators, or a walk of the heaps by `memprof purge`, predicted before. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_bytes: Option<u64>,
}

/// State of the background threads of one jemalloc.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackgroundThreads {
    /// Name of the allocator.
    pub kind: OpenEnum<AllocatorKind>,
    /// Version in the allocator's format, such as `5.3.0-0-g54eaed1d…`.
    pub version: String,
    /// Whether the threads are running.
    pub background_thread: bool,
    /// Maximum number of threads.
    pub max_background_threads: u64,
}

/// The latest sampled allocations that one jemalloc recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecentAllocations {
    /// Name of the allocator.
    pub kind: OpenEnum<AllocatorKind>,
    /// Version in the allocator's format, such as `5.3.0-0-g54eaed1d…`.
    pub version: String,
    /// Number of allocations that jemalloc keeps; -1 means all.
    pub alloc_max: i64,
    /// jemalloc's JSON, with `sample_interval`, `recent_alloc_max` and `recent_alloc`.
    pub report: String,
}

/// The reply to `stats`, `background_thread` and `recent`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Allocators{T}")
)]
pub struct PerAllocator<T> {
    /// One entry for each allocator.
    pub allocators: Vec<T>,
}

impl HeapTotals {
    /// Returns the sums of the fields of two allocators' sizes; a sum that is too large becomes `u64::MAX`.
    #[must_use]
    pub const fn sum(self, other: Self) -> Self {
        // The sums saturate, because an allocator may report any number.
        Self {
            allocated: self.allocated.saturating_add(other.allocated),
            active: self.active.saturating_add(other.active),
            metadata: self.metadata.saturating_add(other.metadata),
            resident: self.resident.saturating_add(other.resident),
            mapped: self.mapped.saturating_add(other.mapped),
            retained: self.retained.saturating_add(other.retained),
            thread_caches: self.thread_caches.saturating_add(other.thread_caches),
            lazily_free: self.lazily_free.saturating_add(other.lazily_free),
        }
    }
}
