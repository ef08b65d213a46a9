//! How sure an estimate is: on how many samples it rests, and how far it may lie from the truth.

use std::ops::{Add, AddAssign};

use crate::profile::{Profile, Sample, SampleType};

/// Below this many samples a table says how large the error is.
const FEW: u64 = 20;

/// A table says the error also where such a share of the value may be missing.
const NOTABLE: f64 = 0.02;

/// What an estimate rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Confidence {
    /// The number of samples; 0 where the profile does not tell, or where nothing was sampled.
    pub samples: u64,
    /// In the square of the estimate's unit.
    pub variance: f64,
    /// What samples that were lost may have shown besides, in the estimate's unit.
    pub missing: f64,
}

impl Confidence {
    /// Of one stack's value.
    ///
    /// A sampler that takes each object of s bytes with the probability p = 1 − exp(−s/P) and counts it for
    /// 1/p has the variance n·(1 − p)·(s/p)² for n samples (Horvitz and Thompson): 1/√n of the value for
    /// objects much smaller than P, nothing for larger ones, which it all takes.
    pub(crate) fn of(profile: &Profile, sample: &Sample, sample_type: SampleType) -> Self {
        let samples = sample.counts[usize::from(!sample_type.is_alloc())];
        let value = sample.values[sample_type] as f64;
        let (interval, 1..) = (profile.interval, samples) else {
            return Self::default();
        };
        let Some(interval) = interval else {
            // A share of something known, as far as samples tell it.
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
        let missed = (-size / interval as f64).exp();
        Self {
            samples: u64::from(samples),
            variance: value * value * missed / f64::from(samples),
            missing: value.abs() * lost_share(profile),
        }
    }

    /// The standard error, in the estimate's unit: the truth lies within two of them in 19 of 20 profiles. Besides, what
    /// samples that were lost may have shown.
    pub fn error(self) -> f64 {
        self.variance.sqrt() + self.missing
    }

    /// `±29%` of a value with few samples; else nothing.
    pub(crate) fn relative_error(self, value: i64) -> String {
        let is_sure = self.samples >= FEW && self.missing < NOTABLE * value.abs() as f64;
        if value == 0 || self.samples == 0 || is_sure {
            return String::new();
        }
        format!("±{:.0}%", 100.0 * self.error() / value.abs() as f64)
    }
}

/// Samples that were lost for each that was not.
fn lost_share(profile: &Profile) -> f64 {
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
