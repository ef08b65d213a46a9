//! Values of one sample.

use std::ops::{AddAssign, Index, IndexMut};

use super::SampleType;

/// One number per [`SampleType`], in objects or bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleValues(pub [i64; 4]);

impl Index<SampleType> for SampleValues {
    type Output = i64;

    fn index(&self, sample_type: SampleType) -> &i64 {
        &self.0[sample_type as usize]
    }
}

impl IndexMut<SampleType> for SampleValues {
    fn index_mut(&mut self, sample_type: SampleType) -> &mut i64 {
        &mut self.0[sample_type as usize]
    }
}

impl SampleValues {
    /// Returns the sum; a value that overflows is the largest or smallest one.
    pub(crate) fn saturating_add(self, other: Self) -> Self {
        let mut sum = self;
        for (sum, value) in sum.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(value);
        }
        sum
    }

    /// Returns the values with 0 in place of those below 0.
    pub(crate) fn without_negative_values(self) -> Self {
        Self(self.0.map(|value| value.max(0)))
    }

    /// Returns the absolute values. `None` if one is the smallest number, whose absolute value overflows.
    pub(crate) fn checked_abs(self) -> Option<Self> {
        let mut absolute = Self::default();
        for (absolute, value) in absolute.0.iter_mut().zip(self.0) {
            *absolute = value.checked_abs()?;
        }
        Some(absolute)
    }

    /// Returns the sum. `None` if it overflows.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        let mut sum = Self::default();
        for (sum, (a, b)) in sum.0.iter_mut().zip(self.0.into_iter().zip(other.0)) {
            *sum = a.checked_add(b)?;
        }
        Some(sum)
    }
}

/// Only for values whose total is known to fit, such as those of a profile.
impl AddAssign for SampleValues {
    fn add_assign(&mut self, other: Self) {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a += b;
        }
    }
}
