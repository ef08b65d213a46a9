//! What a process takes.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};

use xtask::run::output;

use crate::limits::Measurements;

/// The command that has this program play a role of [`super::roles`].
pub(super) fn in_role(role: &[&OsStr]) -> Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("as").args(role);
    Ok(command)
}

/// Of a process, to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessUsage {
    pub(super) seconds: f64,
    /// Bytes in memory, at the most.
    pub(super) peak: f64,
}

impl ProcessUsage {
    /// The fastest of several runs of a command, of which only the program and its arguments count.
    pub(super) fn of(command: &Command, runs: usize) -> Result<Self> {
        let mut words = vec![OsStr::new("measure"), command.get_program()];
        words.extend(command.get_args());
        let runs = (0..runs).map(|_| Self::read(&output(&mut in_role(&words)?)?));
        let runs = runs.collect::<Result<Vec<_>>>()?;
        let fastest = runs
            .into_iter()
            .min_by(|run, other| run.seconds.total_cmp(&other.seconds));
        fastest.context("no run")
    }

    fn read(printed: &str) -> Result<Self> {
        let (seconds, peak) = printed.trim().split_once(' ').context("not two numbers")?;
        Ok(Self {
            seconds: seconds.parse()?,
            peak: peak.parse()?,
        })
    }

    /// How many times faster it is than a peer, which is the figure of that name, and how much smaller.
    pub(super) fn record_against(
        self,
        figure: &str,
        peer: Self,
        figures: &mut Measurements,
    ) -> Result<()> {
        let peaks = self.peak / peer.peak;
        let more = format_args!("{self}; the peer {peer}; {peaks:.2} of its peak");
        figures.record(figure, peer.seconds / self.seconds, more)
    }
}

impl fmt::Display for ProcessUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s, {:.1} MB", self.seconds, self.peak / 1e6)
    }
}

/// Runs a command without its output; prints its seconds and its peak, which [`ProcessUsage::of`] reads.
pub(super) fn measure(command: &[&str]) -> Result<()> {
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
    let peak = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss() * 1024;
    println!("{seconds} {peak}");
    Ok(())
}
