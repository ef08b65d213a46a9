//! A command that is watched from outside, by witness.c.

use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use xtask::dist::dist;

/// What a command may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) seconds: u64,
    /// Of each of its processes, resident.
    pub(super) mib: u64,
}

pub(super) const USUAL: Bound = Bound {
    seconds: 30,
    mib: 256,
};

/// What it took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ResourceUse {
    pub(super) time: Duration,
    pub(super) mib: u64,
}

impl ResourceUse {
    pub(super) fn worst(self, other: Self) -> Self {
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

/// The exit code of a Rust program that panics.
const PANIC: i32 = 101;
/// That of witness.c for a command that did not end in time.
const TIMED_OUT: i32 = 124;
const SIGNAL: i32 = 128;

/// Runs a program of `target/dist/bin`, which must end by itself within the bound, with an answer or an error, leave no
/// process and no temporary file, and print nothing that a terminal would obey.
pub(super) fn run(program: &str, args: &[&str], bound: Bound) -> Result<ResourceUse> {
    let dir = tempfile::tempdir()?;
    let (told, temporary) = (dir.path().join("told"), dir.path().join("temporary"));
    fs::create_dir(&temporary)?;
    let said = |name: &str| dir.path().join(name);
    let status = Command::new(dist().join("torture/witness"))
        .arg(&told)
        .arg((bound.seconds * 1000).to_string())
        .arg(dist().join("bin").join(program))
        .args(args)
        .env("TMPDIR", &temporary)
        .stdin(Stdio::null())
        .stdout(File::create(said("output"))?)
        .stderr(File::create(said("errors"))?)
        .status()?;
    ensure!(status.success(), "the witness: {status}");
    let text = fs::read_to_string(&told)?;
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
    let mut number = || {
        numbers
            .next()
            .context("the witness said too little")?
            .map_err(anyhow::Error::from)
    };
    let (code, milliseconds, kib, left) = (number()? as i32, number()?, number()?, number()?);
    let errors = fs::read(said("errors"))?;
    let taken = ResourceUse {
        time: Duration::from_millis(milliseconds),
        mib: kib >> 10,
    };
    let told = String::from_utf8_lossy(&errors);
    match code {
        PANIC => bail!("it panicked: {told}"),
        TIMED_OUT => bail!(
            "it did not end within {} s ({taken}): {told}",
            bound.seconds
        ),
        SIGNAL.. => bail!("it died of signal {}: {told}", code - SIGNAL),
        _ => {}
    }
    ensure!(taken.mib <= bound.mib, "it took {taken}: {told}");
    ensure!(left == 0, "it left a process");
    for name in ["output", "errors"] {
        ensure!(
            !has_controls(&said(name))?,
            "it prints what a terminal obeys: {told}"
        );
    }
    let left: Vec<_> = fs::read_dir(&temporary)?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    ensure!(left.is_empty(), "it left {left:?}");
    Ok(taken)
}

fn has_controls(file: &Path) -> Result<bool> {
    let text = String::from_utf8_lossy(&fs::read(file)?).into_owned();
    Ok(text
        .chars()
        .any(|each| each.is_control() && !"\n\t".contains(each)))
}
