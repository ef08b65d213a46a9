//! The selected sampler: the allocator's built-in one, or memprof's, which works with any allocator.

/// The sampler for an activation, with the reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SamplerSelection {
    /// The allocator's sampler, even if it has none.
    Allocator,
    /// memprof's sampler, because the allocator cannot sample.
    OwnFallback,
    /// memprof's sampler, because it was requested.
    OwnRequested,
}
