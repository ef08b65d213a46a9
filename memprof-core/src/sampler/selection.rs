//! Which sampler takes the samples: the allocator's built-in one, or memprof's, which works with any.

/// The sampler that an activation uses, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SamplerSelection {
    /// The allocator's; none if it has none.
    Allocator,
    /// memprof's, because the allocator cannot sample.
    OwnFallback,
    /// memprof's, because it was requested.
    OwnRequested,
}
