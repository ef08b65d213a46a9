//! Allocation time of a stack's samples, in a pseudo frame (see `ages`).

use std::num::NonZeroU32;

/// Bits 40 to 63 of a pseudo frame with an allocation time; no processor accepts such an address.
const PSEUDO_FRAME_KIND: u64 = 0x4d_5002;

/// Start of the age bucket in which a block was allocated, in seconds since 1970 (UTC). Stored as one more, so that
/// `Option<AllocTime>` needs no extra space in the samples, of which a profile may have millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AllocTime(NonZeroU32);

impl AllocTime {
    /// Creates a time from seconds since 1970 (UTC), which are stored plus 1, so that the number is never 0. `None` for
    /// `u32::MAX`, for which this overflows.
    pub(crate) fn from_seconds(seconds: u32) -> Option<Self> {
        NonZeroU32::new(seconds.wrapping_add(1)).map(Self)
    }

    /// Start of the age bucket, in seconds since 1970 (UTC): the stored number less 1.
    pub(crate) fn seconds(self) -> u32 {
        self.0.get() - 1
    }

    /// Decodes the time in bits 1 to 32 of a pseudo frame, a number in a stack that stands for data. Its kind is in
    /// bits 40 to 63. `None` if `frame` is an address or a pseudo frame of another kind. Bit 0 is always set and is no
    /// part of the time, so that the time stays the same if a tool subtracts 1 from each return address.
    pub(crate) fn from_pseudo_frame(frame: u64) -> Option<Self> {
        Self::from_seconds((frame >> 1) as u32).filter(|_| frame >> 40 == PSEUDO_FRAME_KIND)
    }
}

/// Age buckets of a profile, from its line `# ages: WIDTH TAKEN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AgeBuckets {
    /// Length of a bucket, in seconds.
    pub(crate) width: u32,
    /// Time of the profile by the clock of the allocation times, in seconds since 1970 (UTC).
    pub(crate) taken: u32,
}

impl AgeBuckets {
    /// Parses `WIDTH TAKEN`: the bucket length and the time of the profile, both in seconds. `None` if it is malformed
    /// or the length is 0.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (width, taken) = text.split_once(' ')?;
        let (width, taken) = (width.parse().ok()?, taken.parse().ok()?);
        (width > 0).then_some(Self { width, taken })
    }

    /// Least age, in seconds, of a sample in the bucket that starts at `alloc_time`. It is 0 if that bucket had not
    /// ended when the profile was taken.
    pub(crate) fn min_age(self, alloc_time: AllocTime) -> u32 {
        self.taken
            .saturating_sub(alloc_time.seconds().saturating_add(self.width))
    }
}
