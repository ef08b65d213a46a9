//! What memprof owns in somebody else's process, made so that it cannot harm that process: its
//! threads, their descriptors, the memory that they need, and locks that outlive a fork.
//!
//! `memprof-core` and `memprof-host` make every thread by [`spawn`]. Nothing here knows an
//! allocator, a plugin or a host.

mod descriptor;
mod lock;
mod memory;
mod privileges;
mod thread;

pub use descriptor::Ours;
pub use lock::{Held, ProcessLock};
pub use memory::require_memory;
pub use privileges::Privileges;
pub use thread::{Plan, Thread, spawn, spawn_plan};
