//! How often `memprof test` catches a growth of five per cent, and how often it reports one that is none.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use xtask::run::run;

use super::{budget, gate};
use crate::limits::Measurements;

/// So many runs each.
const RUNS: usize = 100;

/// Hundreds of records that the budget is written for, and five per cent more.
const RECORDS: [&str; 2] = ["40", "42"];

/// The budget is one that `--update` writes by itself.
pub(super) fn measure(
    language: &str,
    command: &[&str],
    place: &Path,
    figures: &mut Measurements,
) -> Result<()> {
    fs::remove_file(budget(place))?;
    let with = |options: &[&str], records: &str| {
        let command = [command, &[records][..]].concat();
        gate(place, options, &command)
    };
    let [same, grown] = RECORDS;
    run(&mut with(&["--update"], same))?;
    let broken = |records: &str| -> Result<usize> {
        let mut broken = 0;
        for _ in 0..RUNS {
            broken += usize::from(is_broken(&mut with(&[], records))?);
        }
        Ok(broken)
    };
    let caught = format!("5 % more caught in {RUNS} runs, {language}");
    figures.record(&caught, broken(grown)? as f64, "")?;
    let alarms = format!("false alarms in {RUNS} runs, {language}");
    figures.record(&alarms, broken(same)? as f64, "")
}

fn is_broken(gate: &mut Command) -> Result<bool> {
    match gate.status()?.code() {
        Some(0) => Ok(false),
        Some(7) => Ok(true),
        other => bail!("{gate:?}: {other:?}"),
    }
}
