//! Suite `churn`: a program allocates from four million stacks, many more than the cells of memprof's sampler. The
//! estimate of live bytes stays right, and the sampler's memory bounded.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::SuiteLength;
use xtask::dist::dist_dir;
use xtask::run::{output, project_root};

/// Maximum growth of RSS in bytes: the sampler's tables use 64 MiB of records and up to 34 MB of live samples; the rest
/// is the program's.
const MAX_GROWTH: f64 = (128 << 20) as f64;

/// Runs the suite `churn`, and returns its figures in one line. Fails if the estimate is too far off, if a sample is
/// lost, or if the program's memory grows too much.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let seconds = length.pick(10, 600);
    let dir = tempfile::tempdir()?;
    let config = dir.path().join("churn.toml");
    let text = format!(
        "[control]\nsocket = \"off\"\n[[plugin]]\npath = {:?}\n[plugin.config]\ndump_dir = {:?}\n",
        dist_dir().join("plugins/memory_profile.so"),
        dir.path().join("dumps"),
    );
    fs::write(&config, text)?;
    let mut program = Command::new(dist_dir().join("torture/churn"));
    program.arg(&config).arg(seconds.to_string());
    program.current_dir(project_root());
    let stdout = output(&mut program).context("the program failed")?;
    // CI runs the short suite often, so its limit is wider.
    let summary = check_figures(length.pick(4.5, 3.0), &stdout)?;
    Ok(format!("{seconds} s, {summary}"))
}

/// Checks the line of figures that churn.c prints, and returns them as a sentence. `max_deviations` is how many
/// standard deviations the estimate may be off.
fn check_figures(max_deviations: f64, line: &str) -> Result<String> {
    let numbers: Vec<f64> = line
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .with_context(|| line.to_owned())?;
    let [estimate, truth, deviation, samples, lost, growth] = numbers[..] else {
        anyhow::bail!("{line}");
    };
    let deviations = (estimate - truth) / deviation;
    let summary = format!(
        "{samples} samples, {lost} lost: {estimate} bytes for {truth} live ones ({deviations:+.1} standard deviations), \
         RSS grew by {:.0} MiB",
        growth / f64::from(1 << 20)
    );
    ensure!(deviations.abs() < max_deviations, "{summary}");
    ensure!(lost == 0.0 && growth < MAX_GROWTH, "{summary}");
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_estimate_lost_sample_and_growth_fail() {
        let check = |line: &str, is_good| {
            let result = check_figures(3.0, line);
            assert_eq!(result.is_ok(), is_good, "{line}: {result:?}");
        };
        check("19657176 19138203 276236 378376 0 69746688\n", true);
        check("18138203 19138203 276236 378376 0 69746688\n", false);
        check("19657176 19138203 276236 378376 1 69746688\n", false);
        check("19657176 19138203 276236 378376 0 169746688\n", false);
        check("19657176 19138203 276236 378376 0\n", false);
        check("", false);
    }
}
