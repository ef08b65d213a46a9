//! One allocator of the process, and what memprof asks of it.

use std::fmt;

use crate::allocators::interval::SampleInterval;
use crate::allocators::jemalloc::{Jemalloc, Sampled, is_secure_execution};
use crate::allocators::printout::{PrintOptions, Printout};
use crate::allocators::stats::Totals;
use crate::dumps::heap::Summary;
use crate::dumps::scratch::Scratch;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::{Identity, ProfileKind};
use crate::sampler::WithSampler;

/// An allocator, driven. What one cannot do it refuses, with the reason and the remedy.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    fn identity(&self) -> &Identity;

    /// Whether it can be profiled in this process.
    ///
    /// # Errors
    /// `Unsupported` when it never can, `Unavailable` when this process was started without it.
    fn require_profiling(&self) -> Result<()> {
        let message = format!("{} has no profiler", self.identity());
        Err(Error::new(ErrorKind::Unsupported, message).remedy(use_jemalloc()))
    }

    /// Whether it can take a profile of that kind.
    ///
    /// # Errors
    /// As [`require_profiling`](Self::require_profiling).
    fn require_profile(&self, kind: ProfileKind) -> Result<()> {
        match kind {
            ProfileKind::Heap => self.require_profiling(),
            ProfileKind::Growth => {
                let message = format!("{} keeps no growth profile", self.identity());
                Err(Error::new(ErrorKind::Unsupported, message).remedy(
                    "only gperftools' tcmalloc does; compare two heap profiles instead: memprof \
                     report LATER --base EARLIER",
                ))
            }
        }
    }

    /// It samples now.
    fn is_active(&self) -> bool {
        false
    }

    /// Mean bytes between samples, where it can be profiled.
    fn sample_interval(&self) -> Option<u64> {
        None
    }

    /// Starts sampling, at `interval` where one is given. Returns what the operator should know.
    ///
    /// # Errors
    /// As [`require_profiling`](Self::require_profiling); the allocator refused.
    fn activate(&self, _interval: Option<SampleInterval>) -> Result<Vec<String>> {
        self.require_profiling().map(|()| Vec::new())
    }

    /// The same with memprof's sampler before it, where there is one.
    fn with_sampler(&self) -> Option<&WithSampler> {
        None
    }

    /// Stops sampling. What was sampled stays.
    ///
    /// # Errors
    /// The allocator refused.
    fn deactivate(&self) -> Result<()> {
        Ok(())
    }

    /// Drops all samples, and sets the interval where one is given.
    ///
    /// # Errors
    /// As [`require_profiling`](Self::require_profiling); the allocator refused.
    fn reset(&self, _interval: Option<SampleInterval>) -> Result<()> {
        self.require_profiling()
    }

    /// About the memory that a profile takes while it is written, where its figures tell.
    fn profile_bytes(&self, _kind: ProfileKind) -> Option<u64> {
        None
    }

    /// Writes a profile into `scratch` and checks it. Runs on the dumper's thread.
    ///
    /// # Errors
    /// The allocator refused, or what it wrote is damaged; the kernel refused.
    fn write_profile(&self, kind: ProfileKind, _scratch: &Scratch) -> Result<Summary> {
        self.require_profile(kind).map(|()| Summary::default())
    }

    /// What it says that it holds; none where it keeps no count.
    ///
    /// # Errors
    /// The allocator refused.
    fn totals(&self) -> Result<Option<Totals>>;

    /// The objects that it laid out on pages of their own because they were sampled, where it can
    /// tell. `totals` were just read.
    fn sampled(&self, _totals: &Totals) -> Option<Sampled> {
        None
    }

    /// What it prints of itself. Only jemalloc has options.
    ///
    /// # Errors
    /// The allocator refused.
    fn report(&self, options: Option<&PrintOptions>) -> Result<Printout>;

    /// Gives its free pages back to the kernel.
    ///
    /// # Errors
    /// The allocator refused.
    fn purge(&self) -> Result<()>;

    /// Its symbols that memprof looked for in vain.
    fn missing(&self) -> &[&'static str] {
        &[]
    }

    /// For what only jemalloc has: options, background threads.
    fn jemalloc(&self) -> Option<&Jemalloc> {
        None
    }
}

/// What helps a process that has no allocator with a profiler.
pub(crate) fn use_jemalloc() -> &'static str {
    if is_secure_execution() {
        return "this process runs in secure-execution mode (AT_SECURE), in which the loader \
                ignores LD_PRELOAD: start it without changing uid, or use /etc/ld.so.preload and \
                /etc/malloc.conf";
    }
    "start it with `memprof run`, or with LD_PRELOAD=libjemalloc.so.2 and \
     MALLOC_CONF=prof:true,prof_active:false; if jemalloc is linked in, do not strip the program, \
     or export mallctl"
}
