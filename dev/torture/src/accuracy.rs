//! Suite `accuracy`: estimates of memprof's sampler for a known heap have no bias, and the spread that theory predicts.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::SuiteLength;
use xtask::dist::dist_dir;
use xtask::run::{output, project_root};

/// Maximum relative deviation of the mean of a hundred runs from the true bytes.
const MAX_BIAS: f64 = 0.005;

/// Bytes of one dump: the estimate, the live bytes, and the expected standard deviation.
struct Run {
    estimate: f64,
    truth: f64,
    deviation: f64,
}

/// Runs the suite `accuracy` with one thread and with eight. Returns its figures in one line. Fails if the bias or the
/// spread of the estimates is too far from theory.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let runs = length.pick(10, 100);
    // A few runs prove little, so the limit is wide: a failure is an error for certain.
    let max_deviations = length.pick(4.5, 3.0);
    let mut lines = Vec::new();
    for threads in [1, 8] {
        let runs_done = run_accuracy_program(threads, runs)?;
        ensure!(runs_done.len() == runs, "{} runs", runs_done.len());
        lines.push(format!(
            "{threads} threads: {}",
            check_runs(&runs_done, max_deviations)?
        ));
    }
    Ok(format!("{runs} runs each, 16 KiB, {}", lines.join("; ")))
}

/// Checks the bias and the spread of the runs, and returns them as text. Each may be off by `max_deviations` of its own
/// standard deviations.
fn check_runs(runs: &[Run], max_deviations: f64) -> Result<String> {
    let count = runs.len() as f64;
    let mean = |value: &dyn Fn(&Run) -> f64| runs.iter().map(value).sum::<f64>() / count;
    let bias = mean(&|run| run.estimate / run.truth - 1.0);
    let theory = mean(&|run| run.deviation / run.truth);
    // The offset of a run in standard deviations is normally distributed, whatever its number of samples.
    let offset = mean(&|run| (run.estimate - run.truth) / run.deviation);
    let spread = mean(&|run| ((run.estimate - run.truth) / run.deviation).powi(2)).sqrt();
    let summary = format!(
        "bias {:+.2} %, spread {spread:.2} of the {:.2} % of theory",
        bias * 100.0,
        theory * 100.0
    );
    // The standard deviation of the mean is 1 / sqrt(count), that of the spread 1 / sqrt(2 count).
    ensure!(offset.abs() < max_deviations / count.sqrt(), "{summary}");
    ensure!(
        bias.abs() < MAX_BIAS.max(max_deviations * theory / count.sqrt()),
        "{summary}"
    );
    ensure!(
        (spread - 1.0).abs() < max_deviations / (2.0 * count).sqrt(),
        "{summary}"
    );
    Ok(summary)
}

/// Runs accuracy.c, whose heap of `threads` threads memprof estimates `runs` times, and parses its line for each run.
/// Fails if the program fails, a line is not four numbers, or a sample was lost.
fn run_accuracy_program(threads: usize, runs: usize) -> Result<Vec<Run>> {
    let dir = tempfile::tempdir()?;
    let config = dir.path().join("accuracy.toml");
    let text = format!(
        "[control]\nsocket = \"off\"\n[[plugin]]\npath = {:?}\n[plugin.config]\ndump_dir = {:?}\n",
        dist_dir().join("plugins/memory_profile.so"),
        dir.path().join("dumps"),
    );
    fs::write(&config, text)?;
    let mut program = Command::new(dist_dir().join("torture/accuracy"));
    program.arg(&config);
    program.args([threads.to_string(), runs.to_string()]);
    program.current_dir(project_root());
    let line = |line: &str| {
        let numbers: Vec<f64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [estimate, truth, deviation, lost] = numbers[..] else {
            anyhow::bail!("{line}");
        };
        ensure!(lost == 0.0, "{lost} samples were lost");
        Ok(Run {
            estimate,
            truth,
            deviation,
        })
    };
    let stdout = output(&mut program).context("the program failed")?;
    stdout.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hundred runs with this bias, and this share of the predicted spread.
    fn runs(bias: f64, spread: f64) -> Vec<Run> {
        let deviation_sign = |index: usize| {
            if index.is_multiple_of(2) {
                spread
            } else {
                -spread
            }
        };
        let run = |index| Run {
            estimate: 1e6 * (1.0 + bias) + 1e4 * deviation_sign(index),
            truth: 1e6,
            deviation: 1e4,
        };
        (0..100).map(run).collect()
    }

    #[test]
    fn bias_and_wrong_spread_fail() {
        let check = |bias, spread, is_good| {
            let result = check_runs(&runs(bias, spread), 3.0);
            assert_eq!(result.is_ok(), is_good, "{bias} {spread}: {result:?}");
        };
        check(0.0, 1.0, true);
        check(0.002, 0.9, true);
        check(0.006, 1.0, false);
        check(-0.006, 1.0, false);
        check(0.0, 1.4, false);
        check(0.0, 0.5, false);
    }
}
