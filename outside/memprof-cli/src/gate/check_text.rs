//! Text about one limit.

use std::fmt::Write;

use super::verdict::{LimitCheck, Regression};
use crate::quantities::format_size;

/// Frames of a stack in the text, from the leaf.
const MAX_SHOWN_FRAMES: usize = 12;

/// Returns the lines about a limit: the measured value and, if the limit is broken, the function that grew.
pub(super) fn format_check_lines(check: &LimitCheck) -> String {
    let regression = check.guilty.as_ref().map(regression_lines);
    let lines = [Some(format_check_line(check)), regression];
    lines.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

/// Returns the first line about a limit: the measured value, and by how much it differs from the budget. For a limit of
/// a function that no sample has, the line says that it checks nothing.
fn format_check_line(check: &LimitCheck) -> String {
    let name = limit_name(check);
    if !check.is_matched {
        return format!(
            "?      {name}: no sampled function has this name, so the limit of {} checks nothing",
            format_size(check.budget)
        );
    }
    let error = match check.error {
        0 => String::new(),
        error => format!(" ± {}", format_size(error)),
    };
    let change = match check.budget {
        0 => String::new(),
        budget => {
            let change = 100.0 * (check.measured as f64 / budget as f64 - 1.0);
            format!(" ({change:+.1}%)")
        }
    };
    format!(
        "{:<6} {name}: {}{error} of {}{change}",
        match check.is_broken {
            true => "BROKEN",
            false => "ok",
        },
        format_size(check.measured),
        format_size(check.budget)
    )
}

/// Returns the name of a limit: its total, and its function if it has one.
pub(super) fn limit_name(check: &LimitCheck) -> String {
    match &check.function {
        Some(function) => format!("{} by {function}", check.what.key()),
        None => check.what.key().to_owned(),
    }
}

/// Returns the lines for the function that grew: its growth, and its largest stack with up to [`MAX_SHOWN_FRAMES`]
/// frames.
fn regression_lines(regression: &Regression) -> String {
    let mut text = format!(
        "       +{} ± {} in {}, which has {}",
        format_size(regression.growth),
        format_size(regression.error),
        regression.function,
        format_size(regression.bytes)
    );
    // Writing to a string never fails.
    for frame in regression.stack.iter().rev().take(MAX_SHOWN_FRAMES) {
        let _ = write!(text, "\n           {frame}");
    }
    if let Some(more @ 1..) = regression.stack.len().checked_sub(MAX_SHOWN_FRAMES) {
        let _ = write!(text, "\n           ... {more} callers");
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::budget::ByteSize;
    use super::super::measurement::tests::measured;
    use super::super::stacks::tests::stacks_with;
    use super::*;
    use crate::gate::budget::Budget;
    use crate::gate::verdict::BudgetVerdict;

    /// A broken peak, allocated bytes within their limit, and a limit that matches nothing.
    pub(in crate::gate) fn broken() -> BudgetVerdict {
        let (before, now) = (measured(100 << 20, 1 << 30), measured(106 << 20, 1 << 30));
        let held = |bytes| stacks_with(&[("parse: a, 5%", bytes)]);
        let mut budget = Budget::from_measurement(&before, &held(60 << 20), Budget::default());
        budget.functions.peak = [("gone".to_owned(), ByteSize(1))].into();
        BudgetVerdict::new(&now, &held(66 << 20), &budget)
    }

    #[test]
    fn stack_of_a_regression_and_unmatched_limit_are_shown() {
        assert_eq!(
            broken()
                .checks
                .iter()
                .map(|check| format_check_lines(check) + "\n")
                .collect::<String>(),
            "BROKEN peak: 106.00MiB of 100.00MiB (+6.0%)\n       +6.00MiB ± 0B in parse: a, 5%, which has \
             66.00MiB\n           parse: a, 5%\n           main\nok     allocated: 1.00GiB of 1.00GiB (+0.0%)\n\
             ?      peak by gone: no sampled function has this name, so the limit of 1B checks nothing\n"
        );
    }
}
