//! Replies with the allocators' figures.

use serde::{Deserialize, Serialize};

use crate::{AllocatorKind, OpenEnum};

/// An allocator's totals in bytes, in jemalloc's words (jemalloc(3), `stats.*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeapTotals {
    /// What the program holds.
    pub allocated: u64,
    /// In pages that hold something.
    pub active: u64,
    /// The allocator's own.
    pub metadata: u64,
    /// In physical memory.
    pub resident: u64,
    /// In mapped extents.
    pub mapped: u64,
    /// Mapped, but given back: address space only.
    pub retained: u64,
}

/// What an allocator says that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum HeapUsage {
    /// It tells live memory from free.
    Detailed(HeapTotals),
    /// It does not.
    CommittedOnly {
        /// In pages that may be touched, in bytes.
        committed: u64,
    },
}

/// One allocator's figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stats {
    /// Which one.
    pub kind: OpenEnum<AllocatorKind>,
    /// As the allocator tells it: `5.3.0-0-g54eaed1d…`.
    pub version: String,
    /// The totals; absent where the allocator keeps none.
    #[serde(flatten)]
    pub totals: Option<HeapUsage>,
    /// Why it does not tell them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What it prints of itself, or why it does not; jemalloc without single arenas unless asked.
    pub report: String,
}

/// What `purge` did, in resident anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PurgeResult {
    /// Before it.
    pub anonymous_before_bytes: u64,
    /// After it.
    pub anonymous_after_bytes: u64,
    /// Before minus after; 0 where it grew.
    pub released_bytes: u64,
}

/// The background threads of one jemalloc.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackgroundThreads {
    /// Which one.
    pub kind: OpenEnum<AllocatorKind>,
    /// As the allocator tells it: `5.3.0-0-g54eaed1d…`.
    pub version: String,
    /// Whether they run.
    pub background_thread: bool,
    /// At most so many of them.
    pub max_background_threads: u64,
}

/// What one jemalloc has kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecentAllocations {
    /// Which one.
    pub kind: OpenEnum<AllocatorKind>,
    /// As the allocator tells it: `5.3.0-0-g54eaed1d…`.
    pub version: String,
    /// It keeps so many; -1: all of them.
    pub alloc_max: i64,
    /// jemalloc's own JSON: `sample_interval`, `recent_alloc_max`, `recent_alloc`.
    pub report: String,
}

/// What `stats`, `background_thread` and `recent` tell of each allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Allocators{T}")
)]
pub struct PerAllocator<T> {
    /// One for each.
    pub allocators: Vec<T>,
}

impl HeapTotals {
    /// The sum of two allocators' totals.
    #[must_use]
    pub const fn sum(self, other: Self) -> Self {
        // What an allocator says may be anything.
        Self {
            allocated: self.allocated.saturating_add(other.allocated),
            active: self.active.saturating_add(other.active),
            metadata: self.metadata.saturating_add(other.metadata),
            resident: self.resident.saturating_add(other.resident),
            mapped: self.mapped.saturating_add(other.mapped),
            retained: self.retained.saturating_add(other.retained),
        }
    }
}
