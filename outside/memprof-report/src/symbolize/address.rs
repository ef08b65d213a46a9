//! Addresses of files.

/// An address as the file's own tables count it.
pub(super) type LinkedAddress = u64;
