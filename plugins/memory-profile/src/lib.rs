//! `memory_profile.so`: converts messages to calls of `memprof-core`, and its results to replies.

mod arguments;
mod config;
mod exit_handler;
mod gdump_arguments;
mod host_jemalloc;
mod messages;
mod profilers;
mod reply;
mod sample_from_start;
mod stats_format;
mod text;

/// Allocator with a memory reserve. Without it, a failed allocation in this library would abort the program.
#[global_allocator]
static ALLOCATOR: memprof_own::ReservedAllocator = memprof_own::ReservedAllocator;

memprof_plugin_abi::export_plugin!(messages::MemoryProfile);
memprof_host::export_adapters!(memprof_plugin_entry);
