//! Ratios of several rounds.

use std::fmt;

/// Prints as `0.260 (0.250..0.280)`, the median and the range.
#[derive(Debug)]
pub(crate) struct Ratios(Vec<f64>);

impl Ratios {
    /// # Panics
    /// There is none.
    pub(crate) fn of(ratios: &[f64]) -> Self {
        assert!(!ratios.is_empty(), "nothing was measured");
        let mut sorted = ratios.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self(sorted)
    }

    pub(crate) fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }
}

impl fmt::Display for Ratios {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = (self.0[0], self.0[self.0.len() - 1]);
        write!(f, "{:.3} ({least:.3}..{most:.3})", self.median())
    }
}
