//! Whether a run kept its budget, and who broke it.

use serde::Serialize;

use super::budget::Budget;
use super::measurement::{BudgetedTotal, Measurement};
use super::stacks::{FunctionRow, Stack, Stacks};

/// An estimate breaks a limit that it exceeds by so many standard errors: one in a hundred does by
/// chance (one-sided).
const DOUBT: f64 = 2.33;

/// One line for each limit.
#[derive(Debug, Serialize)]
pub(super) struct BudgetVerdict {
    pub(super) checks: Vec<LimitCheck>,
    /// Processes that were counted.
    pub(super) processes: usize,
}

/// One limit, and what was measured.
#[derive(Debug, Serialize)]
pub(super) struct LimitCheck {
    pub(super) what: BudgetedTotal,
    /// None: of all functions together.
    pub(super) function: Option<String>,
    /// In the unit of [`BudgetedTotal`], as the file has it.
    pub(super) budget: u64,
    /// The least that would break it, chance left aside.
    pub(super) limit: u64,
    pub(super) measured: u64,
    /// The standard error of an estimate; 0 of a total, which is exact.
    pub(super) error: u64,
    pub(super) is_broken: bool,
    pub(super) guilty: Option<Regression>,
}

/// Who took more than at the update.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Regression {
    pub(super) function: String,
    /// What it holds more than at the update, or all that it holds where that does not tell.
    pub(super) growth: u64,
    /// Of the growth.
    pub(super) error: u64,
    pub(super) bytes: u64,
    /// Its largest stack, root first.
    pub(super) stack: Vec<String>,
}

impl BudgetVerdict {
    /// `stacks` show who is to blame for a broken total, and are what functions are judged by.
    pub(super) fn of(measured: &Measurement, stacks: &Stacks, budget: &Budget) -> Self {
        let totals = BudgetedTotal::ALL.into_iter().filter_map(|what| {
            let budgeted = budget.total(what)?;
            let (total, limit) = (measured.total(what), budget.limit(budgeted));
            let is_broken = total > limit;
            Some(LimitCheck {
                what,
                function: None,
                budget: budgeted.0,
                limit,
                measured: total,
                error: 0,
                is_broken,
                guilty: is_broken
                    .then(|| find_regression(stacks, budget, what))
                    .flatten(),
            })
        });
        let mut checks: Vec<LimitCheck> = totals.collect();
        for what in BudgetedTotal::ALL {
            let rows = stacks.functions(what);
            for (name, budgeted) in budget.functions.of(what) {
                let row = rows.iter().find(|row| row.name == *name);
                let (bytes, error) = row.map_or((0, 0.0), |row| (row.bytes, row.error));
                let limit = budget.limit(*budgeted);
                let is_broken = bytes as f64 > limit as f64 + DOUBT * error;
                let found = || {
                    row.map(|row| regression(stacks, what, row, bytes.saturating_sub(budgeted.0)))
                };
                checks.push(LimitCheck {
                    what,
                    function: Some(name.clone()),
                    budget: budgeted.0,
                    limit,
                    measured: bytes,
                    error: error as u64,
                    is_broken,
                    guilty: is_broken.then(found).flatten(),
                });
            }
        }
        Self {
            checks,
            processes: measured.processes,
        }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.checks.iter().any(|check| check.is_broken)
    }
}

/// The function that grew most since the update.
fn find_regression(stacks: &Stacks, budget: &Budget, what: BudgetedTotal) -> Option<Regression> {
    let held = budget.baseline.of(what);
    let before = |row: &FunctionRow| held.get(&row.name).map_or(0, |bytes| bytes.0);
    let growth = |row: &FunctionRow| row.bytes.saturating_sub(before(row));
    let rows = stacks.functions(what);
    let most = rows.iter().max_by_key(|row| growth(row))?;
    Some(regression(stacks, what, most, growth(most)))
}

fn regression(stacks: &Stacks, what: BudgetedTotal, row: &FunctionRow, growth: u64) -> Regression {
    let stack = stacks.heaviest(what, &row.name);
    Regression {
        function: row.name.clone(),
        growth,
        // Both were estimated, about as well.
        error: (row.error * std::f64::consts::SQRT_2) as u64,
        bytes: row.bytes,
        stack: stack.map_or_else(Vec::new, |Stack { functions, .. }| functions.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::measurement::tests::measured;
    use super::super::stacks::tests::held;
    use super::*;

    #[test]
    fn growth_beyond_the_tolerance_is_broken_and_named() {
        let budget = Budget::of(
            &measured(1000, 5000),
            &held(&[("a", 600), ("b", 400)]),
            Budget::default(),
        );
        let check = |peak, allocated, expected: [bool; 2]| {
            let now = measured(peak, allocated);
            let verdict = BudgetVerdict::of(&now, &held(&[("a", 610), ("b", 450)]), &budget);
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
    fn a_total_is_judged_without_stacks() {
        let budget = toml::from_str("peak = 100\nallocated = 200").unwrap();
        let verdict = BudgetVerdict::of(&measured(150, 150), &Stacks::default(), &budget);
        let told = verdict.checks.iter();
        let told: Vec<_> = told.map(|check| (check.is_broken, &check.guilty)).collect();
        assert_eq!(told, [(true, &None), (false, &None)]);
    }

    #[test]
    fn a_function_is_broken_only_beyond_chance() {
        let mut budget: Budget =
            toml::from_str("tolerance = \"0%\"\n[functions.peak]\na = 600\ngone = 5").unwrap();
        let check = |budget: &Budget, error: f64, expected| {
            let mut stacks = held(&[("a", 700)]);
            stacks.at_peak[0].variance = error * error;
            let verdict = BudgetVerdict::of(&measured(1, 1), &stacks, budget);
            assert_eq!(verdict.is_broken(), expected, "{error}");
        };
        assert!(budget.limits_functions());
        check(&budget, 0.0, true);
        check(&budget, 42.0, true);
        check(&budget, 43.0, false);
        budget.functions.peak.clear();
        assert!(!budget.limits_functions());
        check(&budget, 0.0, false);
    }
}
