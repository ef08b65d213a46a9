//! Runs programs with the preloaded `unwind-probe`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use xtask::dist::dist_dir;

/// Walker of the samples, with its number in `unwind-probe`.
#[derive(Clone, Copy, Debug)]
pub enum WalkMode {
    /// jemalloc's.
    Allocator = 0,
    /// Both, on each sample, to compare the stacks.
    Compared = 3,
    /// Either one at random, to time both.
    Timed = 4,
}

/// Counts and times of the walks in one program.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Stacks that both walkers walked.
    pub compared: u64,
    /// Compared stacks in which both found the same frames.
    pub agreed: u64,
    /// Stacks that memprof's walker left to jemalloc's.
    pub fallbacks: u64,
    /// Stacks that memprof's walker ended early.
    pub cut: u64,
    /// Mean ticks of memprof's walk, in [`WalkMode::Timed`].
    pub memprof_ticks: f64,
    /// Mean ticks of jemalloc's walk, in [`WalkMode::Timed`].
    pub allocator_ticks: f64,
}

impl Report {
    /// Share of equal stacks as text: `100.0000 % of 1234 stacks`.
    pub fn agreement(&self) -> String {
        let percent = self.agreed as f64 * 100.0 / self.compared.max(1) as f64;
        format!("{percent:.4} % of {} stacks", self.compared)
    }
}

/// Preloads jemalloc and the probe into a command. `lg_sample` is the binary logarithm of the sample interval in bytes.
/// The probe appends its report to the file `report`.
pub fn preload(command: &mut Command, mode: WalkMode, lg_sample: u32, report: &Path) {
    let probe = dist_dir().join("torture/unwind_probe.so");
    command
        .env(
            "LD_PRELOAD",
            format!("libjemalloc.so.2:{}", probe.display()),
        )
        .env(
            "MALLOC_CONF",
            format!("prof:true,prof_active:true,lg_prof_sample:{lg_sample}"),
        )
        .env("UNWIND_PROBE", (mode as u32).to_string())
        .env("UNWIND_PROBE_REPORT", report);
}

/// Runs `command` with the probe until it exits, and returns the report of the process whose name is `program`: the
/// command, or one that it starts. `lg_sample` is the binary logarithm of the sample interval in bytes.
///
/// # Errors
/// The command fails, or the program wrote no report.
pub fn run(mut command: Command, program: &str, mode: WalkMode, lg_sample: u32) -> Result<Report> {
    let dir = tempfile::tempdir()?;
    let reports = dir.path().join("reports");
    preload(&mut command, mode, lg_sample, &reports);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("failed to start {command:?}"))?;
    check_exit(output.status, &output.stderr)?;
    read_report(&reports, program)
}

/// Fails with the standard error unless the exit status is success.
fn check_exit(status: ExitStatus, stderr: &[u8]) -> Result<()> {
    if !status.success() {
        bail!("{status}: {}", String::from_utf8_lossy(stderr).trim_end());
    }
    Ok(())
}

/// Reads the first report of `program` from a file with a JSON object in each line.
///
/// # Errors
/// The file is missing, has no report of the program, or is no list of reports.
pub fn read_report(reports: &PathBuf, program: &str) -> Result<Report> {
    let text = fs::read_to_string(reports).context("no program left a report")?;
    for line in text.lines() {
        let report: Value = serde_json::from_str(line)?;
        if report["program"] != program {
            continue;
        }
        let count = |name: &str| report[name].as_u64().with_context(|| name.to_owned());
        let ticks = |name: &str| report[name].as_f64().with_context(|| name.to_owned());
        return Ok(Report {
            compared: count("compared")?,
            agreed: count("agreed")?,
            fallbacks: count("fallbacks")?,
            cut: count("cut")?,
            memprof_ticks: ticks("memprof_ticks")?,
            allocator_ticks: ticks("allocator_ticks")?,
        });
    }
    bail!("{program} left no report: {text}")
}
