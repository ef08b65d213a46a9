//! Certainty of an estimate: its number of samples and its error.

use std::ops::{Add, AddAssign};

use crate::profile::{Profile, Sample, SampleType};

/// Tables show the error of values with fewer samples.
const MIN_SAMPLES: u64 = 20;

/// Tables show the error of values of which at least this share may be missing.
const NOTABLE_SHARE: f64 = 0.02;

/// Basis of an estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Confidence {
    /// Number of samples; 0 if the profile has no counts or was not sampled.
    pub samples: u64,
    /// Variance, in the square of the estimate's unit.
    pub variance: f64,
    /// Estimated amount in lost samples, in the estimate's unit.
    pub missing: f64,
}

impl Confidence {
    /// Computes the confidence of a sample's value of `sample_type`, with the amount that lost samples may add. It is
    /// empty if the sample has no count. Without a sample interval, the value is a share of a known amount, and its
    /// standard error is 1/√n of the value for n samples.
    ///
    /// A sampler takes each object of s bytes with probability p = 1 − exp(−s/P), where P is the sample interval, and
    /// counts it as 1/p. For n samples, that has the variance n·(1 − p)·(s/p)² (Horvitz and Thompson). The standard
    /// error is 1/√n of the value for objects much smaller than P, and nothing for larger ones, which are all sampled.
    pub(crate) fn new(profile: &Profile, sample: &Sample, sample_type: SampleType) -> Self {
        // The counts are of allocated objects, then of those in use.
        let samples = sample.counts[usize::from(!sample_type.is_alloc())];
        let value = sample.values[sample_type] as f64;
        let (interval, 1..) = (profile.interval, samples) else {
            return Self::default();
        };
        let Some(interval) = interval else {
            // Without an interval, the value is a share of a known amount, split by samples.
            return Self {
                samples: u64::from(samples),
                variance: value * value / f64::from(samples),
                missing: 0.0,
            };
        };
        let (objects, space) = match sample_type.is_alloc() {
            true => (SampleType::AllocObjects, SampleType::AllocSpace),
            false => (SampleType::InuseObjects, SampleType::InuseSpace),
        };
        let size = sample.values[space] as f64 / (sample.values[objects] as f64).max(1.0);
        let miss_probability = (-size / interval as f64).exp();
        Self {
            samples: u64::from(samples),
            variance: value * value * miss_probability / f64::from(samples),
            missing: value.abs() * lost_per_kept_sample(profile),
        }
    }

    /// Standard error plus the amount that lost samples may have had, in the estimate's unit. The true value is
    /// within two standard errors in 19 of 20 profiles.
    pub fn error(self) -> f64 {
        self.variance.sqrt() + self.missing
    }

    /// Formats the error as a part of `value`, such as `±29%`. Empty if `value` is 0 or was not sampled. Empty also if
    /// it is certain enough: it has at least [`MIN_SAMPLES`] samples, and lost ones would add less than
    /// [`NOTABLE_SHARE`].
    pub(crate) fn format_relative_error(self, value: i64) -> String {
        let is_sure =
            self.samples >= MIN_SAMPLES && self.missing < NOTABLE_SHARE * value.abs() as f64;
        if value == 0 || self.samples == 0 || is_sure {
            return String::new();
        }
        format!("±{:.0}%", 100.0 * self.error() / value.abs() as f64)
    }
}

/// Number of lost samples per sample that was kept; 0 if the dump does not count them.
fn lost_per_kept_sample(profile: &Profile) -> f64 {
    let origin = &profile.origin;
    let (Some(lost), Some(samples)) = (origin.lost_samples, origin.samples) else {
        return 0.0;
    };
    lost as f64 / samples.saturating_sub(lost).max(1) as f64
}

impl Add for Confidence {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            samples: self.samples + other.samples,
            variance: self.variance + other.variance,
            missing: self.missing + other.missing,
        }
    }
}

impl AddAssign for Confidence {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
