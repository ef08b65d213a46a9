//! A program that allocates from four million stacks, many times what memprof's sampler has room for: it stays right
//! about what lives, and its memory stays bounded.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::SuiteLength;
use xtask::dist::dist;
use xtask::run::{output, root};

/// RSS that may come: the sampler's tables take 64 MiB of records and up to 34 MB of live samples; the rest is the
/// program's own.
const MAX_GROWTH: f64 = (128 << 20) as f64;

pub(super) fn run(form: SuiteLength) -> Result<String> {
    let seconds = form.pick(10, 600);
    let place = tempfile::tempdir()?;
    let config = place.path().join("churn.toml");
    let text = format!(
        "[control]\nsocket = \"off\"\n[[plugin]]\npath = {:?}\n[plugin.config]\ndump_dir = {:?}\n",
        dist().join("plugins/memory_profile.so"),
        place.path().join("dumps"),
    );
    fs::write(&config, text)?;
    let mut program = Command::new(dist().join("torture/churn"));
    program.arg(&config).arg(seconds.to_string());
    program.current_dir(root());
    let printed = output(&mut program).context("the program failed")?;
    // CI runs the short form often.
    let told = judge(form.pick(4.5, 3.0), &printed)?;
    Ok(format!("{seconds} s, {told}"))
}

/// Checks the line of figures that churn.c prints, and returns them as a sentence. `max_deviations` is how many standard
/// deviations the estimate may be off.
fn judge(max_deviations: f64, line: &str) -> Result<String> {
    let numbers: Vec<f64> = line
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .with_context(|| line.to_owned())?;
    let [estimate, truth, deviation, samples, lost, growth] = numbers[..] else {
        anyhow::bail!("{line}");
    };
    let deviations = (estimate - truth) / deviation;
    let told = format!(
        "{samples} samples, {lost} lost: {estimate} bytes for {truth} that live ({deviations:+.1} standard deviations), \
         RSS grew by {:.0} MiB",
        growth / f64::from(1 << 20)
    );
    ensure!(deviations.abs() < max_deviations, "{told}");
    ensure!(lost == 0.0 && growth < MAX_GROWTH, "{told}");
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn churn_off_by_three_deviations_lost_or_large_is_told() {
        let check = |line: &str, is_good| {
            let judged = judge(3.0, line);
            assert_eq!(judged.is_ok(), is_good, "{line}: {judged:?}");
        };
        check("19657176 19138203 276236 378376 0 69746688\n", true);
        check("18138203 19138203 276236 378376 0 69746688\n", false);
        check("19657176 19138203 276236 378376 1 69746688\n", false);
        check("19657176 19138203 276236 378376 0 169746688\n", false);
        check("19657176 19138203 276236 378376 0\n", false);
        check("", false);
    }
}
