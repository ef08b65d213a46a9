//! Decides when an automatic dump is due.

pub(crate) mod gdump;
pub(crate) mod memory_reading;
pub(crate) mod rule;
pub(crate) mod watcher;
