//! The allocators of the process: how they are found, and one interface to all of them.

pub(crate) mod allocator;
pub(crate) mod background_threads;
pub(crate) mod discover;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod glibc;
pub(crate) mod interposed;
pub(crate) mod interval;
pub(crate) mod jemalloc;
pub(crate) mod loaded_objects;
pub(crate) mod mallctl;
pub(crate) mod mimalloc;
pub(crate) mod printout;
pub(crate) mod profiler_exclusion;
pub(crate) mod stripped_jemalloc;
pub(crate) mod symbols;
pub(crate) mod tcmalloc;
pub(crate) mod unprofilable;
