//! The sample interval of an allocator.

use memprof_messages::parse_size;

use crate::error::{Error, ErrorKind, Result};

/// Accepted range of the interval's log2: 1 KiB to 16 MiB. A smaller interval would record nearly everything. After a
/// much larger one, jemalloc's existing threads would never sample again.
const LG_SAMPLE: std::ops::RangeInclusive<u64> = 10..=24;

/// Mean bytes between samples: a power of two from 1 KiB to 16 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleInterval(u64);

impl SampleInterval {
    /// Creates an interval of `2^lg_sample` bytes.
    ///
    /// # Errors
    /// `InvalidArgument` outside of 10..=24.
    pub fn from_lg(lg_sample: u64) -> Result<Self> {
        if LG_SAMPLE.contains(&lg_sample) {
            return Ok(Self(1 << lg_sample));
        }
        let (low, high) = (LG_SAMPLE.start(), LG_SAMPLE.end());
        let message = format!("lg_sample={lg_sample} is out of range {low}..={high}");
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Creates an interval of `2^lg_sample` bytes for memprof's sampler alone, which also accepts intervals below 1
    /// KiB: at 1 byte, it records nearly every allocation.
    ///
    /// # Errors
    /// `InvalidArgument` above 24.
    pub fn for_own_sampler(lg_sample: u64) -> Result<Self> {
        match lg_sample < *LG_SAMPLE.start() {
            true => Ok(Self(1 << lg_sample)),
            false => Self::from_lg(lg_sample),
        }
    }

    /// Parses a size, for example `524288`, `512KiB`, `1MiB`.
    ///
    /// # Errors
    /// `InvalidArgument`: not a size, or not a power of two from 1 KiB to 16 MiB. jemalloc supports only powers of two.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = |reason: &str| {
            let message = format!("sample_interval={text:?} {reason}");
            Err(Error::new(ErrorKind::InvalidArgument, message).with_remedy(
                "a power of two from 1KiB to 16MiB, for example sample_interval=512KiB",
            ))
        };
        let Some(bytes) = parse_size(text) else {
            return invalid("is not a size");
        };
        if !bytes.is_power_of_two() || !LG_SAMPLE.contains(&u64::from(bytes.ilog2())) {
            return invalid("is out of range");
        }
        Ok(Self(bytes))
    }

    /// Creates an interval from the bytes that an allocator reports. `None` unless they are a power of two from 1 KiB
    /// to 16 MiB.
    pub(crate) fn from_bytes(bytes: u64) -> Option<Self> {
        let is_valid = bytes.is_power_of_two() && LG_SAMPLE.contains(&u64::from(bytes.ilog2()));
        is_valid.then_some(Self(bytes))
    }

    /// Creates an interval at which probably no sample is lost. `samples` is the number of samples taken at an interval
    /// of `bytes`, including the `lost` ones. The result is a power of two: at least twice that interval, but from 1
    /// KiB to 16 MiB.
    pub(crate) fn for_lossless_sampling(bytes: u64, samples: u64, lost: u64) -> Self {
        let kept = samples.saturating_sub(lost).max(1);
        let bytes = bytes.saturating_mul(samples.div_ceil(kept).max(2));
        Self(
            bytes
                .clamp(1 << LG_SAMPLE.start(), 1 << LG_SAMPLE.end())
                .next_power_of_two(),
        )
    }

    /// The interval in bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_out_of_range_is_refused() {
        for lg_sample in [0, 9, 25, u64::MAX] {
            let error = SampleInterval::from_lg(lg_sample).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument, "{lg_sample}");
        }
    }

    #[test]
    fn own_sampler_takes_finer_intervals() {
        let bytes = |lg| {
            SampleInterval::for_own_sampler(lg)
                .map(SampleInterval::bytes)
                .ok()
        };
        assert_eq!(
            [0, 9, 24, 25].map(bytes),
            [Some(1), Some(512), Some(16 << 20), None]
        );
    }

    #[test]
    fn sufficient_interval_follows_the_lost_share() {
        let check = |bytes, samples, lost, expected: u64| {
            let interval = SampleInterval::for_lossless_sampling(bytes, samples, lost);
            assert_eq!(interval.bytes(), expected);
            assert!(SampleInterval::from_bytes(expected).is_some());
        };
        check(1 << 10, 400_000, 270_000, 4 << 10);
        check(512 << 10, 9, 2, 1 << 20);
        check(4 << 20, 100, 100, 16 << 20);
        check(0, 10, 5, 1 << 10);
    }

    #[test]
    fn interval_of_size_text() {
        let check = |text: &str, bytes| {
            assert_eq!(SampleInterval::parse(text).unwrap().bytes(), bytes);
        };
        check("1024", 1 << 10);
        check("524288", 512 << 10);
        check("512KiB", 512 << 10);
        check("512k", 512 << 10);
        check("16MiB", 16 << 20);
        for text in [
            "", "0", "KiB", "512kbit", "500000", "512", "17MiB", "32MiB", "-1",
        ] {
            let error = SampleInterval::parse(text).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument, "{text}");
            assert!(error.message.contains(&format!("{text:?}")), "{error}");
        }
        let most = u64::MAX.to_string() + "MiB";
        assert!(SampleInterval::parse(&most).is_err());
    }
}
