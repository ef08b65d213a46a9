//! One allocator of the process, with the operations that memprof needs. An operation that the allocator lacks fails
//! with a reason and a remedy.

use memprof_messages::{HeapUsage, ProfileKind, SampledObjects};

use crate::allocators::glibc::Glibc;
use crate::allocators::interval::SampleInterval;
use crate::allocators::jemalloc::Jemalloc;
use crate::allocators::mimalloc::Mimalloc;
use crate::allocators::printout::{PrintOptions, Printout};
use crate::allocators::tcmalloc::Tcmalloc;
use crate::allocators::unprofilable::{
    Unprofilable, no_growth_profile_error, no_pinned_profile_error, no_pinned_samples_error,
};
use crate::dumps::heap::ProfileSummary;
use crate::dumps::scratch::Scratch;
use crate::error::Result;
use crate::identity::AllocatorIdentity;

#[derive(Debug)]
pub(crate) enum Allocator {
    Jemalloc(Jemalloc),
    Tcmalloc(Tcmalloc),
    Mimalloc(Mimalloc),
    Glibc(Glibc),
}

impl Allocator {
    /// Kind, version and address of the allocator, and how it was found.
    pub(crate) fn identity(&self) -> &AllocatorIdentity {
        match self {
            Self::Jemalloc(jemalloc) => &jemalloc.identity,
            Self::Tcmalloc(tcmalloc) => &tcmalloc.identity,
            Self::Mimalloc(mimalloc) => &mimalloc.identity,
            Self::Glibc(glibc) => &glibc.identity,
        }
    }

    /// Reason why the allocator cannot be profiled in this process. `None` if it can.
    pub(crate) fn unprofilable_reason(&self) -> Option<Unprofilable> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.unprofilable.clone(),
            Self::Tcmalloc(tcmalloc) => tcmalloc.unprofilable_reason(),
            Self::Mimalloc(_) | Self::Glibc(_) => {
                Some(Unprofilable::no_profiler(Some(self.identity())))
            }
        }
    }

    /// Fails unless the allocator can be profiled in this process.
    ///
    /// # Errors
    /// `Unsupported`: this build of the allocator never can. `Unavailable`: the process was started without profiling.
    pub(crate) fn require_profiling(&self) -> Result<()> {
        self.unprofilable_reason()
            .map_or(Ok(()), |reason| Err(reason.into()))
    }

    /// Fails unless the allocator can write a profile of this kind. No allocator can write one of pinned slabs (nearly
    /// empty pages): only memprof's sampler can.
    ///
    /// # Errors
    /// `Unsupported`: the allocator lacks this kind, or this build of it has no profiler. `Unavailable`: the process
    /// was started without profiling.
    pub(crate) fn require_profile_kind(&self, kind: ProfileKind) -> Result<()> {
        match (kind, self) {
            (ProfileKind::Heap, _) | (ProfileKind::Growth, Self::Tcmalloc(_)) => {
                self.require_profiling()
            }
            (ProfileKind::Growth, _) => Err(no_growth_profile_error(self.identity())),
            (ProfileKind::Pinned, Self::Jemalloc(_)) => {
                Err(no_pinned_samples_error(self.identity()))
            }
            (ProfileKind::Pinned, _) => Err(no_pinned_profile_error(self.identity())),
        }
    }

    /// Whether the allocator's built-in sampler is on. Always false for mimalloc and glibc, which have none.
    pub(crate) fn is_active(&self) -> bool {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.is_active(),
            Self::Tcmalloc(tcmalloc) => tcmalloc.is_active(),
            Self::Mimalloc(_) | Self::Glibc(_) => false,
        }
    }

    /// Mean bytes between samples. `None` if the allocator cannot be profiled, and for a tcmalloc that never sampled.
    pub(crate) fn sample_interval(&self) -> Option<u64> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.sample_interval(),
            Self::Tcmalloc(tcmalloc) => tcmalloc.sample_interval(),
            Self::Mimalloc(_) | Self::Glibc(_) => None,
        }
    }

    /// Starts sampling at `interval`. `None` keeps the current interval, or uses the allocator's default if it has
    /// none. Returns warnings for the operator.
    ///
    /// # Errors
    /// `Unsupported` or `Unavailable`: the allocator cannot be profiled. `Allocator`: it refused.
    pub(crate) fn start_sampling(&self, interval: Option<SampleInterval>) -> Result<Vec<String>> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.start_sampling(interval),
            Self::Tcmalloc(tcmalloc) => tcmalloc.start_sampling(interval),
            Self::Mimalloc(_) | Self::Glibc(_) => {
                Err(Unprofilable::no_profiler(Some(self.identity())).into())
            }
        }
    }

    /// Stops sampling. Samples taken so far are kept. Does nothing if the allocator has no profiler.
    ///
    /// # Errors
    /// The allocator refused.
    pub(crate) fn stop_sampling(&self) -> Result<()> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.stop_sampling(),
            Self::Tcmalloc(tcmalloc) => tcmalloc.stop_sampling(),
            Self::Mimalloc(_) | Self::Glibc(_) => Ok(()),
        }
    }

    /// Discards all samples, and sets the interval if given. Always fails for tcmalloc, which cannot discard samples.
    ///
    /// # Errors
    /// `Unsupported` or `Unavailable`: the allocator cannot be profiled, or cannot discard samples. `Allocator`: it
    /// refused.
    pub(crate) fn reset_samples(&self, interval: Option<SampleInterval>) -> Result<()> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.reset_samples(interval),
            Self::Tcmalloc(tcmalloc) => tcmalloc.reset_samples(),
            Self::Mimalloc(_) | Self::Glibc(_) => {
                Err(Unprofilable::no_profiler(Some(self.identity())).into())
            }
        }
    }

    /// Estimated memory in bytes for writing a profile. `None` if the allocator's statistics allow no estimate, and for
    /// mimalloc and glibc.
    pub(crate) fn profile_memory_estimate(&self, kind: ProfileKind) -> Option<u64> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.profile_memory_estimate(),
            Self::Tcmalloc(tcmalloc) => tcmalloc.profile_memory_estimate(kind),
            Self::Mimalloc(_) | Self::Glibc(_) => None,
        }
    }

    /// Writes a profile to the temporary file `scratch`, and checks it. Call it on the dumper's thread only: jemalloc
    /// never samples the calling thread again.
    ///
    /// # Errors
    /// The allocator cannot write this kind of profile, the allocator or the kernel refused, or the written profile is
    /// damaged.
    pub(crate) fn write_profile(
        &self,
        kind: ProfileKind,
        scratch: &Scratch,
    ) -> Result<ProfileSummary> {
        self.require_profile_kind(kind)?;
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.write_profile(scratch),
            Self::Tcmalloc(tcmalloc) => tcmalloc.write_profile(kind, scratch),
            Self::Mimalloc(_) | Self::Glibc(_) => {
                Err(Unprofilable::no_profiler(Some(self.identity())).into())
            }
        }
    }

    /// Heap usage as the allocator reports it. `None` if it was built without statistics.
    ///
    /// # Errors
    /// The allocator refused, or lacks a function.
    pub(crate) fn heap_usage(&self) -> Result<Option<HeapUsage>> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.heap_usage(),
            Self::Tcmalloc(tcmalloc) => tcmalloc.heap_usage().map(Some),
            Self::Mimalloc(mimalloc) => mimalloc.heap_usage().map(Some),
            Self::Glibc(glibc) => Ok(glibc.heap_usage()),
        }
    }

    /// Estimates the sampled objects that jemalloc moved to separate pages, and their memory. `totals` must have been
    /// read just before. `None` for other allocators, and for a jemalloc that was started without profiling or lacks a
    /// statistic that the estimate needs.
    pub(crate) fn sampled_objects(&self, totals: &HeapUsage) -> Option<SampledObjects> {
        match (self, totals) {
            (Self::Jemalloc(jemalloc), HeapUsage::Detailed(totals)) => {
                jemalloc.sampled_objects(totals)
            }
            _ => None,
        }
    }

    /// The allocator's own statistics printout. `options` apply to jemalloc only; without them, jemalloc omits single
    /// arenas.
    ///
    /// # Errors
    /// The allocator refused, or lacks the function.
    pub(crate) fn printout(&self, options: Option<&PrintOptions>) -> Result<Printout> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.printout(options),
            Self::Tcmalloc(tcmalloc) => tcmalloc.printout(),
            Self::Mimalloc(mimalloc) => mimalloc.printout(),
            Self::Glibc(glibc) => glibc.printout(),
        }
    }

    /// Releases the allocator's free pages to the kernel.
    ///
    /// # Errors
    /// The allocator refused, or lacks the function.
    pub(crate) fn purge_free_pages(&self) -> Result<()> {
        match self {
            Self::Jemalloc(jemalloc) => jemalloc.purge_free_pages(),
            Self::Tcmalloc(tcmalloc) => tcmalloc.purge_free_pages(),
            Self::Mimalloc(mimalloc) => mimalloc.purge_free_pages(),
            Self::Glibc(glibc) => glibc.purge_free_pages(),
        }
    }

    /// Names of the functions that memprof did not find in the allocator's object. Always empty for jemalloc and glibc.
    pub(crate) fn missing_symbols(&self) -> &[&'static str] {
        match self {
            Self::Tcmalloc(tcmalloc) => tcmalloc.missing_symbols(),
            Self::Mimalloc(mimalloc) => &mimalloc.missing,
            Self::Jemalloc(_) | Self::Glibc(_) => &[],
        }
    }

    /// The allocator as a jemalloc, for operations that only jemalloc has. `None` for other allocators.
    pub(crate) fn as_jemalloc(&self) -> Option<&Jemalloc> {
        match self {
            Self::Jemalloc(jemalloc) => Some(jemalloc),
            Self::Tcmalloc(_) | Self::Mimalloc(_) | Self::Glibc(_) => None,
        }
    }
}
