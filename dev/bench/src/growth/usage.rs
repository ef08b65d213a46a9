//! Resources that a command uses, measured by a process of its own, so that they are those of this command alone.

use std::fmt;
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};

/// Option of this program that measures the command behind it.
pub(crate) const MEASURE: &str = "--measure";

/// Resources that a command and its children used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CommandUsage {
    /// Time of the processor in user mode and in the kernel.
    pub(crate) seconds: f64,
    /// Peak resident memory in bytes.
    pub(crate) peak: u64,
    /// Calls of read(2) and its like.
    pub(crate) reads: u64,
    /// Bytes that these returned.
    pub(crate) read_bytes: u64,
}

impl CommandUsage {
    /// Parses a line of [`run_and_print_usage`]. Fails unless it begins with four numbers.
    pub(crate) fn parse(line: &str) -> Result<Self> {
        let mut numbers = line.split_whitespace();
        let mut next = || numbers.next().context("not four numbers");
        Ok(Self {
            seconds: next()?.parse()?,
            peak: next()?.parse()?,
            reads: next()?.parse()?,
            read_bytes: next()?.parse()?,
        })
    }
}

impl CommandUsage {
    /// Returns the lesser of each number: other load on the machine only adds to them.
    pub(crate) fn least(self, other: Self) -> Self {
        Self {
            seconds: self.seconds.min(other.seconds),
            peak: self.peak.min(other.peak),
            reads: self.reads.min(other.reads),
            read_bytes: self.read_bytes.min(other.read_bytes),
        }
    }
}

impl fmt::Display for CommandUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {} {}",
            self.seconds, self.peak, self.reads, self.read_bytes
        )
    }
}

/// Runs a command, discards its standard output, and prints the resources that it used as one line of four numbers.
/// This process must have had no other child.
///
/// # Errors
/// The command fails; what it wrote to stderr is in the error.
pub(crate) fn run_and_print_usage(command: &[String]) -> Result<()> {
    let (program, arguments) = command.split_first().context("--measure COMMAND…")?;
    let before = read_counts()?;
    let ended = Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .output()
        .with_context(|| program.clone())?;
    let notes = String::from_utf8_lossy(&ended.stderr);
    ensure!(
        ended.status.success(),
        "{command:?}: {}\n{notes}",
        ended.status
    );
    let counts = read_counts()?;
    let used = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let times = [used.user_time(), used.system_time()];
    let seconds = times.map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6);
    let usage = CommandUsage {
        seconds: seconds.iter().sum(),
        // The kernel reports KiB.
        peak: used.max_rss().cast_unsigned() * 1024,
        reads: counts.0 - before.0,
        read_bytes: counts.1 - before.1,
    };
    println!("{usage}");
    Ok(())
}

/// Reads and read bytes of this process and of its children that were waited for (`proc_pid_io(5)`).
fn read_counts() -> Result<(u64, u64)> {
    let io = fs::read_to_string("/proc/self/io").context("/proc/self/io")?;
    let field = |name: &str| -> Result<u64> {
        let value = io.lines().find_map(|line| line.strip_prefix(name));
        Ok(value.with_context(|| name.to_owned())?.trim().parse()?)
    };
    Ok((field("syscr:")?, field("rchar:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_usage_is_parsed() {
        let usage = CommandUsage {
            seconds: 0.25,
            peak: 4096,
            reads: 3,
            read_bytes: 5,
        };
        assert_eq!(CommandUsage::parse(&usage.to_string()).unwrap(), usage);
        assert!(CommandUsage::parse("0.25 4096 3").is_err());
    }
}
