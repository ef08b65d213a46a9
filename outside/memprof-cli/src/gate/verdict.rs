//! Decides whether a run kept its budget, and which function exceeded it.

use serde::Serialize;

use super::budget::Budget;
use super::measurement::{BudgetedTotal, Measurement};
use super::stacks::{FunctionRow, Stack, Stacks};

/// Number of standard errors by which an estimate must exceed a limit: by chance, one in a hundred does (one-sided).
const ERROR_FACTOR: f64 = 2.33;

/// Results for all limits.
#[derive(Debug, Serialize)]
pub(super) struct BudgetVerdict {
    pub(super) checks: Vec<LimitCheck>,
    /// Number of counted processes.
    pub(super) processes: usize,
}

/// A limit, and the measured value.
#[derive(Debug, Serialize)]
pub(super) struct LimitCheck {
    pub(super) what: BudgetedTotal,
    /// Limited function; `None` for a total.
    pub(super) function: Option<String>,
    /// Value in the file, in bytes.
    pub(super) budget: u64,
    /// Limit with the tolerance, in bytes.
    pub(super) limit: u64,
    pub(super) measured: u64,
    /// Standard error of an estimate; 0 for a total, which is exact.
    pub(super) error: u64,
    pub(super) is_broken: bool,
    /// Whether the limit is one of a total, or of a function with a sample.
    pub(super) is_matched: bool,
    pub(super) guilty: Option<Regression>,
}

/// The function that grew most since the update.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Regression {
    pub(super) function: String,
    /// Growth since the update, or all its bytes if it is not in the baseline.
    pub(super) growth: u64,
    /// Standard error of the growth.
    pub(super) error: u64,
    pub(super) bytes: u64,
    /// Its largest stack, root first.
    pub(super) stack: Vec<String>,
}

impl BudgetVerdict {
    /// Compares a measurement with a budget. `stacks` has the estimates by function; they also show the function that
    /// exceeded a total. A function breaks its limit only if its estimate exceeds the limit by [`ERROR_FACTOR`]
    /// standard errors.
    pub(super) fn new(measured: &Measurement, stacks: &Stacks, budget: &Budget) -> Self {
        let totals = BudgetedTotal::ALL.into_iter().filter_map(|total| {
            let budgeted = budget.limit_of_total(total)?;
            let (value, limit) = (measured.total(total), budget.limit_with_tolerance(budgeted));
            let is_broken = value > limit;
            Some(LimitCheck {
                what: total,
                function: None,
                budget: budgeted.0,
                limit,
                measured: value,
                error: 0,
                is_broken,
                is_matched: true,
                guilty: is_broken
                    .then(|| find_regression(stacks, budget, total))
                    .flatten(),
            })
        });
        let mut checks: Vec<LimitCheck> = totals.collect();
        for total in BudgetedTotal::ALL {
            let rows = stacks.function_rows(total);
            for (name, budgeted) in budget.functions.for_total(total) {
                let row = rows.iter().find(|row| row.name == *name);
                let (bytes, error) = row.map_or((0, 0.0), |row| (row.bytes, row.error));
                let limit = budget.limit_with_tolerance(*budgeted);
                let is_broken = bytes as f64 > limit as f64 + ERROR_FACTOR * error;
                let regressed = || {
                    row.map(|row| {
                        build_regression(stacks, total, row, bytes.saturating_sub(budgeted.0))
                    })
                };
                checks.push(LimitCheck {
                    what: total,
                    function: Some(name.clone()),
                    budget: budgeted.0,
                    limit,
                    measured: bytes,
                    error: error as u64,
                    is_broken,
                    is_matched: stacks.has_leaf(name),
                    guilty: is_broken.then(regressed).flatten(),
                });
            }
        }
        Self {
            checks,
            processes: measured.processes,
        }
    }

    /// Iterates over the limits of functions that no sample has: such functions were renamed or inlined, or allocate
    /// too little.
    pub(super) fn unmatched_checks(&self) -> impl Iterator<Item = &LimitCheck> {
        self.checks.iter().filter(|check| !check.is_matched)
    }

    /// Returns whether any limit was exceeded.
    pub(super) fn is_broken(&self) -> bool {
        self.checks.iter().any(|check| check.is_broken)
    }
}

/// Finds the function whose bytes of a total grew most since the budget was written. `None` without samples.
fn find_regression(stacks: &Stacks, budget: &Budget, total: BudgetedTotal) -> Option<Regression> {
    let baseline = budget.baseline.for_total(total);
    let before = |row: &FunctionRow| baseline.get(&row.name).map_or(0, |bytes| bytes.0);
    let growth = |row: &FunctionRow| row.bytes.saturating_sub(before(row));
    let rows = stacks.function_rows(total);
    let row = rows.iter().max_by_key(|row| growth(row))?;
    Some(build_regression(stacks, total, row, growth(row)))
}

/// Describes the `growth` of a function in bytes, with its standard error and the function's largest stack.
fn build_regression(
    stacks: &Stacks,
    total: BudgetedTotal,
    row: &FunctionRow,
    growth: u64,
) -> Regression {
    let stack = stacks.heaviest_stack(total, &row.name);
    Regression {
        function: row.name.clone(),
        growth,
        // The estimates before and now have about equal errors, which add up in quadrature.
        error: (row.error * std::f64::consts::SQRT_2) as u64,
        bytes: row.bytes,
        stack: stack.map_or_else(Vec::new, |Stack { functions, .. }| functions.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::measurement::tests::measured;
    use super::super::stacks::tests::stacks_with;
    use super::*;

    #[test]
    fn growth_beyond_tolerance_is_broken_and_named() {
        let budget = Budget::from_measurement(
            &measured(1000, 5000),
            &stacks_with(&[("a", 600), ("b", 400)]),
            Budget::default(),
        );
        let check = |peak, allocated, expected: [bool; 2]| {
            let now = measured(peak, allocated);
            let verdict =
                BudgetVerdict::new(&now, &stacks_with(&[("a", 610), ("b", 450)]), &budget);
            let broken: Vec<bool> = verdict.checks.iter().map(|check| check.is_broken).collect();
            assert_eq!(broken, expected);
            assert_eq!(budget.is_exceeded_by(&now), expected.contains(&true));
            for guilty in verdict
                .checks
                .iter()
                .filter_map(|check| check.guilty.as_ref())
            {
                assert_eq!((guilty.function.as_str(), guilty.growth), ("b", 50));
                assert_eq!(guilty.stack, ["main", "b"]);
            }
        };
        check(1000, 5000, [false, false]);
        check(1025, 5125, [false, false]);
        check(1026, 5125, [true, false]);
        check(1050, 5250, [true, true]);
        check(500, 2500, [false, false]);
    }

    #[test]
    fn total_is_judged_without_stacks() {
        let budget = toml::from_str("peak = 100\nallocated = 200").unwrap();
        let verdict = BudgetVerdict::new(&measured(150, 150), &Stacks::default(), &budget);
        let text = verdict.checks.iter();
        let text: Vec<_> = text.map(|check| (check.is_broken, &check.guilty)).collect();
        assert_eq!(text, [(true, &None), (false, &None)]);
    }

    #[test]
    fn function_is_broken_only_beyond_chance() {
        let mut budget: Budget =
            toml::from_str("tolerance = \"0%\"\n[functions.peak]\na = 600\ngone = 5").unwrap();
        let check = |budget: &Budget, error: f64, expected| {
            let mut stacks = stacks_with(&[("a", 700)]);
            stacks.at_peak[0].variance = error * error;
            let verdict = BudgetVerdict::new(&measured(1, 1), &stacks, budget);
            assert_eq!(verdict.is_broken(), expected, "{error}");
        };
        assert!(budget.limits_functions());
        let verdict = BudgetVerdict::new(&measured(1, 1), &stacks_with(&[("a", 1)]), &budget);
        let unmatched = verdict
            .unmatched_checks()
            .map(|check| check.function.as_deref());
        assert!(unmatched.eq([Some("gone")]));
        check(&budget, 0.0, true);
        check(&budget, 42.0, true);
        check(&budget, 43.0, false);
        budget.functions.peak.clear();
        assert!(!budget.limits_functions());
        check(&budget, 0.0, false);
    }
}
