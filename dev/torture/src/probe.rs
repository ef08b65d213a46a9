//! A program with the probe in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use xtask::dist::dist;

/// Who walks; the numbers of `unwind-probe`.
#[derive(Clone, Copy, Debug)]
pub enum Mode {
    /// jemalloc's own walk.
    Theirs = 0,
    /// Both, stack by stack.
    Compared = 3,
    /// Both, for their time.
    Timed = 4,
}

/// What the probe saw in one program.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Stacks that both walked.
    pub compared: u64,
    /// Those in which they found the same.
    pub agreed: u64,
    /// Those that ours left to jemalloc's.
    pub fallbacks: u64,
    /// Those that ours ended early.
    pub cut: u64,
    /// Mean ticks of our walk, in [`Mode::Timed`].
    pub memprof_ticks: f64,
    /// Mean ticks of jemalloc's.
    pub allocator_ticks: f64,
}

impl Report {
    /// `100.0000 % of 1234 stacks`.
    pub fn agreement(&self) -> String {
        let percent = self.agreed as f64 * 100.0 / self.compared.max(1) as f64;
        format!("{percent:.4} % of {} stacks", self.compared)
    }
}

/// Preloads jemalloc and the probe into a command.
pub fn preload(command: &mut Command, mode: Mode, lg_sample: u32, report: &Path) {
    let probe = dist().join("torture/unwind_probe.so");
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

/// Runs `command` to its end with the probe in it, and returns what was seen in `program`, which
/// is the command or one of those that it starts.
pub fn run(mut command: Command, program: &str, mode: Mode, lg_sample: u32) -> Result<Report> {
    let place = tempfile::tempdir()?;
    let reports = place.path().join("reports");
    preload(&mut command, mode, lg_sample, &reports);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("failed to start {command:?}"))?;
    check(output.status, &output.stderr)?;
    read(&reports, program)
}

fn check(status: ExitStatus, stderr: &[u8]) -> Result<()> {
    if !status.success() {
        bail!("{status}: {}", String::from_utf8_lossy(stderr).trim_end());
    }
    Ok(())
}

/// The report of `program` among those in a file.
pub fn read(reports: &PathBuf, program: &str) -> Result<Report> {
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
