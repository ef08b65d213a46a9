//! One allocator as the messages act on it: by its own profiler, or by memprof's sampler before it.

use memprof_messages::{ProfileKind, SamplerStatus};

use super::SamplerSelection;
use super::ours::{OwnSampler, SelectedSampler};
use crate::allocators::allocator::Allocator;
use crate::allocators::interval::SampleInterval;
use crate::allocators::unprofilable::Unprofilable;
use crate::dumps::heap::ProfileSummary;
use crate::dumps::scratch::Scratch;
use crate::error::Result;
use crate::identity::AllocatorIdentity;

/// An allocator, and who samples for it.
#[derive(Debug)]
pub(crate) struct Backend {
    /// What the sampler does not change: figures, purging.
    pub allocator: Allocator,
    /// Before the one that serves `malloc`, and in the hooks of a jemalloc.
    ours: Option<OwnSampler>,
    /// What the config asks for.
    interval: Option<SampleInterval>,
}

impl Backend {
    /// It samples at `interval` where nothing else is asked for, and the allocator has none.
    pub(crate) fn new(allocator: Allocator, interval: Option<SampleInterval>) -> Self {
        Self {
            ours: OwnSampler::for_allocator(&allocator, interval),
            allocator,
            interval,
        }
    }

    pub(crate) fn identity(&self) -> &AllocatorIdentity {
        self.allocator.identity()
    }

    /// It is the one that memprof's sampler can be put before.
    pub(crate) fn supports_own_sampler(&self) -> bool {
        self.ours.is_some()
    }

    /// Memprof's sampler would have to go through jemalloc's hooks.
    pub(crate) fn uses_jemalloc_hooks(&self) -> bool {
        self.ours
            .as_ref()
            .is_some_and(OwnSampler::uses_jemalloc_hooks)
    }

    /// Memprof's sampler could have another way to the allocator than it found.
    pub(crate) fn has_new_interception(&self) -> bool {
        let ours = self.ours.as_ref();
        ours.is_some_and(|ours| ours.has_new_interception(&self.allocator))
    }

    /// Memprof's sampler, where it samples or would.
    fn own_sampler(&self) -> Option<SelectedSampler<'_>> {
        self.ours.as_ref()?.selected()
    }

    /// Settles whether memprof's sampler samples from the next activation on. Without effect where
    /// there is none.
    ///
    /// # Errors
    /// Why it cannot serve this process; the allocator refused to be switched off.
    pub(crate) fn select(&self, samples: SamplerSelection) -> Result<()> {
        match &self.ours {
            Some(ours) => ours.select(samples, &self.allocator),
            None => Ok(()),
        }
    }

    /// Has memprof's sampler forget everything and leave.
    ///
    /// # Errors
    /// A thread stays inside of it; the loader does not let the slots be given back.
    pub(crate) fn release(&self) -> Result<()> {
        match &self.ours {
            Some(ours) => ours.release(),
            None => Ok(()),
        }
    }

    /// What memprof's sampler did, where it samples or would.
    pub(crate) fn sampler_status(&self) -> Option<SamplerStatus> {
        self.own_sampler().map(SelectedSampler::status)
    }

    /// Why memprof samples in the allocator's place, where it does.
    pub(crate) fn fallback_reason(&self) -> Option<Unprofilable> {
        self.own_sampler()?;
        self.allocator.unprofilable_reason()
    }

    /// Why it cannot be profiled in this process, where it cannot.
    pub(crate) fn unprofilable_reason(&self) -> Option<Unprofilable> {
        if self.own_sampler().is_some() {
            return None;
        }
        let why = self.allocator.unprofilable_reason()?;
        Some(match self.ours.as_ref().and_then(OwnSampler::error) {
            Some(error) => why.without_sampler(error),
            None => why,
        })
    }

    /// Whether an activation that nobody ends would cost too much.
    pub(crate) fn needs_time_limit(&self) -> bool {
        self.own_sampler()
            .is_some_and(|ours| ours.needs_time_limit())
    }

    /// Has memprof's sampler take the slots of libraries that were loaded since. False where it does
    /// not sample.
    pub(crate) fn maintain(&self) -> bool {
        self.own_sampler().is_some_and(SelectedSampler::maintain)
    }

    /// Whether it can be profiled in this process.
    ///
    /// # Errors
    /// As of [`Allocator::require_profiling`].
    pub(crate) fn require_profiling(&self) -> Result<()> {
        self.unprofilable_reason()
            .map_or(Ok(()), |why| Err(why.into()))
    }

    /// Whether it can take a profile of that kind.
    ///
    /// # Errors
    /// As of [`Allocator::require_profile`].
    pub(crate) fn require_profile(&self, kind: ProfileKind) -> Result<()> {
        match (kind, self.own_sampler()) {
            (ProfileKind::Heap, Some(_)) => Ok(()),
            (ProfileKind::Pinned, Some(ours)) => ours.require_slabs(&self.allocator).map(drop),
            (_, _) => self.allocator.require_profile(kind),
        }
    }

    /// It is sampled now.
    pub(crate) fn is_active(&self) -> bool {
        match self.own_sampler() {
            Some(ours) => ours.is_active(),
            None => self.allocator.is_active(),
        }
    }

    /// Mean bytes between samples, where it can be profiled.
    pub(crate) fn sample_interval(&self) -> Option<u64> {
        match self.own_sampler() {
            Some(ours) => Some(ours.interval()),
            None => self.allocator.sample_interval(),
        }
    }

    /// Starts sampling, at `interval` where one is given. Returns what the operator should know.
    ///
    /// # Errors
    /// As of [`Allocator::activate`]; memprof's sampler cannot serve this process.
    pub(crate) fn activate(&self, interval: Option<SampleInterval>) -> Result<Vec<String>> {
        match self.own_sampler() {
            Some(ours) => ours.activate(interval, &self.allocator),
            None if self.allocator.sample_interval().is_some() => self.allocator.activate(interval),
            None => self.allocator.activate(interval.or(self.interval)),
        }
    }

    /// Stops sampling. Samples taken so far are kept.
    ///
    /// # Errors
    /// The allocator refused, or the loader.
    pub(crate) fn deactivate(&self) -> Result<()> {
        match self.own_sampler() {
            Some(ours) => ours.stop(),
            None => self.allocator.deactivate(),
        }
    }

    /// Drops all samples, and sets the interval where one is given.
    ///
    /// # Errors
    /// As of [`Allocator::reset`]; a thread stays inside of memprof's sampler.
    pub(crate) fn reset(&self, interval: Option<SampleInterval>) -> Result<()> {
        match self.own_sampler() {
            Some(ours) => ours.reset(interval),
            None => self.allocator.reset(interval),
        }
    }

    /// About the memory that a profile takes while it is written, where its figures tell.
    pub(crate) fn profile_bytes(&self, kind: ProfileKind) -> Option<u64> {
        match (kind, self.own_sampler()) {
            (ProfileKind::Heap | ProfileKind::Pinned, Some(_)) => None,
            (_, _) => self.allocator.profile_bytes(kind),
        }
    }

    /// What its samples take in the process, where that is known.
    pub(crate) fn metadata_bytes(&self) -> Option<u64> {
        match self.own_sampler() {
            Some(ours) => Some(ours.status().table_bytes),
            None => self.allocator.jemalloc()?.profile_bytes(),
        }
    }

    /// Writes a profile into `scratch` and checks it. Runs on the dumper's thread.
    ///
    /// # Errors
    /// As of [`Allocator::write_profile`].
    pub(crate) fn write_profile(
        &self,
        kind: ProfileKind,
        scratch: &Scratch,
    ) -> Result<ProfileSummary> {
        match (kind, self.own_sampler()) {
            (ProfileKind::Heap, Some(ours)) => ours.write_profile(scratch),
            (ProfileKind::Pinned, Some(ours)) => ours.write_pinned(&self.allocator, scratch),
            (_, _) => self.allocator.write_profile(kind, scratch),
        }
    }
}
