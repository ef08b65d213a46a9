//! Heap sampler for any allocator, loaded into a process that was not built for it.
//!
//! The sampler replaces the functions of `malloc` in the GOT slots that the dynamic linker filled (`got_slots`), and
//! restores the slots when sampling ends. Calls of a statically linked allocator use no GOT slot: for these, another
//! process patches the entry points of the allocator's functions with jumps to the hooks (`patched_entries`). While
//! hooks are enabled, one allocation per sample interval is recorded with its stack until it is freed. To start
//! sampling in a program, see `memprof-core`; to read profiles, see `memprof-report`.
//!
//! Code that runs inside `malloc` (`hooks` and its callees) allocates nothing, takes no lock, touches no thread-local
//! storage and cannot panic: a signal handler may enter it while it runs. Its memory comes from the kernel and is
//! bounded. It adds less than 1.5 KiB to the allocator's own stack use, at any alignment, because a coroutine's stack
//! may have only 4 KiB. A process has one sampler: a hook has no argument that could select one.
//!
//! It supports only x86-64 Linux with glibc: `%fs:0` identifies threads, and the relocation types are those of x86-64.
#![no_std]
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

mod address_hash;
mod aligned;
mod allocator_functions;
mod atomic;
mod caller_registers;
mod countdown;
mod early_ends;
mod entry_hooks;
mod entry_table;
mod excluded_threads;
mod filter;
mod fork_sentinel;
mod gate;
mod got_slots;
mod hooks;
mod jemalloc;
mod live_table;
mod loader_calls;
mod mapping;
mod own_code;
mod patched_entries;
mod patching_guard;
mod probes;
mod python_allocator;
mod python_objects;
mod remote_tables;
mod sampler;
mod sleep;
mod stack_table;
mod tally;
mod thread_pointer;

pub use allocator_functions::{C_FUNCTIONS, NamedShapes, OTHER_FUNCTIONS, PREFIXES, Shape};
pub use early_ends::{EarlyEndReason, EarlyEnds, early_ends};
pub use entry_table::{
    EntryRow, EntryTable, TABLE_MARK, TABLE_SIZE, prologue_offset, slot_offset, trampoline,
    trampoline_offset,
};
pub use excluded_threads::{SamplerExclusion, exclude_this_thread};
pub use got_slots::{
    CallTarget, GotSlots, MallocProvider, PatchStats, malloc_address, visit_own_calls,
};
pub use hooks::Role;
pub use jemalloc::{JemallocHooks, jemalloc_hooks};
pub use loader_calls::set_function_before_loader_calls;
pub use patched_entries::{PatchedEntries, TABLES_SYMBOL, memprof_entry_tables};
pub use python_allocator::{PythonAllocator, PythonFunctions, UnwrappedPython};
pub use remote_tables::{MARK, RemoteTables};
pub use sampler::{
    LiveSample, SamplerError, SamplerStats, clear, counts, for_each_live_sample, for_each_record,
    interval, map_name_table, reset_in_child, start, stop,
};
pub use stack_table::{EVICTED, MAX_FRAMES, StackRecord, StackRecordId};
pub use tally::{Tally, enable as enable_tally, tally};
