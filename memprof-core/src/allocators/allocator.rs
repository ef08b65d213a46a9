//! One allocator of the process, and what memprof asks of it. What it cannot do it refuses, with the
//! reason and the remedy.

use memprof_messages::{HeapUsage, ProfileKind, SampledObjects};

use crate::allocators::glibc::Glibc;
use crate::allocators::interval::SampleInterval;
use crate::allocators::jemalloc::Jemalloc;
use crate::allocators::mimalloc::Mimalloc;
use crate::allocators::printout::{PrintOptions, Printout};
use crate::allocators::tcmalloc::Tcmalloc;
use crate::allocators::unprofilable::{
    Unprofilable, no_growth_profile, no_pinned_profile, samples_moved,
};
use crate::dumps::heap::ProfileSummary;
use crate::dumps::scratch::Scratch;
use crate::error::Result;
use crate::identity::AllocatorIdentity;

/// An allocator of the process.
#[derive(Debug)]
pub(crate) enum Allocator {
    Jemalloc(Jemalloc),
    Tcmalloc(Tcmalloc),
    Mimalloc(Mimalloc),
    Glibc(Glibc),
}

impl Allocator {
    pub(crate) fn identity(&self) -> &AllocatorIdentity {
        match self {
            Self::Jemalloc(jemalloc) => &jemalloc.identity,
            Self::Tcmalloc(tcmalloc) => &tcmalloc.identity,
            Self::Mimalloc(mimalloc) => &mimalloc.identity,
            Self::Glibc(glibc) => &glibc.identity,
        }
    }

    /// Why it cannot be profiled in this process, where it cannot.
    pub(crate) fn unprofilable_reason(&self) -> Option<Unprofilable> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.why_not.clone(),
            Self::Tcmalloc(tcmalloc) => tcmalloc.why_not(),
            Self::Mimalloc(_) | Self::Glibc(_) => {
                Some(Unprofilable::no_profiler(Some(self.identity())))
            }
        }
    }

    /// Whether it can be profiled in this process.
    ///
    /// # Errors
    /// `Unsupported` when it never can, `Unavailable` when this process was started without it.
    pub(crate) fn require_profiling(&self) -> Result<()> {
        self.unprofilable_reason()
            .map_or(Ok(()), |why| Err(why.into()))
    }

    /// Whether it can take a profile of that kind.
    ///
    /// # Errors
    /// As [`require_profiling`](Self::require_profiling).
    pub(crate) fn require_profile(&self, kind: ProfileKind) -> Result<()> {
        match (kind, self) {
            (ProfileKind::Heap, _) | (ProfileKind::Growth, Self::Tcmalloc(_)) => {
                self.require_profiling()
            }
            (ProfileKind::Growth, _) => Err(no_growth_profile(self.identity())),
            (ProfileKind::Pinned, Self::Jemalloc(_)) => Err(samples_moved(self.identity())),
            (ProfileKind::Pinned, _) => Err(no_pinned_profile(self.identity())),
        }
    }

    /// Whether it takes samples now.
    pub(crate) fn is_active(&self) -> bool {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.is_active(),
            Self::Tcmalloc(tcmalloc) => tcmalloc.is_active(),
            Self::Mimalloc(_) | Self::Glibc(_) => false,
        }
    }

    /// Mean bytes between samples, where it can be profiled.
    pub(crate) fn sample_interval(&self) -> Option<u64> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.sample_interval(),
            Self::Tcmalloc(tcmalloc) => tcmalloc.sample_interval(),
            Self::Mimalloc(_) | Self::Glibc(_) => None,
        }
    }

    /// Starts sampling, at `interval` where one is given. Returns what the operator should know.
    ///
    /// # Errors
    /// As [`require_profiling`](Self::require_profiling); the allocator refused.
    pub(crate) fn activate(&self, interval: Option<SampleInterval>) -> Result<Vec<String>> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.activate(interval),
            Self::Tcmalloc(tcmalloc) => tcmalloc.activate(interval),
            Self::Mimalloc(_) | Self::Glibc(_) => {
                Err(Unprofilable::no_profiler(Some(self.identity())).into())
            }
        }
    }

    /// Stops sampling. Samples taken so far are kept. One without a profiler has nothing to stop.
    ///
    /// # Errors
    /// The allocator refused.
    pub(crate) fn deactivate(&self) -> Result<()> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.deactivate(),
            Self::Tcmalloc(tcmalloc) => tcmalloc.deactivate(),
            Self::Mimalloc(_) | Self::Glibc(_) => Ok(()),
        }
    }

    /// Drops all samples, and sets the interval where one is given.
    ///
    /// # Errors
    /// As [`require_profiling`](Self::require_profiling); the allocator refused.
    pub(crate) fn reset(&self, interval: Option<SampleInterval>) -> Result<()> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.reset(interval),
            Self::Tcmalloc(tcmalloc) => tcmalloc.reset(),
            Self::Mimalloc(_) | Self::Glibc(_) => {
                Err(Unprofilable::no_profiler(Some(self.identity())).into())
            }
        }
    }

    /// About the memory that a profile takes while it is written, where its figures tell.
    pub(crate) fn profile_bytes(&self, kind: ProfileKind) -> Option<u64> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.profile_bytes(),
            Self::Tcmalloc(tcmalloc) => tcmalloc.profile_bytes(kind),
            Self::Mimalloc(_) | Self::Glibc(_) => None,
        }
    }

    /// Writes a profile into `scratch` and checks it. Runs on the dumper's thread.
    ///
    /// # Errors
    /// The allocator refused, or what it wrote is damaged; the kernel refused.
    pub(crate) fn write_profile(
        &self,
        kind: ProfileKind,
        scratch: &Scratch,
    ) -> Result<ProfileSummary> {
        self.require_profile(kind)?;
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.write_profile(scratch),
            Self::Tcmalloc(tcmalloc) => tcmalloc.write_profile(kind, scratch),
            Self::Mimalloc(_) | Self::Glibc(_) => {
                Err(Unprofilable::no_profiler(Some(self.identity())).into())
            }
        }
    }

    /// What it says that it holds; none where it keeps no count.
    ///
    /// # Errors
    /// The allocator refused.
    pub(crate) fn totals(&self) -> Result<Option<HeapUsage>> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.totals(),
            Self::Tcmalloc(tcmalloc) => tcmalloc.totals().map(Some),
            Self::Mimalloc(mimalloc) => mimalloc.totals().map(Some),
            Self::Glibc(glibc) => Ok(glibc.totals()),
        }
    }

    /// The objects that it laid out on pages of their own because they were sampled, where it can
    /// tell. `totals` were just read.
    pub(crate) fn sampled(&self, totals: &HeapUsage) -> Option<SampledObjects> {
        match (self, totals) {
            (Self::Jemalloc(jemalloc), HeapUsage::Detailed(figures)) => jemalloc.sampled(figures),
            _ => None,
        }
    }

    /// What it prints of itself. Only jemalloc has options.
    ///
    /// # Errors
    /// The allocator refused.
    pub(crate) fn report(&self, options: Option<&PrintOptions>) -> Result<Printout> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.report(options),
            Self::Tcmalloc(tcmalloc) => tcmalloc.report(),
            Self::Mimalloc(mimalloc) => mimalloc.report(),
            Self::Glibc(glibc) => glibc.report(),
        }
    }

    /// Gives its free pages back to the kernel.
    ///
    /// # Errors
    /// The allocator refused.
    pub(crate) fn purge(&self) -> Result<()> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.purge(),
            Self::Tcmalloc(tcmalloc) => tcmalloc.purge(),
            Self::Mimalloc(mimalloc) => mimalloc.purge(),
            Self::Glibc(glibc) => glibc.purge(),
        }
    }

    /// Its symbols that memprof looked for in vain.
    pub(crate) fn missing(&self) -> &[&'static str] {
        match self {
            Self::Tcmalloc(tcmalloc) => tcmalloc.missing(),
            Self::Mimalloc(mimalloc) => &mimalloc.missing,
            Self::Jemalloc(_) | Self::Glibc(_) => &[],
        }
    }

    /// For what only jemalloc has: options, background threads.
    pub(crate) fn jemalloc(&self) -> Option<&Jemalloc> {
        match self {
            Self::Jemalloc(jemalloc) => Some(jemalloc),
            Self::Tcmalloc(_) | Self::Mimalloc(_) | Self::Glibc(_) => None,
        }
    }
}
