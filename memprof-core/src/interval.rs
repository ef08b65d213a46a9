//! How often an allocator samples.

use crate::error::{Error, ErrorKind, Result};

/// The log2 of an interval: 1 KiB to 16 MiB. A finer one records nearly everything, and a huge
/// one blinds jemalloc's existing threads for good.
const LG_SAMPLE: std::ops::RangeInclusive<u64> = 10..=24;

/// Mean bytes between samples, within reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleInterval(u64);

impl SampleInterval {
    /// `2^lg_sample` bytes.
    ///
    /// # Errors
    /// `Invalid` outside of 10..=24.
    pub fn from_lg(lg_sample: u64) -> Result<Self> {
        if LG_SAMPLE.contains(&lg_sample) {
            return Ok(Self(1 << lg_sample));
        }
        let (low, high) = (LG_SAMPLE.start(), LG_SAMPLE.end());
        let message = format!("lg_sample={lg_sample} is out of range {low}..={high}");
        Err(Error::new(ErrorKind::Invalid, message))
    }

    /// In bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_that_blind_threads_are_refused() {
        for lg_sample in [0, 9, 25, u64::MAX] {
            let error = SampleInterval::from_lg(lg_sample).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid, "{lg_sample}");
        }
    }
}
