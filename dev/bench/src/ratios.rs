//! Median and range of the ratios of several rounds.

use std::fmt;

/// Ratios of several rounds, sorted. Prints the median and the range: `0.260 (0.250..0.280)`.
#[derive(Debug)]
pub(crate) struct Ratios(Vec<f64>);

impl Ratios {
    /// Sorts the ratios.
    ///
    /// # Panics
    /// `ratios` is empty.
    pub(crate) fn new(ratios: &[f64]) -> Self {
        assert!(!ratios.is_empty(), "nothing was measured");
        let mut sorted = ratios.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self(sorted)
    }

    /// Median; the larger of the two middle ratios if their number is even.
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
