//! What memprof owns in somebody else's process, made so that it cannot harm that process: its
//! threads, and the memory that they need.
//!
//! `memprof-core` and `memprof-host` make every thread by [`spawn`]. Nothing here knows an
//! allocator, a plugin or a host.

mod memory;
mod privileges;
mod thread;

pub use memory::require_memory;
pub use privileges::Privileges;
pub use thread::{Plan, Thread, spawn, spawn_plan};
