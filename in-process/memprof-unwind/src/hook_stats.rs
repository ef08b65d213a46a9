//! Counts of memprof's walker.

/// Counts of a [`BacktraceHook`](crate::BacktraceHook) since it was armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookStats {
    /// Samples that the allocator requested.
    pub samples: u64,
    /// Samples left to the allocator's own walker, because no rule could unwind a frame or no workspace was free.
    pub fallbacks: u64,
    /// Samples whose walk stopped at unreadable stack memory, so that their stacks are truncated.
    pub cut: u64,
    /// Samples whose stacks both walkers walked.
    pub compared: u64,
    /// Compared samples with equal frames.
    pub agreed: u64,
    /// Set when too few compared samples were equal. The allocator's own walker takes all samples from then on.
    pub given_up: bool,
}
