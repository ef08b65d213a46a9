//! Where the memory of the process is.

pub(crate) mod ledger;
pub(crate) mod recent;
pub(crate) mod smaps;
