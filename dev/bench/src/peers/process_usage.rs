//! Time and memory that a process uses.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};

use xtask::run::output;

use crate::limits::Measurements;

/// Returns the command that runs a role of [`super::roles`] in this program.
pub(super) fn role_command(role: &[&OsStr]) -> Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("as").args(role);
    Ok(command)
}

/// Resources that a process used until its exit.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessUsage {
    /// Elapsed time.
    pub(super) seconds: f64,
    /// Peak resident memory in bytes.
    pub(super) peak: f64,
}

impl ProcessUsage {
    /// Runs a command `runs` times and returns the usage of the fastest run. The environment and the working directory
    /// of the command are ignored, because another process of this program starts it.
    pub(super) fn measure_fastest_run(command: &Command, runs: usize) -> Result<Self> {
        let mut role = vec![OsStr::new("measure"), command.get_program()];
        role.extend(command.get_args());
        let runs = (0..runs).map(|_| Self::parse(&output(&mut role_command(&role)?)?));
        let runs = runs.collect::<Result<Vec<_>>>()?;
        let fastest = runs
            .into_iter()
            .min_by(|run, other| run.seconds.total_cmp(&other.seconds));
        fastest.context("no run")
    }

    /// Parses the seconds and the bytes that [`measure_command`] prints.
    fn parse(printed: &str) -> Result<Self> {
        let (seconds, peak) = printed.trim().split_once(' ').context("not two numbers")?;
        Ok(Self {
            seconds: seconds.parse()?,
            peak: peak.parse()?,
        })
    }

    /// Records as `figure` how many times as long another tool, `peer`, took as this process. Prints the ratio of their
    /// peaks beside it.
    pub(super) fn record_against(
        self,
        figure: &str,
        peer: Self,
        measurements: &mut Measurements,
    ) -> Result<()> {
        let peaks = self.peak / peer.peak;
        let more = format_args!("{self}; the peer {peer}; {peaks:.2} of its peak");
        measurements.record(figure, peer.seconds / self.seconds, more)
    }
}

impl fmt::Display for ProcessUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s, {:.1} MB", self.seconds, self.peak / 1e6)
    }
}

/// Runs a command, discards its output, and prints its seconds and its peak in bytes, which
/// [`ProcessUsage::measure_fastest_run`] reads.
pub(super) fn measure_command(command: &[&str]) -> Result<()> {
    let (program, arguments) = command.split_first().context("measure COMMAND…")?;
    let start = Instant::now();
    let status = Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .with_context(|| (*program).to_owned())?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(status.success(), "{program}: {status}");
    // The kernel reports KiB.
    let peak = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss() * 1024;
    println!("{seconds} {peak}");
    Ok(())
}
