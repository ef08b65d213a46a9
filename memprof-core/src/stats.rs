//! jemalloc's own figures.

use serde::Serialize;

use crate::error::Error;
use crate::mallctl::Mallctl;
use crate::printout::Printout;

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

impl Figures {
    /// The sum of two jemallocs' totals.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            allocated: self.allocated + other.allocated,
            active: self.active + other.active,
            metadata: self.metadata + other.metadata,
            resident: self.resident + other.resident,
            mapped: self.mapped + other.mapped,
            retained: self.retained + other.retained,
        }
    }
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
    /// `jemalloc`.
    pub kind: &'static str,
    /// Its version.
    pub version: String,
    /// The totals; absent where the allocator keeps none.
    #[serde(flatten)]
    pub figures: Option<Figures>,
    /// What `malloc_stats_print` says; without other options, leaving single arenas out.
    pub report: String,
}
