//! One allocator of the process, and what memprof asks of it.

use std::fmt;

use crate::discover::FoundBy;
use crate::error::Result;
use crate::heap::Summary;
use crate::interval::SampleInterval;
use crate::jemalloc::Jemalloc;
use crate::printout::{PrintOptions, Printout};
use crate::scratch::Scratch;
use crate::stats::Figures;
use crate::status::Allocator;

/// What an allocator is known by. Prints as `jemalloc 5.3.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// `jemalloc`.
    pub kind: &'static str,
    /// In its own words.
    pub version: String,
    pub found_by: FoundBy,
    /// It serves this process's `malloc`.
    pub owns_malloc: bool,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.version)
    }
}

/// An allocator, driven. What one cannot do it refuses, with the reason and the remedy.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    fn identity(&self) -> &Identity;

    /// As `status` shows it.
    fn describe(&self) -> Allocator;

    /// Whether it can be profiled in this process.
    ///
    /// # Errors
    /// `Unsupported` when it never can, `Unavailable` when this process was started without it.
    fn require_profiling(&self) -> Result<()>;

    /// It samples now.
    fn is_active(&self) -> bool;

    /// Mean bytes between samples, where it can be profiled.
    fn sample_interval(&self) -> Option<u64>;

    /// Starts sampling, at `interval` where one is given. Returns what the operator should know.
    ///
    /// # Errors
    /// As [`require_profiling`](Self::require_profiling); the allocator refused.
    fn activate(&self, interval: Option<SampleInterval>) -> Result<Vec<String>>;

    /// Stops sampling. What was sampled stays.
    ///
    /// # Errors
    /// The allocator refused.
    fn deactivate(&self) -> Result<()>;

    /// Drops all samples, and sets the interval where one is given.
    ///
    /// # Errors
    /// As [`require_profiling`](Self::require_profiling); the allocator refused.
    fn reset(&self, interval: Option<SampleInterval>) -> Result<()>;

    /// Writes a profile into `scratch` and checks it. Runs on the dumper's thread.
    ///
    /// # Errors
    /// The allocator refused, or what it wrote is damaged; the kernel refused.
    fn write_profile(&self, scratch: &mut Scratch) -> Result<Summary>;

    /// Its totals; none where it keeps none.
    ///
    /// # Errors
    /// The allocator refused.
    fn figures(&self) -> Result<Option<Figures>>;

    /// What it prints of itself.
    ///
    /// # Errors
    /// The allocator refused.
    fn report(&self, options: Option<&PrintOptions>) -> Result<Printout>;

    /// Gives its free pages back to the kernel.
    ///
    /// # Errors
    /// The allocator refused.
    fn purge(&self) -> Result<()>;

    /// For what only jemalloc has: options, background threads.
    fn jemalloc(&self) -> Option<&Jemalloc> {
        None
    }
}
