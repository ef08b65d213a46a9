//! `cargo xtask torture`: real hosts under every fault that we know how to make. Each suite prints
//! one line with what it did, and fails when something does not hold that must.

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

use std::time::Instant;

use anyhow::{Context, Result, bail};

use xtask::dist::{self, Profile};
use xtask::packages;

/// How long to torture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuiteLength {
    /// Seconds; what CI runs.
    Short,
    /// Minutes; what gives the figures of the table.
    Long,
}

impl SuiteLength {
    /// One of two values.
    pub(crate) fn pick<T>(self, short: T, long: T) -> T {
        match self {
            Self::Short => short,
            Self::Long => long,
        }
    }
}

/// A suite: its name, and what returns its line.
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
    ("servers", servers::run),
    ("unwind", unwind::run),
    ("zoo", zoo::run),
];

/// `cargo xtask torture [SUITE] [--short]`.
pub fn command(args: &[&str]) -> Result<()> {
    let (form, names) = match args {
        [names @ .., "--short"] => (SuiteLength::Short, names),
        names => (SuiteLength::Long, names),
    };
    match names {
        [] => torture(form, SUITES),
        [name] => {
            let suite = SUITES.iter().find(|(known, _)| known == name);
            let known: Vec<_> = SUITES.iter().map(|(name, _)| *name).collect();
            let suite =
                suite.with_context(|| format!("no suite is called {name}; there are {known:?}"))?;
            torture(form, std::slice::from_ref(suite))
        }
        _ => bail!("usage: cargo xtask torture [SUITE] [--short]"),
    }
}

fn torture(form: SuiteLength, suites: &[Suite]) -> Result<()> {
    packages::require(packages::TEST)?;
    dist::build_all(Profile::Dev)?;
    programs::build()?;
    let mut failed = Vec::new();
    for (name, run) in suites {
        let begun = Instant::now();
        match run(form) {
            Ok(line) => println!("{name}: {line} ({:.1} s)", begun.elapsed().as_secs_f64()),
            Err(error) => {
                println!("{name}: FAILED: {error:#}");
                failed.push(*name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}
