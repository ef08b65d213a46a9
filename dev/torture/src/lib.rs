//! `cargo xtask torture`: runs real hosts under faults, load and attacks. Each suite prints one line with its figures,
//! and fails if the host or memprof misbehaves.

mod accuracy;
mod address_space;
mod attach;
mod bombs;
mod churn;
mod clients;
mod close_all_fds;
mod disk;
mod dump_dir;
mod exit;
mod fleet;
mod fork;
mod gate;
mod host;
mod host_dir;
mod hostile;
mod hosts;
mod inject;
mod interrupts;
mod kill;
mod leaks;
pub mod many_stacks;
mod memory;
mod memory_cgroup;
mod message_storm;
mod paths;
mod preloaded_program;
mod privileges;
pub mod probe;
pub mod programs;
mod resources;
mod sampler;
mod seccomp;
mod servers;
mod slots;
mod slow_disk;
mod strace;
mod tls;
mod unwind;
mod zoo;

use std::panic::catch_unwind;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};

use xtask::packages;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuiteLength {
    /// Seconds; CI runs this.
    Short,
    /// Minutes; the published figures come from this.
    Long,
}

impl SuiteLength {
    /// Returns `short` for a short run, and `long` for a long one.
    pub(crate) fn pick<T>(self, short: T, long: T) -> T {
        match self {
            Self::Short => short,
            Self::Long => long,
        }
    }
}

/// Name of a suite, and the function that runs it and returns its line.
type Suite = (&'static str, fn(SuiteLength) -> Result<String>);

const SUITES: &[Suite] = &[
    ("storm", message_storm::run),
    ("stall", slow_disk::run),
    ("memory", memory::run),
    ("disk", disk::run),
    ("seccomp", seccomp::run),
    ("inject", inject::run),
    ("kill", kill::run),
    ("hostile", hostile::run),
    ("hosts", hosts::run),
    ("paths", paths::run),
    ("resources", resources::run),
    ("tls", tls::run),
    ("space", address_space::run),
    ("privileges", privileges::run),
    ("exit", exit::run),
    ("clients", clients::run),
    ("bombs", bombs::run),
    ("closefrom", close_all_fds::run),
    ("fork", fork::run),
    ("attach", attach::run),
    ("leaks", leaks::run),
    ("interrupts", interrupts::run),
    ("sampler", sampler::run),
    ("accuracy", accuracy::run),
    ("churn", churn::run),
    ("gate", gate::run),
    ("fleet", fleet::run),
    ("machines", fleet::run_machines),
    ("servers", servers::run),
    ("unwind", unwind::run),
    ("zoo", zoo::run),
];

/// Runs all suites or one, by the arguments `[SUITE] [--short]`.
///
/// # Errors
/// The arguments are invalid, a program cannot be built, or a suite fails.
pub fn run(args: &[&str]) -> Result<()> {
    let (length, names) = match args {
        [names @ .., "--short"] => (SuiteLength::Short, names),
        names => (SuiteLength::Long, names),
    };
    match names {
        [] => run_suites(length, SUITES),
        [name] => {
            let suite = SUITES.iter().find(|(known, _)| known == name);
            let known: Vec<_> = SUITES.iter().map(|(name, _)| *name).collect();
            let suite =
                suite.with_context(|| format!("no suite is called {name}; there are {known:?}"))?;
            run_suites(length, std::slice::from_ref(suite))
        }
        _ => bail!("usage: cargo xtask torture [SUITE] [--short]"),
    }
}

/// Suite that takes as long as all others together: the long form runs it beside them.
const LONGEST_SUITE: &str = "zoo";

/// Builds the programs of torture, runs the suites, and fails if one of them failed. What `cargo xtask build` builds
/// must be there.
fn run_suites(length: SuiteLength, suites: &[Suite]) -> Result<()> {
    packages::ensure_installed(packages::TEST)?;
    programs::build_all()?;
    let is_beside = |(name, _): &Suite| length == SuiteLength::Long && *name == LONGEST_SUITE;
    let (beside, in_turn): (Vec<Suite>, Vec<Suite>) = suites.iter().copied().partition(is_beside);
    let failed = thread::scope(|scope| {
        let beside = scope.spawn(|| run_in_turn(length, &beside));
        let mut failed = run_in_turn(length, &in_turn);
        failed.extend(beside.join().expect("a suite's panic is caught"));
        failed
    });
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs suites one after another, prints the line of each with the time it took, and returns the names of those that
/// failed. A suite that panics fails alone.
fn run_in_turn(length: SuiteLength, suites: &[Suite]) -> Vec<&'static str> {
    let mut failed = Vec::new();
    for (name, run) in suites {
        let start = Instant::now();
        let result = catch_unwind(|| run(length)).unwrap_or_else(|_| Err(anyhow!("it panicked")));
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(line) => println!("{name}: {line} ({seconds:.1} s)"),
            Err(error) => {
                println!("{name}: FAILED: {error:#} ({seconds:.1} s)");
                failed.push(*name);
            }
        }
    }
    failed
}
