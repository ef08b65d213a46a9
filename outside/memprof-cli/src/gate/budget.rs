//! Budgets: limits, and values by function when they were written.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use super::measurement::{BudgetedTotal, Measurement};
use super::stacks::Stacks;

/// Default tolerance, in percent: half of the 5 % growth that should be detected, so that chance hides about as many
/// regressions as it reports by mistake.
const DEFAULT_TOLERANCE: f64 = 2.5;

/// Number of functions whose bytes are written to the file, so that a verdict can name the one that grew.
const BASELINE_FUNCTIONS: usize = 30;

/// Contents of a budget file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Budget {
    #[serde(default)]
    pub(super) tolerance: Tolerance,
    /// Most bytes live at the same time; unlimited if `None`.
    pub(super) peak: Option<ByteSize>,
    /// Total of allocated bytes; unlimited if `None`.
    pub(super) allocated: Option<ByteSize>,
    /// Limits by function.
    #[serde(default)]
    pub(super) functions: FunctionBudgets,
    /// Bytes by function when the budget was written. Not limits.
    #[serde(default, alias = "held")]
    pub(super) baseline: FunctionBudgets,
}

/// Bytes by function.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FunctionBudgets {
    #[serde(default)]
    pub(super) peak: BTreeMap<String, ByteSize>,
    #[serde(default)]
    pub(super) allocated: BTreeMap<String, ByteSize>,
}

/// A number of bytes, in the file `1048576` or `"1MiB"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ByteSize(pub(super) u64);

/// Percentage by which a budget may be exceeded, in the file `"2.5%"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tolerance(pub(super) f64);

impl Default for Tolerance {
    fn default() -> Self {
        Self(DEFAULT_TOLERANCE)
    }
}

impl FunctionBudgets {
    /// Returns the budgets in bytes by function name, for the peak or for the allocated bytes.
    pub(super) fn for_total(&self, total: BudgetedTotal) -> &BTreeMap<String, ByteSize> {
        match total {
            BudgetedTotal::Peak => &self.peak,
            BudgetedTotal::Allocated => &self.allocated,
        }
    }

    /// Like [`for_total`](Self::for_total), but the budgets can be changed.
    fn for_total_mut(&mut self, total: BudgetedTotal) -> &mut BTreeMap<String, ByteSize> {
        match total {
            BudgetedTotal::Peak => &mut self.peak,
            BudgetedTotal::Allocated => &mut self.allocated,
        }
    }
}

impl Budget {
    /// Returns the budget of a total, without the tolerance; `None` if it is unlimited.
    pub(super) fn limit_of_total(&self, total: BudgetedTotal) -> Option<ByteSize> {
        match total {
            BudgetedTotal::Peak => self.peak,
            BudgetedTotal::Allocated => self.allocated,
        }
    }

    /// Returns the largest measured value, in bytes, that passes a budget of `budgeted` bytes with the tolerance.
    pub(super) fn limit_with_tolerance(&self, budgeted: ByteSize) -> u64 {
        (budgeted.0 as f64 * (1.0 + self.tolerance.0 / 100.0)) as u64
    }

    /// Returns whether any total exceeds its limit with the tolerance. Functions are not checked.
    pub(super) fn is_exceeded_by(&self, measured: &Measurement) -> bool {
        let is_exceeded = |total: BudgetedTotal| {
            let budgeted = self.limit_of_total(total);
            budgeted
                .is_some_and(|budgeted| measured.total(total) > self.limit_with_tolerance(budgeted))
        };
        BudgetedTotal::ALL.into_iter().any(is_exceeded)
    }

    /// Returns whether a total or a function has a limit.
    pub(super) fn limits_anything(&self) -> bool {
        let limits = |total: BudgetedTotal| self.limit_of_total(total).is_some();
        BudgetedTotal::ALL.into_iter().any(limits) || self.limits_functions()
    }

    /// Returns whether functions have limits, for either total.
    pub(super) fn limits_functions(&self) -> bool {
        let limits = |total: BudgetedTotal| !self.functions.for_total(total).is_empty();
        BudgetedTotal::ALL.into_iter().any(limits)
    }

    /// Builds the budget whose limits are the measured values. Limits the totals and functions that have a limit in
    /// `before`, or both totals if `before` limits nothing. The tolerance stays. So do the limits of functions that no
    /// sample has: their names may be wrong. The baseline gets the functions that are largest now.
    pub(super) fn from_measurement(measured: &Measurement, stacks: &Stacks, before: Self) -> Self {
        let is_new = !before.limits_anything();
        let limit = |total: BudgetedTotal| {
            let is_limited = is_new || before.limit_of_total(total).is_some();
            is_limited.then(|| ByteSize(measured.total(total)))
        };
        let (peak, allocated) = (limit(BudgetedTotal::Peak), limit(BudgetedTotal::Allocated));
        let mut budget = Self {
            peak,
            allocated,
            baseline: FunctionBudgets::default(),
            ..before
        };
        for total in BudgetedTotal::ALL {
            let rows = stacks.function_rows(total);
            for (name, limit) in budget.functions.for_total_mut(total) {
                let row = rows.iter().find(|row| row.name == *name);
                // A function that was sampled for the other total only has 0 bytes of this one.
                if row.is_some() || stacks.has_leaf(name) {
                    *limit = ByteSize(row.map_or(0, |row| row.bytes));
                }
            }
            let baseline = rows
                .iter()
                .take(BASELINE_FUNCTIONS)
                .map(|row| (row.name.clone(), ByteSize(row.bytes)));
            *budget.baseline.for_total_mut(total) = baseline.collect();
        }
        budget
    }
}

/// Form of a size in a budget file.
const SIZE_FORM: &str = "a size: a whole number of bytes, or a text as \"64MiB\"";

impl FromStr for ByteSize {
    type Err = String;

    /// Parses a number with a unit, which must not be missing. Units are powers of 1024: `64MiB`, `64MB` and `64M` are
    /// equal.
    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("{text:?} is not {SIZE_FORM}");
        let end = text.find(|char: char| !char.is_ascii_digit() && char != '.');
        let (number, unit) = text.split_at(end.unwrap_or(text.len()));
        let shift = match unit.trim() {
            "B" => 0,
            "K" | "KB" | "KiB" => 10,
            "M" | "MB" | "MiB" => 20,
            "G" | "GB" | "GiB" => 30,
            "T" | "TB" | "TiB" => 40,
            _ => return Err(invalid()),
        };
        let number: f64 = number.parse().map_err(|_| invalid())?;
        let bytes = number * (1_u64 << shift) as f64;
        match bytes < u64::MAX as f64 {
            true => Ok(Self(bytes as u64)),
            false => Err(too_large_message(text)),
        }
    }
}

/// Returns the error text for a size that is out of range.
fn too_large_message(size: impl Display) -> String {
    format!("the size {size} is too large")
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ByteSizeVisitor)
    }
}

/// Reads a size from a number or a text.
struct ByteSizeVisitor;

impl Visitor<'_> for ByteSizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(SIZE_FORM)
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
        let bytes = u64::try_from(bytes);
        let negative = |_| E::custom(format!("a size cannot be negative: expected {SIZE_FORM}"));
        bytes.map(ByteSize).map_err(negative)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
        Ok(ByteSize(bytes))
    }

    /// Fails: visited for numbers below the range of 64 bits.
    fn visit_i128<E: de::Error>(self, bytes: i128) -> Result<ByteSize, E> {
        Err(E::custom(too_large_message(bytes)))
    }

    /// Fails: visited for numbers above the range of 64 bits.
    fn visit_u128<E: de::Error>(self, bytes: u128) -> Result<ByteSize, E> {
        Err(E::custom(too_large_message(bytes)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
        text.parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Tolerance {
    /// Parses a percentage such as `"2.5%"`, which must be finite and not negative.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let percent = text
            .strip_suffix('%')
            .and_then(|number| number.trim().parse().ok());
        percent
            .filter(|percent: &f64| percent.is_finite() && *percent >= 0.0)
            .map(Self)
            .ok_or_else(|| {
                de::Error::custom(format!(
                    "tolerance {text:?} is not a share, which is for example \"2.5%\""
                ))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::super::measurement::tests::measured;
    use super::super::stacks::tests::stacks_with;
    use super::*;

    #[test]
    fn baseline_under_its_older_name_is_read() {
        let budget: Budget = toml::from_str("[held.peak]\na = 1\n").unwrap();
        assert_eq!(budget.baseline.peak["a"], ByteSize(1));
        assert!(!budget.limits_anything());
    }

    #[test]
    fn update_keeps_user_settings() {
        let before =
            "tolerance = \"1%\"\npeak = \"1MiB\"\n[functions.allocated]\nc = 1\nd = \"2 KiB\"\n";
        let before: Budget = toml::from_str(before).unwrap();
        assert_eq!(before.peak, Some(ByteSize(1 << 20)));
        assert_eq!(before.functions.allocated["d"], ByteSize(2048));
        let after =
            Budget::from_measurement(&measured(1000, 5000), &stacks_with(&[("c", 300)]), before);
        assert_eq!(
            (after.tolerance, after.peak, after.allocated),
            (Tolerance(1.0), Some(ByteSize(1000)), None)
        );
        assert_eq!(after.functions.allocated["c"], ByteSize(300));
        assert_eq!(after.functions.allocated["d"], ByteSize(2048));
    }

    #[test]
    fn reference_has_every_key() {
        let reference = include_str!("../../../../CONFIGURATION.md");
        let (_, text) = reference.split_once("## The budget of").unwrap();
        let block = text
            .split("```")
            .find_map(|block| block.strip_prefix("toml\n"))
            .unwrap();
        let budget: Budget = toml::from_str(block).unwrap();
        assert!(budget.peak.is_some() && budget.allocated.is_some());
        for total in BudgetedTotal::ALL {
            assert_eq!(budget.functions.for_total(total).len(), 1);
            assert_eq!(budget.baseline.for_total(total).len(), 1);
        }
    }

    #[test]
    fn invalid_budget_error_names_the_line() {
        let check = |text: &str, expected: &str| {
            let error = toml::from_str::<Budget>(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("peek = 1", "unknown field `peek`");
        check("peak = \"12\"", "\"12\" is not a size");
        check("peak = -1", "cannot be negative");
        check("peak = \"-1MiB\"", "is not a size");
        check("peak = 1e9", "expected a size: a whole number of bytes");
        check("peak = true", "expected a size: a whole number of bytes");
        check("peak = [1]", "expected a size: a whole number of bytes");
        check(
            "peak = { bytes = 1 }",
            "expected a size: a whole number of bytes",
        );
        check(
            "peak = 2026-11-21",
            "expected a size: a whole number of bytes",
        );
        check("peak = 99999999999999999999", "too large");
        check("peak = \"99999999TiB\"", "too large");
        check(
            "[functions.peak]\na = 1.5",
            "expected a size: a whole number of bytes",
        );
        check("tolerance = \"5\"", "tolerance \"5\" is not a share");
        check("\ntolerance = \"-5%\"", "line 2");
    }
}
