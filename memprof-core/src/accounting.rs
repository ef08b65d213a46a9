//! Where the memory of the process is.

pub(crate) mod ledger;
pub(crate) mod recent_allocations;
pub(crate) mod smaps;
