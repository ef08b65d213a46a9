//! Threads, descriptors, memory and locks that memprof can use inside a host process without harming it.
//!
//! The host may close any descriptor, fork at any time, drop privileges, or run out of memory. `memprof-core` and
//! `memprof-host` create all of their threads with [`spawn`]. This crate depends on no allocator, plugin or host.

mod clocks;
mod containing_object;
mod descriptor_table;
mod exported_symbol;
mod fork_guard;
mod guarded_fd;
#[cfg(target_arch = "x86_64")]
mod imports;
mod inherited_settings;
mod libc_symbol;
mod loaded_object;
mod loader_lock;
mod lock;
mod lock_free_once;
mod memory;
mod own_descriptors;
mod privileges;
mod reserve;
mod status_lines;
mod stdio;
mod thread;

pub use clocks::{
    boot_time, clock_ticks_per_second, coarse_monotonic_time, coarse_wall_time, page_size,
};
pub use containing_object::find_object_containing;
pub use descriptor_table::DescriptorTable;
pub use exported_symbol::find_exported_symbol;
pub use fork_guard::ForkGuard;
pub use guarded_fd::{GuardedFd, move_above_stdio};
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
pub use imports::bind_imports;
pub use inherited_settings::detect_processor_features;
pub use libc_symbol::libc_symbol;
pub use loaded_object::{open_loaded_object, wait_for_loader};
pub use lock::{ProcessLock, ProcessLockGuard, ProcessOnce};
pub use lock_free_once::LockFreeOnce;
pub use memory::{allocate_thread_locals, require_memory};
pub use own_descriptors::{leave_program_descriptor_table, with_program_stderr};
pub use privileges::Privileges;
pub use reserve::ReservedAllocator;
pub use status_lines::for_each_status_line;
pub use stdio::StdioGuard;
pub use thread::{
    Needs, Thread, ThreadSpec, set_thread_end_hook, set_thread_start_hook, spawn, spawn_static,
    spawn_with_needs,
};
