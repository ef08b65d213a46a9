//! Exponents of growth: with an exponent of 1, twice the work costs twice as much.

/// Share of the count at the smallest size that the others may add to it, up to which a command counts as one whose
/// cost does not depend on the size: other processes and the machine change counts that much.
const FLAT: f64 = 0.25;

/// Returns the exponent of three counts at the sizes ×1, ×4 and ×16. It is that of the differences between the counts,
/// in which a constant cost, such as the program's start, drops out. 0 if the counts hardly differ.
pub(crate) fn count_exponent(counts: [u64; 3]) -> f64 {
    let [first, second, third] = counts;
    let (less, more) = (second.saturating_sub(first), third.saturating_sub(second));
    if (less + more) as f64 <= FLAT * first as f64 {
        return 0.0;
    }
    // The first difference is of 3 units of size, the second of 12.
    (more as f64 / less.max(1) as f64).log(4.0)
}

/// Returns the exponent of three times at the sizes ×1, ×4 and ×16. Only the times at the two largest sizes count: that
/// at the smallest one is mostly the program's start, and differences of times, unlike those of counts, vary too much.
pub(crate) fn time_exponent([_, second, third]: [f64; 3]) -> f64 {
    (third.max(f64::MIN_POSITIVE) / second.max(f64::MIN_POSITIVE)).log(4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_of_power_laws() {
        let check = |counts: [u64; 3], expected: f64| {
            let exponent = count_exponent(counts);
            assert!(
                (exponent - expected).abs() < 0.001,
                "{counts:?}: {exponent}"
            );
        };
        check([510, 540, 660], 1.0);
        check([1_495, 1_519, 1_767], 0.0);
        check([1_100, 2_600, 26_600], 2.0);
        check([9_000, 5_000, 4_000], 0.0);
        assert!((time_exponent([0.5, 1.0, 4.0]) - 1.0).abs() < 1e-9);
        assert!((time_exponent([0.5, 1.0, 16.0]) - 2.0).abs() < 1e-9);
    }
}
