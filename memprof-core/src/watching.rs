//! Dumps that nobody asks for: when one is due.

pub(crate) mod gdump;
pub(crate) mod memory_reading;
pub(crate) mod rule;
pub(crate) mod watcher;
