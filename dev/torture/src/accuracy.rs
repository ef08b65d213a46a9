//! What memprof's own sampler tells of a heap that is known, again and again: without a bias, and as
//! close as theory says.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::SuiteLength;
use xtask::dist::dist;
use xtask::run::{output, root};

/// How far the mean of a hundred runs may be from what lives.
const BIAS: f64 = 0.005;

/// One dump: what it tells, what lives, and what the standard deviation should be.
struct Run {
    estimate: f64,
    truth: f64,
    deviation: f64,
}

pub(super) fn run(form: SuiteLength) -> Result<String> {
    let runs = form.pick(10, 100);
    // Few runs prove little: what fails them is wrong for certain.
    let most = form.pick(4.5, 3.0);
    let mut lines = Vec::new();
    for threads in [1, 8] {
        let taken = dumps(threads, runs)?;
        ensure!(taken.len() == runs, "{} runs", taken.len());
        lines.push(format!("{threads} threads: {}", check_runs(&taken, most)?));
    }
    Ok(format!("{runs} runs each, 16 KiB, {}", lines.join("; ")))
}

/// `most` is how many standard deviations their mean and their spread may be off.
fn check_runs(runs: &[Run], most: f64) -> Result<String> {
    let count = runs.len() as f64;
    let mean = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / count;
    let bias = mean(&|run| run.estimate / run.truth - 1.0);
    let theory = mean(&|run| run.deviation / run.truth);
    // In standard deviations: normally distributed, by the number of samples in each run.
    let offset = mean(&|run| (run.estimate - run.truth) / run.deviation);
    let spread = mean(&|run| ((run.estimate - run.truth) / run.deviation).powi(2)).sqrt();
    let told = format!(
        "bias {:+.2} %, spread {spread:.2} of the {:.2} % of theory",
        bias * 100.0,
        theory * 100.0
    );
    // Of the mean of so many runs, and of the deviation of their spread.
    ensure!(offset.abs() < most / count.sqrt(), "{told}");
    ensure!(
        bias.abs() < BIAS.max(most * theory / count.sqrt()),
        "{told}"
    );
    ensure!((spread - 1.0).abs() < most / (2.0 * count).sqrt(), "{told}");
    Ok(told)
}

fn dumps(threads: usize, runs: usize) -> Result<Vec<Run>> {
    let place = tempfile::tempdir()?;
    let config = place.path().join("accuracy.toml");
    let text = format!(
        "[control]\nsocket = \"off\"\n[[plugin]]\npath = {:?}\n[plugin.config]\ndump_dir = {:?}\n",
        dist().join("plugins/memory_profile.so"),
        place.path().join("dumps"),
    );
    fs::write(&config, text)?;
    let mut program = Command::new(dist().join("torture/accuracy"));
    program.arg(&config);
    program.args([threads.to_string(), runs.to_string()]);
    program.current_dir(root());
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
    let printed = output(&mut program).context("the program failed")?;
    printed.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hundred runs that are off by `bias`, and spread by `spread` of theory.
    fn runs(bias: f64, spread: f64) -> Vec<Run> {
        let off = |at: usize| {
            if at.is_multiple_of(2) {
                spread
            } else {
                -spread
            }
        };
        let run = |at| Run {
            estimate: 1e6 * (1.0 + bias) + 1e4 * off(at),
            truth: 1e6,
            deviation: 1e4,
        };
        (0..100).map(run).collect()
    }

    #[test]
    fn a_bias_and_a_wrong_spread_are_told() {
        let check = |bias, spread, is_good| {
            let judged = check_runs(&runs(bias, spread), 3.0);
            assert_eq!(judged.is_ok(), is_good, "{bias} {spread}: {judged:?}");
        };
        check(0.0, 1.0, true);
        check(0.002, 0.9, true);
        check(0.006, 1.0, false);
        check(-0.006, 1.0, false);
        check(0.0, 1.4, false);
        check(0.0, 0.5, false);
    }
}
