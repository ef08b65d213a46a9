//! Output of `memprof test`.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use super::budget::Budget;
use super::budget_file::BudgetFile;
use super::check_text::format_check_lines;
use super::findings::Findings;
use super::junit::format_junit;
use super::measurement::{BudgetedTotal, Measurement};
use super::verdict::BudgetVerdict;
use super::{FormatArg, TestArgs};
use crate::quantities::format_size;

/// Output of `memprof test --format json`.
#[derive(Serialize)]
struct VerdictOutput<'a> {
    schema_version: u32,
    status: &'static str,
    #[serde(flatten)]
    verdict: &'a BudgetVerdict,
}

/// Formats a verdict about a budget file as `--format` requests. Without `--format`, the format is that of GitHub if
/// the environment has `GITHUB_ACTIONS=true`, else text.
pub(super) fn format_verdict(
    verdict: &BudgetVerdict,
    file: &BudgetFile,
    args: &TestArgs,
) -> anyhow::Result<String> {
    let default = match std::env::var_os("GITHUB_ACTIONS") {
        Some(value) if value == "true" => FormatArg::Github,
        _ => FormatArg::Text,
    };
    let findings = || Findings::new(verdict, &args.budget, file);
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
        FormatArg::Github => findings().format_github() + &format_text(verdict),
        FormatArg::Gitlab => findings().format_gitlab().to_string(),
        FormatArg::Junit => format_junit(verdict, &args.budget),
        FormatArg::Sarif => findings().format_sarif().to_string(),
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
            format_size(bytes.0),
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

/// Formats a verdict for people, with the lines of each limit.
pub(super) fn format_text(verdict: &BudgetVerdict) -> String {
    let checks = verdict.checks.iter();
    checks
        .map(|check| format_check_lines(check) + "\n")
        .collect()
}
