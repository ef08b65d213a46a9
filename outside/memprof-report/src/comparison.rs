//! Values beside those of a base.

use std::ops::AddAssign;

use crate::confidence::Confidence;

/// A value in the profile and in its base.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Comparison {
    /// In the profile.
    pub new: i64,
    /// In the base; 0 without one.
    pub base: i64,
    /// What the value, or the change from the base, rests on.
    pub evidence: Confidence,
}

impl Comparison {
    /// The value, or the change from the base.
    pub fn value(self) -> i64 {
        self.new - self.base
    }

    /// Whether the change is no larger than sampling alone may make it: two standard errors.
    pub(crate) fn is_noise(self) -> bool {
        self.value() != 0 && (self.value().unsigned_abs() as f64) < 2.0 * self.evidence.error()
    }

    pub(crate) fn is_zero(self) -> bool {
        (self.new, self.base) == (0, 0)
    }

    /// How it changed.
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
        self.evidence += other.evidence;
    }
}

/// What became of a function since the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// More than before.
    Grew,
    /// Less than before.
    Shrank,
    /// Not there before.
    New,
    /// Not there any more.
    Gone,
    /// As before.
    Same,
}

impl Change {
    /// Those a diff shows, in its order.
    pub(crate) const SHOWN: [Self; 4] = [Self::Grew, Self::Shrank, Self::New, Self::Gone];

    /// The word for it.
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
