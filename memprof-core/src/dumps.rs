//! Dumps as bytes: the memory that an allocator writes one to, checks of its content, and files in the dump
//! directory.

pub(crate) mod checksum;
pub(crate) mod escape;
pub(crate) mod headroom;
pub(crate) mod heap;
pub(crate) mod hidden_file;
pub(crate) mod legacy;
pub(crate) mod name;
pub(crate) mod publish;
pub(crate) mod retention;
pub(crate) mod scratch;
pub(crate) mod store;
pub(crate) mod trigger;
