//! Measurement of a case at its three sizes, and what of it breaks a limit.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench::script::{Script, ScriptEnd};
use xtask::run::{project_root, run};

use crate::case::GrowthCase;
use crate::exponent::{count_exponent, time_exponent};
use crate::growth_directory;
use crate::usage::{CommandUsage, MEASURE};

/// Limit of a script.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// Runs of a command at each size, of which the one with the least time and the one with the fewest reads count: other
/// processes only add.
const RUNS: usize = 3;

/// A case, measured.
#[derive(Debug)]
pub(crate) struct Measurement<'c> {
    case: &'c GrowthCase,
    sizes: [u64; 3],
    usages: [CommandUsage; 3],
    /// Peak memory at the largest size, in bytes of the input.
    memory_ratio: Option<f64>,
    /// The peer's seconds at the largest size. `None` in the short form, which measures no time.
    peer_seconds: Option<f64>,
    is_short: bool,
}

/// Measures a case at its three sizes, each in a new directory; if `is_short`, at smaller sizes. Memory and the peer
/// are measured only at the largest size, and not if `is_short`.
pub(crate) fn measure_case(case: &GrowthCase, is_short: bool) -> Result<Measurement<'_>> {
    let sizes = case.sizes(is_short);
    let mut usages = [CommandUsage::default(); 3];
    let (mut memory_ratio, mut peer_seconds) = (None, None);
    for (size, usage) in sizes.iter().zip(&mut usages) {
        let directory = tempfile::tempdir_in(project_root().join("target"))?;
        let directory = directory.path();
        build_targets(directory)?;
        let setup = run_script(&case.setup, directory, *size, "")?;
        *usage = measure_command(case, directory, *size)?;
        if *size != sizes[2] || is_short {
            continue;
        }
        if let Some(memory) = &case.memory {
            let input = directory.join(&memory.file);
            let bytes = fs::metadata(&input).with_context(|| input.display().to_string())?;
            memory_ratio = Some(usage.peak as f64 / bytes.len() as f64);
        }
        if let Some(peer) = &case.peer {
            let (_peer, end) = run_script(&peer.command, directory, *size, "")?;
            let last = end.text.lines().last().unwrap_or_default();
            let seconds = last.split_whitespace().next().context("no line")?;
            peer_seconds = Some(seconds.parse().with_context(|| end.text.clone())?);
        }
        drop(setup);
    }
    Ok(Measurement {
        case,
        sizes,
        usages,
        memory_ratio,
        peer_seconds,
        is_short,
    })
}

/// Compiles the program that cases inspect, as `target` and as `target-lsan` in `directory`. The second one searches
/// itself for leaks by `LeakSanitizer`, and ends.
fn build_targets(directory: &Path) -> Result<()> {
    let source = growth_directory().join("target.c");
    for (program, flags) in [
        ("target", [].as_slice()),
        ("target-lsan", &["-DWITH_LEAK_SANITIZER", "-fsanitize=leak"]),
    ] {
        let mut compiler = Command::new("gcc");
        compiler
            .args(["-O1", "-pthread", "-o"])
            .arg(directory.join(program));
        run(compiler.args(flags).arg(&source))?;
    }
    Ok(())
}

/// Runs the case's command [`RUNS`] times, each followed by the script that undoes it. Returns the least of each of the
/// measured numbers.
fn measure_command(case: &GrowthCase, directory: &Path, size: u64) -> Result<CommandUsage> {
    let measure = format!("\"$GROWTH\" {MEASURE} sh -c \"$MEASURED\"");
    let mut least: Option<CommandUsage> = None;
    for _ in 0..RUNS {
        let (_script, end) = run_script(&measure, directory, size, &case.command)?;
        let usage = CommandUsage::parse(end.text.lines().last().unwrap_or_default())
            .with_context(|| end.text.clone())?;
        least = Some(least.map_or(usage, |other| usage.least(other)));
        run_script(&case.undo, directory, size, "")?;
    }
    least.context("no run")
}

/// Runs a script to its end in `directory`, with `size` as `$N`, this program as `$GROWTH`, and `measured` as
/// `$MEASURED`. Returns the script, whose drop kills the processes that it left running, and its output. Fails if the
/// script does.
fn run_script(
    script: &str,
    directory: &Path,
    size: u64,
    measured: &str,
) -> Result<(Script, ScriptEnd)> {
    let program = std::env::current_exe()?;
    let size = size.to_string();
    let variables = [
        ("N", OsStr::new(&size)),
        ("GROWTH", program.as_os_str()),
        ("MEASURED", OsStr::new(measured)),
    ];
    let started = Script::start("-ec", script, directory, TIMEOUT, &variables)?;
    let end = started.wait_for_end()?;
    ensure!(
        end.status == Some(0),
        "{script}: {:?}\n{}",
        end.status,
        end.text
    );
    Ok((started, end))
}

impl Measurement<'_> {
    /// Returns the exponent of each measured quantity, with its name. Leaves out the time in the short form, where
    /// times vary too much.
    fn exponents(&self) -> Vec<(&'static str, f64)> {
        let counts = |count: fn(&CommandUsage) -> u64| {
            count_exponent(self.usages.map(|usage| count(&usage)))
        };
        let mut all = vec![
            ("reads", counts(|usage| usage.reads)),
            ("bytes read", counts(|usage| usage.read_bytes)),
        ];
        if !self.is_short {
            let seconds = self.usages.map(|usage| usage.seconds);
            all.insert(0, ("seconds of the processor", time_exponent(seconds)));
        }
        all
    }

    /// Lines about the limits that are broken; empty if all hold.
    pub(crate) fn broken_limits(&self) -> Vec<String> {
        let case = self.case;
        let mut broken = Vec::new();
        for (what, exponent) in self.exponents() {
            if exponent > case.exponent {
                let limit = case.exponent;
                broken.push(format!(
                    "{}: {what} grow by the exponent {exponent:.2}, at most {limit}",
                    case.name
                ));
            }
        }
        if let (Some(memory), Some(ratio)) = (&case.memory, self.memory_ratio)
            && ratio > memory.ratio
        {
            let limit = memory.ratio;
            broken.push(format!(
                "{}: memory is {ratio:.2} of {}, at most {limit}",
                case.name, memory.file
            ));
        }
        if let (Some(peer), Some(ratio)) = (&case.peer, self.time_relative_to_peer())
            && ratio > peer.ratio
        {
            let limit = peer.ratio;
            broken.push(format!(
                "{}: {ratio:.2} of the time of {}, at most {limit}",
                case.name, peer.name
            ));
        }
        broken
    }

    /// Seconds of memprof for each second of the peer, at the largest size. `None` if no peer was measured.
    fn time_relative_to_peer(&self) -> Option<f64> {
        Some(self.usages[2].seconds / self.peer_seconds?)
    }
}

impl fmt::Display for Measurement<'_> {
    /// Writes the costs at each size, the exponents and, if they were measured, the ratios of memory and to the peer.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.case.name)?;
        for (size, usage) in self.sizes.iter().zip(&self.usages) {
            let (seconds, reads) = (usage.seconds, usage.reads);
            let (read, peak) = (usage.read_bytes as f64 / 1e6, usage.peak as f64 / 1e6);
            write!(
                f,
                "\n  {size} {}: {seconds:.2} s, {reads} reads of {read:.2} MB, {peak:.0} MB of memory",
                self.case.per
            )?;
        }
        for (number, (what, exponent)) in self.exponents().into_iter().enumerate() {
            let start = if number == 0 { "\n  exponents:" } else { "," };
            write!(f, "{start} {what} {exponent:.2}")?;
        }
        if let (Some(memory), Some(ratio)) = (&self.case.memory, self.memory_ratio) {
            write!(f, "\n  memory / {}: {ratio:.2}", memory.file)?;
        }
        if let (Some(peer), Some(seconds), Some(ratio)) = (
            &self.case.peer,
            self.peer_seconds,
            self.time_relative_to_peer(),
        ) {
            write!(
                f,
                "\n  {}: {seconds:.2} s; memprof takes {ratio:.2} of it",
                peer.name
            )?;
        }
        Ok(())
    }
}
