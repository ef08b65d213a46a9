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

    /// Median; the mean of the two middle ratios if their number is even.
    pub(crate) fn median(&self) -> f64 {
        let count = self.0.len();
        (self.0[(count - 1) / 2] + self.0[count / 2]) / 2.0
    }
}

impl fmt::Display for Ratios {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = (self.0[0], self.0[self.0.len() - 1]);
        write!(f, "{:.3} ({least:.3}..{most:.3})", self.median())
    }
}

#[cfg(test)]
mod tests {
    use super::Ratios;

    #[test]
    fn median_of_an_odd_and_of_an_even_number() {
        let check = |ratios: &[f64], expected: &str| {
            assert_eq!(Ratios::new(ratios).to_string(), expected);
        };
        check(&[1.0], "1.000 (1.000..1.000)");
        check(&[3.0, 1.0, 2.5], "2.500 (1.000..3.000)");
        check(&[3.0, 1.0], "2.000 (1.000..3.000)");
        check(&[9.0, 1.0, 2.0, 3.0], "2.500 (1.000..9.000)");
    }
}
