//! Output of `memprof test`.

use std::fmt::Write;
use std::path::Path;

use memprof_report::{SampleType, amount};
use serde::Serialize;

use super::budget::Budget;
use super::measurement::{BudgetedTotal, Measurement};
use super::verdict::{BudgetVerdict, LimitCheck, Regression};
use super::{FormatArg, TestArgs};

/// Frames of a stack in the text, from the leaf.
const MAX_SHOWN_FRAMES: usize = 12;

/// Output of `memprof test --format json`.
#[derive(Serialize)]
struct VerdictOutput<'a> {
    schema_version: u32,
    status: &'static str,
    #[serde(flatten)]
    verdict: &'a BudgetVerdict,
}

/// Formats a verdict in the requested format; the default is that of GitHub in its workflows, else text.
pub(super) fn format_verdict(verdict: &BudgetVerdict, args: &TestArgs) -> anyhow::Result<String> {
    let default = match std::env::var_os("GITHUB_ACTIONS") {
        Some(value) if value == "true" => FormatArg::Github,
        _ => FormatArg::Text,
    };
    Ok(match args.format.unwrap_or(default) {
        FormatArg::Json => serde_json::to_string(&VerdictOutput {
            schema_version: 1,
            status: match verdict.is_broken() {
                true => "broken",
                false => "ok",
            },
            verdict,
        })?,
        FormatArg::Text => format_text(verdict),
        FormatArg::Github => {
            let broken = verdict.checks.iter().filter(|check| check.is_broken);
            let commands: String = broken
                .map(|check| github_annotation(check, &args.budget))
                .collect();
            format!("{commands}{}", format_text(verdict))
        }
    })
}

/// Formats the result of an update: the budget, and the range of the runs.
pub(super) fn format_update(path: &Path, budget: &Budget, measured: &Measurement) -> String {
    let mut text = format!("wrote {}\n", path.display());
    for (total, spread) in BudgetedTotal::ALL
        .into_iter()
        .zip(measured.spread.unwrap_or_default())
    {
        let Some(bytes) = budget.limit_of_total(total) else {
            continue;
        };
        // Writing to a string never fails, here and below.
        let _ = writeln!(
            text,
            "{:<10} {:>10}  the runs differ by {:.2}%",
            total.key(),
            size(bytes.0),
            100.0 * spread
        );
        // The range of five runs is about 2.3 standard deviations: beyond the tolerance, one run in a hundred would
        // exceed the budget by chance.
        if 100.0 * spread > budget.tolerance.0 {
            let _ = writeln!(
                text,
                "           more than the `tolerance` of {}%: raise `tolerance`, or test with --runs 5",
                budget.tolerance.0
            );
        }
    }
    text
}

/// Formats a verdict for people.
fn format_text(verdict: &BudgetVerdict) -> String {
    let mut text = String::new();
    for check in &verdict.checks {
        let _ = writeln!(text, "{}", check_line(check));
        if let Some(regression) = &check.guilty {
            let _ = writeln!(text, "{}", regression_lines(regression));
        }
    }
    if verdict.checks.is_empty() {
        text.push_str(
            "the budget has no limit: peak, allocated, [functions.peak], [functions.allocated]\n",
        );
    }
    text
}

/// Line for a limit: the measured value, and by how much it differs from the budget.
fn check_line(check: &LimitCheck) -> String {
    let name = limit_name(check);
    let error = match check.error {
        0 => String::new(),
        error => format!(" ± {}", size(error)),
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
        size(check.measured),
        size(check.budget)
    )
}

/// Name of the limited total, with the function if the limit is one of a function.
fn limit_name(check: &LimitCheck) -> String {
    match &check.function {
        Some(function) => format!("{} by {function}", check.what.key()),
        None => check.what.key().to_owned(),
    }
}

/// Lines for the function that grew: its growth and its largest stack.
fn regression_lines(regression: &Regression) -> String {
    let mut text = format!(
        "       +{} ± {} in {}, which has {}",
        size(regression.growth),
        size(regression.error),
        regression.function,
        size(regression.bytes)
    );
    for frame in regression.stack.iter().rev().take(MAX_SHOWN_FRAMES) {
        let _ = write!(text, "\n           {frame}");
    }
    if let Some(more @ 1..) = regression.stack.len().checked_sub(MAX_SHOWN_FRAMES) {
        let _ = write!(text, "\n           ... {more} callers");
    }
    text
}

/// Formats the broken limit as a workflow command that shows an error (docs.github.com, "Workflow commands for
/// GitHub Actions").
fn github_annotation(check: &LimitCheck, budget: &Path) -> String {
    let regression = check.guilty.as_ref().map(regression_lines);
    let message = format!("{}\n{}", check_line(check), regression.unwrap_or_default());
    format!(
        "::error file={},title={}::{}\n",
        escape_property(&budget.display().to_string()),
        escape_property(&format!("memprof: {} over budget", limit_name(check))),
        escape_data(message.trim())
    )
}

/// Escapes the text of a workflow command.
fn escape_data(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

/// Escapes a property of a workflow command.
fn escape_property(text: &str) -> String {
    escape_data(text).replace(':', "%3A").replace(',', "%2C")
}

/// Formats a number of bytes with its unit.
fn size(bytes: u64) -> String {
    amount(
        i64::try_from(bytes).unwrap_or(i64::MAX),
        SampleType::InuseSpace,
    )
}

#[cfg(test)]
mod tests {
    use super::super::measurement::tests::measured;
    use super::super::stacks::tests::stacks_with;
    use super::*;

    fn broken() -> BudgetVerdict {
        let (before, now) = (measured(100 << 20, 1 << 30), measured(106 << 20, 1 << 30));
        let held = |bytes| stacks_with(&[("parse: a, 5%", bytes)]);
        let budget = Budget::from_measurement(&before, &held(60 << 20), Budget::default());
        BudgetVerdict::new(&now, &held(66 << 20), &budget)
    }

    #[test]
    fn stack_of_a_regression_is_shown() {
        assert_eq!(
            format_text(&broken()),
            "BROKEN peak: 106.00MiB of 100.00MiB (+6.0%)\n       +6.00MiB ± 0B in parse: a, 5%, which has \
             66.00MiB\n           parse: a, 5%\n           main\nok     allocated: 1.00GiB of 1.00GiB (+0.0%)\n"
        );
    }

    #[test]
    fn annotation_is_one_line() {
        let verdict = broken();
        let command = github_annotation(&verdict.checks[0], Path::new("a,b:c"));
        assert_eq!(
            command,
            "::error file=a%2Cb%3Ac,title=memprof%3A peak over budget::BROKEN peak: 106.00MiB of 100.00MiB \
             (+6.0%25)%0A       +6.00MiB ± 0B in parse: a, 5%25, which has 66.00MiB%0A           parse: a, \
             5%25%0A           main\n"
        );
    }
}
