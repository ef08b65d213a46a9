//! jemalloc's own figures.

use serde::Serialize;

use crate::error::Error;
use crate::mallctl::Mallctl;

/// jemalloc's totals in bytes, in its own words (jemalloc(3), `stats.*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// What the program holds.
    pub allocated: u64,
    /// In pages that hold something.
    pub active: u64,
    /// jemalloc's own.
    pub metadata: u64,
    /// In physical memory.
    pub resident: u64,
    /// In mapped extents.
    pub mapped: u64,
    /// Mapped, but given back: address space only.
    pub retained: u64,
}

/// Reads figures and the text of `malloc_stats_print`; the plugin provides it, because
/// tikv-jemalloc-ctl, which it uses, can be bound to one jemalloc at a time only in a cdylib.
pub type ReadStats = fn(&Mallctl) -> Result<(Figures, String), Error>;

/// One allocator's figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// `jemalloc`.
    pub kind: &'static str,
    /// Its version.
    pub version: String,
    /// The totals; absent when this jemalloc was built without statistics.
    #[serde(flatten)]
    pub figures: Option<Figures>,
    /// What `malloc_stats_print` says, without the single arenas.
    pub report: String,
}
