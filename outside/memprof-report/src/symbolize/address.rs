//! Addresses in files.

/// Address as in the file's own tables, before relocation.
pub(super) type LinkedAddress = u64;
