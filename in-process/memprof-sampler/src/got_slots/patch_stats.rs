//! Result of patching.

/// Result of [`GotSlots::patch`](crate::GotSlots::patch): counts of slots and objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatchStats {
    /// Slots that hold hooks.
    pub patched: usize,
    /// Slots that hold neither the allocator's function nor a hook: other code has written them, or the
    /// object calls another allocator.
    pub foreign: usize,
    /// Objects with addresses of the allocator's functions in data that cannot be patched. Calls through these
    /// addresses are not seen.
    pub unseen_objects: usize,
    /// Objects that define `malloc` besides the one that is sampled and the C library.
    pub other_mallocs: usize,
    /// Slots that could not be patched: mprotect(2) failed, or there are more than 65,536.
    pub refused: usize,
}
