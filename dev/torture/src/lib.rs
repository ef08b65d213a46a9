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
mod held_resources;
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
    ("zoo", zoo::run_suite),
    ("hostile", hostile::run_suite),
    ("bombs", bombs::run_suite),
    ("fleet", fleet::run_suite),
    ("machines", fleet::run_machines),
    ("clients", clients::run_suite),
    ("leaks", leaks::run_suite),
    ("storm", message_storm::run_suite),
    ("stall", slow_disk::run_suite),
    ("memory", memory::run_suite),
    ("disk", disk::run_suite),
    ("seccomp", seccomp::run_suite),
    ("inject", inject::run_suite),
    ("kill", kill::run_suite),
    ("hosts", hosts::run_suite),
    ("paths", paths::run_suite),
    ("resources", resources::run_suite),
    ("tls", tls::run_suite),
    ("space", address_space::run_suite),
    ("privileges", privileges::run_suite),
    ("exit", exit::run_suite),
    ("closefrom", close_all_fds::run_suite),
    ("fork", fork::run_suite),
    ("attach", attach::run_suite),
    ("interrupts", interrupts::run_suite),
    ("sampler", sampler::run_suite),
    ("accuracy", accuracy::run_suite),
    ("churn", churn::run_suite),
    ("gate", gate::run_suite),
    ("servers", servers::run_suite),
    ("unwind", unwind::run_suite),
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

/// Suites that run at the same time. Most of them wait for other processes, and all must bear the load of the tests,
/// beside which CI runs them.
const LANES: usize = 2;

/// Installs missing Debian packages, builds the programs of torture, and runs the suites, [`LANES`] at a time. Fails
/// with the names of the suites that failed. The caller has already built memprof itself and the library that the suite
/// `unwind` preloads.
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

/// Runs a suite, prints its line with the time it took, and returns whether it passed. A panic counts as a failure of
/// this suite only.
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
