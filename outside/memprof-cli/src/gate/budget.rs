//! The budget file: limits, and values by function when it was written.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

use super::measurement::{BudgetedTotal, Measurement};
use super::stacks::Stacks;
use crate::exit::{USAGE, with_exit_code};

/// Default tolerance, in percent: above half of the growth that should be detected, so that chance hides about as
/// many regressions as it reports.
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
    /// Budgets in bytes by function name, for one of the totals.
    pub(super) fn for_total(&self, total: BudgetedTotal) -> &BTreeMap<String, ByteSize> {
        match total {
            BudgetedTotal::Peak => &self.peak,
            BudgetedTotal::Allocated => &self.allocated,
        }
    }

    fn for_total_mut(&mut self, total: BudgetedTotal) -> &mut BTreeMap<String, ByteSize> {
        match total {
            BudgetedTotal::Peak => &mut self.peak,
            BudgetedTotal::Allocated => &mut self.allocated,
        }
    }
}

impl Budget {
    /// Reads a budget file; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read or parsed; the text names the line.
    pub(super) fn read(path: &Path) -> anyhow::Result<Option<Self>> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(with_exit_code(
                    USAGE,
                    format!("{}: {error}", path.display()),
                ));
            }
        };
        let parsed = toml::from_str(&text);
        parsed
            .map(Some)
            .map_err(|error| with_exit_code(USAGE, format!("{}: {error}", path.display())))
    }

    /// Budget of a total, without the tolerance; `None` if it is unlimited.
    pub(super) fn limit_of_total(&self, total: BudgetedTotal) -> Option<ByteSize> {
        match total {
            BudgetedTotal::Peak => self.peak,
            BudgetedTotal::Allocated => self.allocated,
        }
    }

    /// Largest number of bytes that a budget allows, with the tolerance.
    pub(super) fn limit_with_tolerance(&self, budgeted: ByteSize) -> u64 {
        (budgeted.0 as f64 * (1.0 + self.tolerance.0 / 100.0)) as u64
    }

    /// Whether any total exceeds its limit with the tolerance. Functions are not checked.
    pub(super) fn is_exceeded_by(&self, measured: &Measurement) -> bool {
        let is_exceeded = |total: BudgetedTotal| {
            let budgeted = self.limit_of_total(total);
            budgeted
                .is_some_and(|budgeted| measured.total(total) > self.limit_with_tolerance(budgeted))
        };
        BudgetedTotal::ALL.into_iter().any(is_exceeded)
    }

    /// Whether functions have limits.
    pub(super) fn limits_functions(&self) -> bool {
        let limits = |total: BudgetedTotal| !self.functions.for_total(total).is_empty();
        BudgetedTotal::ALL.into_iter().any(limits)
    }

    /// Builds the budget that a measurement just keeps. Keeps the tolerance of the budget before, and which totals
    /// and functions have a limit.
    pub(super) fn from_measurement(measured: &Measurement, stacks: &Stacks, before: Self) -> Self {
        let is_new = before.peak.is_none()
            && before.allocated.is_none()
            && before.functions == FunctionBudgets::default();
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
                *limit = ByteSize(row.map_or(0, |row| row.bytes));
            }
            let baseline = rows
                .iter()
                .take(BASELINE_FUNCTIONS)
                .map(|row| (row.name.clone(), ByteSize(row.bytes)));
            *budget.baseline.for_total_mut(total) = baseline.collect();
        }
        budget
    }

    /// Formats the budget file as `--update` writes it, in TOML with comments.
    pub(super) fn to_toml(&self) -> String {
        let mut text = String::from(
            "# The budget of `memprof test`: a run may exceed it by `tolerance`. `--update` rewrites this file.\n",
        );
        let mut line = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        line(format!("tolerance = \"{}%\"", self.tolerance.0));
        if let Some(ByteSize(bytes)) = self.peak {
            line(format!(
                "peak = {bytes}  # bytes that live at the same time in one process"
            ));
        }
        if let Some(ByteSize(bytes)) = self.allocated {
            line(format!(
                "allocated = {bytes}  # bytes, in all processes together"
            ));
        }
        let mut table = |name: &str, comment: &str, budgets: &FunctionBudgets| {
            for total in BudgetedTotal::ALL {
                let functions = budgets.for_total(total);
                if !functions.is_empty() {
                    line(format!("\n# {comment}\n[{name}.{}]", total.key()));
                    let mut sorted: Vec<_> = functions.iter().collect();
                    sorted.sort_by_key(|(name, bytes)| (std::cmp::Reverse(bytes.0), *name));
                    for (function, ByteSize(bytes)) in sorted {
                        let key = toml::Value::String(function.clone());
                        line(format!("{} = {bytes}", quoted_key(&key)));
                    }
                }
            }
        };
        table(
            "functions",
            "Limits of functions, estimated from samples.",
            &self.functions,
        );
        table(
            "baseline",
            "Bytes by function when this was written. These are not limits.",
            &self.baseline,
        );
        text
    }
}

/// Quotes a key for TOML, with control characters escaped: it must not leave its line.
fn quoted_key(key: &toml::Value) -> String {
    let mut text = String::from("\"");
    for char in key.as_str().unwrap_or_default().chars() {
        match char {
            '"' | '\\' => text.extend(['\\', char]),
            control if control.is_control() => {
                // Writing to a string never fails.
                let _ = write!(text, "\\u{:04X}", control as u32);
            }
            char => text.push(char),
        }
    }
    text.push('"');
    text
}

impl FromStr for ByteSize {
    type Err = String;

    /// Parses a number with a unit, of which each is 1024 times the one before: `64MiB`, `64MB` and `64M` are
    /// equal.
    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("{text:?} is not a size, which is for example \"64MiB\"");
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
        Ok(Self((number * (1_u64 << shift) as f64) as u64))
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        /// A value of a budget in TOML.
        enum NumberOrText {
            Number(u64),
            Text(String),
        }
        match NumberOrText::deserialize(from)? {
            NumberOrText::Number(bytes) => Ok(Self(bytes)),
            NumberOrText::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

impl<'de> Deserialize<'de> for Tolerance {
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
    fn budget_survives_writing_and_reading() {
        let budget = Budget::from_measurement(
            &measured(1000, 5000),
            &stacks_with(&[("a \"b\"\n\\", 700), ("c", 300)]),
            Budget::default(),
        );
        assert_eq!(toml::from_str::<Budget>(&budget.to_toml()), Ok(budget));
    }

    #[test]
    fn baseline_under_its_older_name_is_read() {
        let budget: Budget = toml::from_str("[held.peak]\na = 1\n").unwrap();
        assert_eq!(budget.baseline.peak["a"], ByteSize(1));
        assert!(budget.to_toml().contains("[baseline.peak]"));
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
        assert_eq!(after.functions.allocated["d"], ByteSize(0));
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
        check("peak = -1", "did not match");
        check("tolerance = \"5\"", "tolerance \"5\" is not a share");
        check("\ntolerance = \"-5%\"", "line 2");
    }
}
