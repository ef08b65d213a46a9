//! What `memprof test` prints.

use std::fmt::Write;
use std::path::Path;

use memprof_report::{SampleType, amount};
use serde::Serialize;

use super::budget::Budget;
use super::measurement::{BudgetedTotal, Measurement};
use super::verdict::{BudgetVerdict, LimitCheck, Regression};
use super::{FormatArg, TestArgs};

/// The frames of a stack that the text shows, from the leaf.
const FRAMES: usize = 12;

#[derive(Serialize)]
struct Json<'a> {
    schema_version: u32,
    status: &'static str,
    #[serde(flatten)]
    verdict: &'a BudgetVerdict,
}

pub(super) fn verdict(verdict: &BudgetVerdict, args: &TestArgs) -> anyhow::Result<String> {
    let by_default = match std::env::var_os("GITHUB_ACTIONS") {
        Some(value) if value == "true" => FormatArg::Github,
        _ => FormatArg::Text,
    };
    Ok(match args.format.unwrap_or(by_default) {
        FormatArg::Json => serde_json::to_string(&Json {
            schema_version: 1,
            status: match verdict.is_broken() {
                true => "broken",
                false => "ok",
            },
            verdict,
        })?,
        FormatArg::Text => text(verdict),
        FormatArg::Github => {
            let broken = verdict.checks.iter().filter(|check| check.is_broken);
            let commands: String = broken.map(|check| github(check, &args.budget)).collect();
            format!("{commands}{}", text(verdict))
        }
    })
}

/// What an update wrote, and what its runs differed by.
pub(super) fn updated(path: &Path, budget: &Budget, measured: &Measurement) -> String {
    let mut text = format!("wrote {}\n", path.display());
    for (what, spread) in BudgetedTotal::ALL
        .into_iter()
        .zip(measured.spread.unwrap_or_default())
    {
        let Some(bytes) = budget.total(what) else {
            continue;
        };
        // Writing to a string never fails, here and below.
        let _ = writeln!(
            text,
            "{:<10} {:>10}  the runs differ by {:.2}%",
            what.key(),
            size(bytes.0),
            100.0 * spread
        );
        // The range of five runs is about 2.3 standard deviations: beyond this, one run in a hundred
        // would break the budget by chance.
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

fn text(verdict: &BudgetVerdict) -> String {
    let mut text = String::new();
    for check in &verdict.checks {
        let _ = writeln!(text, "{}", line(check));
        if let Some(guilty) = &check.guilty {
            let _ = writeln!(text, "{}", blame(guilty));
        }
    }
    if verdict.checks.is_empty() {
        text.push_str(
            "the budget has no limit: peak, allocated, [functions.peak], [functions.allocated]\n",
        );
    }
    text
}

fn line(check: &LimitCheck) -> String {
    let name = subject(check);
    let doubt = match check.error {
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
        "{:<6} {name}: {}{doubt} of {}{change}",
        match check.is_broken {
            true => "BROKEN",
            false => "ok",
        },
        size(check.measured),
        size(check.budget)
    )
}

fn subject(check: &LimitCheck) -> String {
    match &check.function {
        Some(function) => format!("{} by {function}", check.what.key()),
        None => check.what.key().to_owned(),
    }
}

fn blame(guilty: &Regression) -> String {
    let mut text = format!(
        "       +{} ± {} in {}, which has {}",
        size(guilty.growth),
        size(guilty.error),
        guilty.function,
        size(guilty.bytes)
    );
    for frame in guilty.stack.iter().rev().take(FRAMES) {
        let _ = write!(text, "\n           {frame}");
    }
    if let Some(more @ 1..) = guilty.stack.len().checked_sub(FRAMES) {
        let _ = write!(text, "\n           ... {more} callers");
    }
    text
}

/// A workflow command (docs.github.com, "Workflow commands for GitHub Actions").
fn github(check: &LimitCheck, budget: &Path) -> String {
    let blamed = check.guilty.as_ref().map(blame);
    let message = format!("{}\n{}", line(check), blamed.unwrap_or_default());
    format!(
        "::error file={},title={}::{}\n",
        property(&budget.display().to_string()),
        property(&format!("memprof: {} over budget", subject(check))),
        data(message.trim())
    )
}

fn data(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

fn size(bytes: u64) -> String {
    amount(
        i64::try_from(bytes).unwrap_or(i64::MAX),
        SampleType::InuseSpace,
    )
}

#[cfg(test)]
mod tests {
    use super::super::measurement::tests::measured;
    use super::super::stacks::tests::held;
    use super::*;

    fn broken() -> BudgetVerdict {
        let (before, now) = (measured(100 << 20, 1 << 30), measured(106 << 20, 1 << 30));
        let held = |bytes| held(&[("parse: a, 5%", bytes)]);
        let budget = Budget::of(&before, &held(60 << 20), Budget::default());
        BudgetVerdict::of(&now, &held(66 << 20), &budget)
    }

    #[test]
    fn the_guilty_stack_is_told() {
        assert_eq!(
            text(&broken()),
            "BROKEN peak: 106.00MiB of 100.00MiB (+6.0%)\n       +6.00MiB ± 0B in parse: a, 5%, which has \
             66.00MiB\n           parse: a, 5%\n           main\nok     allocated: 1.00GiB of 1.00GiB (+0.0%)\n"
        );
    }

    #[test]
    fn an_annotation_is_one_line() {
        let verdict = broken();
        let command = github(&verdict.checks[0], Path::new("a,b:c"));
        assert_eq!(
            command,
            "::error file=a%2Cb%3Ac,title=memprof%3A peak over budget::BROKEN peak: 106.00MiB of 100.00MiB \
             (+6.0%25)%0A       +6.00MiB ± 0B in parse: a, 5%25, which has 66.00MiB%0A           parse: a, \
             5%25%0A           main\n"
        );
    }
}
