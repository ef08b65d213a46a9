//! Patched GOT slot.

use crate::hooks::{Hook, Role};

/// GOT slot that holds a hook, and its original value.
#[derive(Clone, Copy, Debug)]
pub(super) struct PatchedSlot {
    pub(super) address: usize,
    pub(super) original: usize,
    pub(super) hook: usize,
    pub(super) role: Role,
}

impl PatchedSlot {
    /// Describes the slot at `address` as one that holds the address of `hook` in place of `original`.
    pub(super) fn new(address: usize, original: usize, hook: &Hook) -> Self {
        Self {
            address,
            original,
            hook: hook.address,
            role: hook.role,
        }
    }
}
