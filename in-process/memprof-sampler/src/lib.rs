//! A heap sampler that serves any allocator, for the inside of somebody else's process.
//!
//! It replaces the functions of `malloc` where other objects call them, in the slots that the
//! dynamic linker filled (`slots`), and gives the slots back. Where the allocator is linked into the program, jumps at its
//! functions lead to them, which another process writes (`entries`). Between the two, one allocation in
//! so many bytes is remembered with its stack until it is freed. To switch it on in a program see
//! `memprof-core`; to read what comes of it see `memprof-report`.
//!
//! What runs inside `malloc` (`hooks` and what they call) allocates nothing, takes no lock, touches
//! no thread-local storage and cannot panic: it may be entered from a signal handler that
//! interrupted it. Its memory comes from the kernel and is bounded. It uses less than 1.5 KiB of a stack, of any alignment,
//! beside what the allocator uses: a coroutine's may have 4 KiB. There is one sampler in a
//! process, because a hook has no argument that could tell which.
//!
//! Only x86-64 Linux with glibc is built: `%fs:0` tells threads apart, and relocations have the
//! types of that processor.
#![no_std]
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

mod address_hash;
mod aligned;
mod atomic;
mod countdown;
mod excluded_threads;
mod filter;
mod fork_sentinel;
mod gate;
mod got_slots;
mod hooks;
mod jemalloc;
mod live_table;
mod mapping;
mod own_code;
mod patched_entries;
mod probes;
mod remote_tables;
mod sampler;
mod stack_table;
mod tally;
mod thread_pointer;

pub use excluded_threads::{SamplerExclusion, exclude_this_thread};
pub use got_slots::{GotSlots, Leads, MallocProvider, PatchStats, malloc, own_calls};
pub use hooks::{Role, SIGNATURES, Signature};
pub use jemalloc::{JemallocHooks, jemalloc_hooks};
pub use patched_entries::{
    EntryRow, EntryTable, PatchedEntries, TABLE_MARK, TABLE_SIZE, trampoline_offset,
};
pub use remote_tables::{MARK, RemoteTables};
pub use sampler::{
    LiveSample, SamplerError, SamplerStats, clear, counts, for_each_live, for_each_record,
    interval, reset_in_child, start, stop,
};
pub use stack_table::{EVICTED, MOST_FRAMES, StackRecord, StackRecordId};
pub use tally::{Tally, enable, tally};
