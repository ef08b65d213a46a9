//! Dumps as bytes: the memory to which an allocator writes them, checks of their content, and files in the dump
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
