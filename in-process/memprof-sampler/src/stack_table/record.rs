//! Stack record, as the sampler passes it to readers.

/// Maximum number of frames of a recorded stack. The frames nearest to the leaf are kept.
pub const MAX_FRAMES: usize = 128;

/// Identifies a stack record: its first segment and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StackRecordId {
    pub(super) record: u32,
    pub(super) generation: u32,
}

/// Samples with one stack and one size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackRecord<'a> {
    /// Never reused, not even after [`clear`](crate::clear). `None` for a summary of evicted records.
    pub id: Option<StackRecordId>,
    /// Program counters, leaf first, then pseudo frames. A program counter is a return address, except in a frame that
    /// a signal interrupted.
    pub frames: &'a [u64],
    /// Live samples.
    pub objects: u64,
    /// Bytes of the live samples.
    pub bytes: u64,
    /// All samples since the last [`clear`](crate::clear).
    pub total_objects: u64,
    /// Bytes of all samples.
    pub total_bytes: u64,
    /// Number and bytes of the samples that were live at the last peak of the [`tally`](crate::tally()).
    pub at_peak: [u64; 2],
}
