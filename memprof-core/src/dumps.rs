//! Dumps as bytes: in memory while an allocator writes one, checked, and kept under a name.

pub(crate) mod checksum;
pub(crate) mod headroom;
pub(crate) mod heap;
pub(crate) mod hidden;
pub(crate) mod legacy;
pub(crate) mod name;
pub(crate) mod publish;
pub(crate) mod retention;
pub(crate) mod scratch;
pub(crate) mod store;
pub(crate) mod trigger;
