//! Counters of memprof's walker.

/// Counters of a [`BacktraceHook`](crate::BacktraceHook) since it was armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookStats {
    /// Samples that the allocator requested.
    pub samples: u64,
    /// Samples left to the allocator's own walker: no rule could unwind a frame, or no workspace was
    /// free.
    pub fallbacks: u64,
    /// Samples whose walk stopped at unreadable stack memory (truncated stacks).
    pub cut: u64,
    /// Samples that both walkers walked.
    pub compared: u64,
    /// Compared samples with equal frames.
    pub agreed: u64,
    /// Set once too few compared samples were equal: the allocator's own walker takes all samples
    /// since.
    pub given_up: bool,
}
