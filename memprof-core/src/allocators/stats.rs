//! The allocators' own figures.

use serde::Serialize;

use crate::allocators::mallctl::Mallctl;
use crate::allocators::printout::Printout;
use crate::error::Error;
use crate::identity::Kind;

/// An allocator's totals in bytes, in jemalloc's words (jemalloc(3), `stats.*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
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

impl Figures {
    /// The sum of two allocators' totals.
    pub(crate) fn plus(self, other: Self) -> Self {
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

/// What an allocator says that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Totals {
    /// It tells live memory from free.
    Divided(Figures),
    /// It does not.
    Committed {
        /// In pages that may be touched, in bytes.
        committed: u64,
    },
}

/// Reads a jemalloc's totals. The plugin provides it, because tikv-jemalloc-ctl, which it uses,
/// can be bound to a jemalloc of the host's only in a cdylib.
pub type ReadFigures = fn(&Mallctl) -> Result<Figures, Error>;

/// Reads what `malloc_stats_print` says without single arenas; as [`ReadFigures`].
pub type ReadReport = fn(&Mallctl) -> Result<Printout, Error>;

/// How a jemalloc's figures are read.
#[derive(Clone, Copy, Debug)]
pub struct Readers {
    /// Its totals.
    pub figures: ReadFigures,
    /// What `malloc_stats_print` says.
    pub report: ReadReport,
}

/// One allocator's figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Which one.
    pub kind: Kind,
    /// Its version.
    pub version: String,
    /// The totals; absent where the allocator keeps none.
    #[serde(flatten)]
    pub totals: Option<Totals>,
    /// Why it does not tell them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What it prints of itself, or why it does not; jemalloc without single arenas unless asked.
    pub report: String,
}
