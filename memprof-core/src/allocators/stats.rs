//! Functions with which the plugin reads a jemalloc's statistics.

use memprof_messages::HeapTotals;

use crate::allocators::mallctl::Mallctl;
use crate::allocators::printout::Printout;
use crate::error::Error;

/// Reads a jemalloc's heap totals. The plugin provides it, because it uses tikv-jemalloc-ctl, which only a
/// cdylib can bind to a jemalloc of the host.
pub type ReadTotals = fn(&Mallctl) -> Result<HeapTotals, Error>;

/// Reads the `malloc_stats_print` output of a jemalloc without single arenas. Provided by the plugin, like
/// [`ReadTotals`].
pub type ReadPrintout = fn(&Mallctl) -> Result<Printout, Error>;

/// Functions that read a jemalloc's statistics.
#[derive(Clone, Copy, Debug)]
pub struct JemallocReaders {
    /// Reads the heap totals from `stats.*` (jemalloc(3)).
    pub totals: ReadTotals,
    /// Reads the output of `malloc_stats_print`.
    pub printout: ReadPrintout,
}
