//! What memprof owns in somebody else's process, made so that it cannot harm that process: its
//! threads, their descriptors, the memory that they need, and locks that outlive a fork.
//!
//! `memprof-core` and `memprof-host` make every thread by [`spawn`]. Nothing here knows an
//! allocator, a plugin or a host.

mod descriptor;
#[cfg(target_arch = "x86_64")]
mod imports;
mod kept;
mod libc_symbol;
mod loader;
mod lock;
mod memory;
mod privileges;
mod reading;
mod reserve;
mod stdio;
mod thread;

pub use descriptor::{Ours, above_stdio};
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
pub use imports::bind_imports;
pub use kept::Kept;
pub use libc_symbol::libc_symbol;
pub use lock::{Held, ProcessLock, ProcessOnce};
pub use memory::{allocate_thread_locals, require_memory};
pub use privileges::Privileges;
pub use reading::Reading;
pub use reserve::ReservedAllocator;
pub use stdio::StdioGuard;
pub use thread::{Needs, Plan, Thread, at_thread_start, spawn, spawn_plan, spawn_with};
