//! Decides when an automatic dump is due.

pub(crate) mod high_water_watch;
pub(crate) mod memory_reading;
pub(crate) mod rule;
pub(crate) mod watcher;
