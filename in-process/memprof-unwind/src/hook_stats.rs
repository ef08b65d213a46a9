//! What our walk did.

/// What a [`BacktraceHook`](crate::BacktraceHook) did since it was armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookStats {
    /// Samples.
    pub samples: u64,
    /// Of these, left to the allocator's own walker: a frame takes more than our rules tell.
    pub fallbacks: u64,
    /// Of these, ended where memory could not be read.
    pub cut: u64,
    /// Of these, walked by both walkers.
    pub compared: u64,
    /// Of those compared, equal frame by frame.
    pub agreed: u64,
    /// Too few were equal: all is left to the allocator's own walker since.
    pub given_up: bool,
}
