//! Runs a command under `witness.c`, which measures its time and memory from outside.

use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use xtask::dist::dist_dir;

/// Limits of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResourceLimit {
    pub(super) seconds: u64,
    /// Resident memory of each of its processes.
    pub(super) mib: u64,
}

/// Limits of commands that have no timeout to wait for.
pub(super) const USUAL_LIMIT: ResourceLimit = ResourceLimit {
    seconds: 30,
    mib: 256,
};

/// Measured time of a command, and the largest resident memory of one of its processes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ResourceUse {
    pub(super) time: Duration,
    pub(super) mib: u64,
}

impl ResourceUse {
    /// Larger of both times and of both memory sizes.
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            time: self.time.max(other.time),
            mib: self.mib.max(other.mib),
        }
    }
}

impl fmt::Display for ResourceUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s, {} MiB", self.time.as_secs_f64(), self.mib)
    }
}

/// Exit code of a Rust program that panics.
const PANIC_EXIT_CODE: i32 = 101;
/// Exit code that `witness.c` reports for a command that did not end in time.
const TIMEOUT_EXIT_CODE: i32 = 124;
/// `witness.c` adds the signal's number to this for a command that died of a signal.
const SIGNAL_EXIT_BASE: i32 = 128;

/// Runs a program of `target/dist/bin` within limits, and returns its use of time and memory. The program's exit code
/// may be that of a failure.
///
/// # Errors
/// The program exceeds the limits, panics or dies of a signal, leaves a process or a temporary file, or prints control
/// characters.
pub(super) fn run_within_limit(
    program: &str,
    args: &[&str],
    limit: ResourceLimit,
) -> Result<ResourceUse> {
    let dir = tempfile::tempdir()?;
    let (report, temporary) = (dir.path().join("report"), dir.path().join("temporary"));
    fs::create_dir(&temporary)?;
    let output_path = |name: &str| dir.path().join(name);
    let status = Command::new(dist_dir().join("torture/witness"))
        .arg(&report)
        .arg((limit.seconds * 1000).to_string())
        .arg(dist_dir().join("bin").join(program))
        .args(args)
        .env("TMPDIR", &temporary)
        .stdin(Stdio::null())
        .stdout(File::create(output_path("output"))?)
        .stderr(File::create(output_path("errors"))?)
        .status()?;
    ensure!(status.success(), "the witness: {status}");
    let text = fs::read_to_string(&report)?;
    // The exit code, the time, the largest memory, and 1 if a process was left.
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
    let mut number = || {
        numbers
            .next()
            .context("the witness said too little")?
            .map_err(anyhow::Error::from)
    };
    let (code, milliseconds, kib, remaining) = (number()? as i32, number()?, number()?, number()?);
    let errors = fs::read(output_path("errors"))?;
    let used = ResourceUse {
        time: Duration::from_millis(milliseconds),
        mib: kib >> 10,
    };
    let errors = String::from_utf8_lossy(&errors);
    match code {
        PANIC_EXIT_CODE => bail!("it panicked: {errors}"),
        TIMEOUT_EXIT_CODE => bail!(
            "it did not end within {} s ({used}): {errors}",
            limit.seconds
        ),
        SIGNAL_EXIT_BASE.. => bail!("it died of signal {}: {errors}", code - SIGNAL_EXIT_BASE),
        _ => {}
    }
    ensure!(used.mib <= limit.mib, "it took {used}: {errors}");
    ensure!(remaining == 0, "it left a process");
    for name in ["output", "errors"] {
        ensure!(
            !has_control_chars(&output_path(name))?,
            "it prints what a terminal obeys: {errors}"
        );
    }
    let files: Vec<_> = fs::read_dir(&temporary)?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    ensure!(files.is_empty(), "it left {files:?}");
    Ok(used)
}

/// Whether a file has control characters other than newline and tab.
fn has_control_chars(file: &Path) -> Result<bool> {
    let text = String::from_utf8_lossy(&fs::read(file)?).into_owned();
    Ok(text.chars().any(|c| c.is_control() && !"\n\t".contains(c)))
}
