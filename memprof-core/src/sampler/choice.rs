//! Who takes the samples: the allocator itself, or memprof's sampler, which serves any.

/// Whether memprof's sampler samples at an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SamplerSelection {
    /// The allocator does, or nobody.
    Allocator,
    /// Ours does, because the allocator cannot.
    OwnFallback,
    /// Ours does, because it was asked for.
    OwnRequested,
}
