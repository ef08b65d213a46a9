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

use std::iter;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};

use xtask::packages;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuiteLength {
    /// Seconds for most suites, with each fault a few times; CI runs this.
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

/// All suites; those that take longest come first.
const SUITES: &[Suite] = &[
    ("zoo", zoo::run),
    ("hostile", hostile::run),
    ("bombs", bombs::run),
    ("fleet", fleet::run),
    ("machines", fleet::run_machines),
    ("clients", clients::run),
    ("leaks", leaks::run),
    ("storm", message_storm::run),
    ("stall", slow_disk::run),
    ("memory", memory::run),
    ("disk", disk::run),
    ("seccomp", seccomp::run),
    ("inject", inject::run),
    ("kill", kill::run),
    ("hosts", hosts::run),
    ("paths", paths::run),
    ("resources", resources::run),
    ("tls", tls::run),
    ("space", address_space::run),
    ("privileges", privileges::run),
    ("exit", exit::run),
    ("closefrom", close_all_fds::run),
    ("fork", fork::run),
    ("attach", attach::run),
    ("interrupts", interrupts::run),
    ("sampler", sampler::run),
    ("accuracy", accuracy::run),
    ("churn", churn::run),
    ("gate", gate::run),
    ("servers", servers::run),
    ("unwind", unwind::run),
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

/// Suites that run at the same time. Most of them wait for other processes, and all must bear the load of the tests, beside
/// which CI runs them.
const LANES: usize = 2;

/// Builds the programs of torture, runs the suites, and fails if one of them failed. What `cargo xtask build` builds
/// must be there, and the library of the suite `unwind`.
fn run_suites(length: SuiteLength, suites: &[Suite]) -> Result<()> {
    packages::ensure_installed(packages::TEST)?;
    programs::build_all()?;
    let next = AtomicUsize::new(0);
    let lane = || {
        let rest = iter::from_fn(|| suites.get(next.fetch_add(1, Ordering::Relaxed)));
        let failed = rest.filter(|suite| !run_suite(length, suite));
        failed.map(|(name, _)| *name).collect::<Vec<_>>()
    };
    let failed: Vec<_> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        let failed = lanes.into_iter().map(ScopedJoinHandle::join);
        failed
            .flat_map(|failed| failed.expect("a suite's panic is caught"))
            .collect()
    });
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs a suite, prints its line with the time it took, and returns whether it passed. A suite that panics fails alone.
fn run_suite(length: SuiteLength, (name, run): &Suite) -> bool {
    let start = Instant::now();
    let result = catch_unwind(|| run(length)).unwrap_or_else(|_| Err(anyhow!("it panicked")));
    let seconds = start.elapsed().as_secs_f64();
    match &result {
        Ok(line) => println!("{name}: {line} ({seconds:.1} s)"),
        Err(error) => println!("{name}: FAILED: {error:#} ({seconds:.1} s)"),
    }
    result.is_ok()
}
