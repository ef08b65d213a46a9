//! The allocators of the process: found, and each driven through one shape.

pub(crate) mod allocator;
pub(crate) mod background;
pub(crate) mod discover;
pub(crate) mod embedded;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod glibc;
pub(crate) mod interposed;
pub(crate) mod interval;
pub(crate) mod jemalloc;
pub(crate) mod mallctl;
pub(crate) mod mimalloc;
pub(crate) mod objects;
pub(crate) mod printout;
pub(crate) mod refusal;
pub(crate) mod stats;
pub(crate) mod symbols;
pub(crate) mod tcmalloc;
pub(crate) mod unsampled;
