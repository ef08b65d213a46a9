//! Accounting of the process's memory.

pub(crate) mod ledger;
pub(crate) mod recent_allocations;
pub(crate) mod smaps;
