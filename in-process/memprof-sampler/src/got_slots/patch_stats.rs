//! Result of patching.

/// Result of [`GotSlots::patch`](crate::GotSlots::patch): counts of slots and objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatchStats {
    /// Slots that hold hooks.
    pub patched: usize,
    /// Slots that hold neither the allocator's function nor a hook: other code has written them, or the object calls
    /// another allocator.
    pub foreign: usize,
    /// Objects whose data holds addresses of the allocator's functions in words that cannot be patched. Calls through
    /// these words are not sampled.
    pub unseen_objects: usize,
    /// Objects that define `malloc`, other than the sampled one and the C library.
    pub other_mallocs: usize,
    /// Slots that could not be patched: mprotect(2) failed, the list of 65,536 slots is full, or other code changed the
    /// slot.
    pub refused: usize,
}
