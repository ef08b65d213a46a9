//! Accounting of the process's memory.

pub(crate) mod findings;
pub(crate) mod ledger;
pub(crate) mod recent_allocations;
pub(crate) mod resident_memory;
pub(crate) mod smaps;
