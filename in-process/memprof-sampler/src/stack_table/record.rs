//! A record as readers see it.

/// Frames of a stack that are kept, from the leaf on.
pub const MOST_FRAMES: usize = 128;

/// Which record a sample belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StackRecordId {
    pub(super) record: u32,
    pub(super) generation: u32,
}

/// What was sampled with one stack, of about one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackRecord<'a> {
    /// Another record has it neither before nor after the next [`clear`](crate::clear). `None` for the sum of records
    /// that were evicted.
    pub id: Option<StackRecordId>,
    /// Program counters, leaf first. All but interrupted ones lie behind a call.
    pub frames: &'a [u64],
    /// Samples that were not freed.
    pub objects: u64,
    /// Their sizes together.
    pub bytes: u64,
    /// All samples since the last [`clear`](crate::clear).
    pub total_objects: u64,
    /// Their sizes together.
    pub total_bytes: u64,
    /// Samples that lived at the last peak of the [`tally`](crate::tally()), and their sizes together.
    pub at_peak: [u64; 2],
}
