//! Values with those of a base.

use std::ops::AddAssign;

use crate::confidence::Confidence;

/// A value in the profile and in its base, in bytes or objects.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Value in the profile.
    pub new: i64,
    /// Value in the base; 0 without one.
    pub base: i64,
    /// Confidence of the value, or of the change from the base.
    pub confidence: Confidence,
}

impl Comparison {
    /// Change from the base: the new value less the base's, which is 0 if there is no base.
    pub fn value(self) -> i64 {
        self.new - self.base
    }

    /// Returns whether there is a change, but one that sampling alone can cause: less than two standard errors.
    pub(crate) fn is_noise(self) -> bool {
        self.value() != 0 && (self.value().unsigned_abs() as f64) < 2.0 * self.confidence.error()
    }

    /// Returns whether the value is 0 in the profile and in its base.
    pub(crate) fn is_zero(self) -> bool {
        (self.new, self.base) == (0, 0)
    }

    /// Kind of change: `Same` if both are equal, `New` if only the base is 0, `Gone` if only the new value is 0, else
    /// by which one is larger.
    pub(crate) fn change(self) -> Change {
        match (self.base, self.new) {
            (base, new) if base == new => Change::Same,
            (0, _) => Change::New,
            (_, 0) => Change::Gone,
            (base, new) if new > base => Change::Grew,
            _ => Change::Shrank,
        }
    }
}

impl AddAssign for Comparison {
    fn add_assign(&mut self, other: Self) {
        self.new += other.new;
        self.base += other.base;
        self.confidence += other.confidence;
    }
}

/// Kind of change of a function since the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Larger than in the base.
    Grew,
    /// Smaller than in the base.
    Shrank,
    /// Not in the base.
    New,
    /// Only in the base.
    Gone,
    /// Equal to the base.
    Same,
}

impl Change {
    /// Kinds that a comparison shows, in its order.
    pub(crate) const SHOWN: [Self; 4] = [Self::Grew, Self::Shrank, Self::New, Self::Gone];

    /// Name in tables and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Grew => "grew",
            Self::Shrank => "shrank",
            Self::New => "new",
            Self::Gone => "gone",
            Self::Same => "same",
        }
    }
}
