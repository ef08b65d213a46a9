//! Rates at which `memprof test` detects growth of five per cent, and reports growth where there is none.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use xtask::run::run;

use super::{budget_file, gate_command};
use crate::limits::Measurements;

/// Number of runs with growth, and of runs without.
const RUNS: usize = 100;

/// Hundreds of records: those that the budget was written for, and five per cent more.
const RECORDS: [&str; 2] = ["40", "42"];

/// Records in how many of `RUNS` runs the gate catches 5 % more memory, and in how many it raises a false alarm,
/// against a budget that `--update` has just written.
pub(super) fn measure_detection(
    language: &str,
    command: &[&str],
    directory: &Path,
    measurements: &mut Measurements,
) -> Result<()> {
    // The budget of the timed runs has a tolerance of 50 %, which would hide the growth.
    fs::remove_file(budget_file(directory))?;
    let command_with = |options: &[&str], records: &str| {
        let command = [command, &[records][..]].concat();
        gate_command(directory, options, &command)
    };
    let [same, grown] = RECORDS;
    run(&mut command_with(&["--update"], same))?;
    let count_broken = |records: &str| -> Result<usize> {
        let mut broken = 0;
        for _ in 0..RUNS {
            broken += usize::from(breaks_budget(&mut command_with(&[], records))?);
        }
        Ok(broken)
    };
    let caught = format!("5 % more caught in {RUNS} runs, {language}");
    measurements.record(&caught, count_broken(grown)? as f64, "")?;
    let alarms = format!("false alarms in {RUNS} runs, {language}");
    measurements.record(&alarms, count_broken(same)? as f64, "")
}

/// Runs `memprof test` and returns whether it exits with 7, the code of a broken budget. Fails if it exits with neither
/// 7 nor 0.
fn breaks_budget(gate_command: &mut Command) -> Result<bool> {
    match gate_command.status()?.code() {
        Some(0) => Ok(false),
        Some(7) => Ok(true),
        other => bail!("{gate_command:?}: {other:?}"),
    }
}
