//! The allocators' own figures.

use memprof_messages::HeapTotals;

use crate::allocators::mallctl::Mallctl;
use crate::allocators::printout::Printout;
use crate::error::Error;

/// Reads a jemalloc's totals. The plugin provides it, because tikv-jemalloc-ctl, which it uses,
/// can be bound to a jemalloc of the host's only in a cdylib.
pub type ReadFigures = fn(&Mallctl) -> Result<HeapTotals, Error>;

/// Reads what `malloc_stats_print` says without single arenas; as [`ReadFigures`].
pub type ReadReport = fn(&Mallctl) -> Result<Printout, Error>;

/// How a jemalloc's figures are read.
#[derive(Clone, Copy, Debug)]
pub struct Readers {
    /// By `stats.*` (jemalloc(3)).
    pub figures: ReadFigures,
    /// What `malloc_stats_print` says.
    pub report: ReadReport,
}
