//! One allocator as messages see it, sampled by its own profiler or by memprof's sampler.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memprof_messages::{ProfileKind, SamplerStatus};

use super::SamplerSelection;
use super::own_sampler::{OwnSampler, SelectedSampler};
use crate::allocators::allocator::Allocator;
use crate::allocators::interval::SampleInterval;
use crate::allocators::unprofilable::Unprofilable;
use crate::dumps::heap::ProfileSummary;
use crate::dumps::scratch::Scratch;
use crate::error::Result;
use crate::identity::AllocatorIdentity;

/// An allocator with its sampler.
#[derive(Debug)]
pub(crate) struct Backend {
    /// The allocator itself, for statistics and purging, which do not depend on the sampler.
    pub allocator: Allocator,
    /// memprof's sampler. `None` unless the allocator serves `malloc`, is a jemalloc with hooks, or has functions that
    /// `memprof attach` patched.
    own_sampler: Option<OwnSampler>,
    /// Sample interval from the configuration.
    interval: Option<SampleInterval>,
    /// Stall of the allocator's last profile, in nanoseconds; 0 before the first one.
    last_stall_nanos: AtomicU64,
}

impl Backend {
    /// Creates a backend. It samples at `interval` unless an activation or the allocator sets another one. `None`
    /// stands for the sampler's default.
    pub(crate) fn new(allocator: Allocator, interval: Option<SampleInterval>) -> Self {
        Self {
            own_sampler: OwnSampler::for_allocator(&allocator, interval),
            allocator,
            interval,
            last_stall_nanos: AtomicU64::new(0),
        }
    }

    /// Kind, version and address of the allocator, and how it was found.
    pub(crate) fn identity(&self) -> &AllocatorIdentity {
        self.allocator.identity()
    }

    /// Whether memprof's sampler can be used with this allocator at all.
    pub(crate) fn supports_own_sampler(&self) -> bool {
        self.own_sampler.is_some()
    }

    /// Whether memprof's sampler, once it is selected, samples this allocator through jemalloc's allocation hooks.
    /// False if it cannot sample the allocator.
    pub(crate) fn uses_jemalloc_hooks(&self) -> bool {
        self.own_sampler
            .as_ref()
            .is_some_and(OwnSampler::uses_jemalloc_hooks)
    }

    /// Whether memprof's sampler could now intercept calls by a method other than the one found first. Also true if no
    /// method was possible before, but one is now.
    pub(crate) fn has_new_interception(&self) -> bool {
        match &self.own_sampler {
            Some(sampler) => sampler.has_new_interception(&self.allocator),
            None => OwnSampler::is_possible_for(&self.allocator),
        }
    }

    /// Locks memprof's sampler if it is selected for this allocator. `None` if the allocator's own sampler is, or if
    /// memprof's cannot be used.
    fn lock_selected_sampler(&self) -> Option<SelectedSampler<'_>> {
        self.own_sampler.as_ref()?.lock_if_selected()
    }

    /// Selects the sampler for the next activation, and stops the other one. Does nothing if only the allocator can
    /// sample.
    ///
    /// # Errors
    /// Reason why memprof's sampler cannot be used, or the error of the sampler that refused to stop.
    pub(crate) fn select_sampler(&self, selection: SamplerSelection) -> Result<()> {
        match &self.own_sampler {
            Some(sampler) => sampler.select_sampler(selection, &self.allocator),
            None => Ok(()),
        }
    }

    /// Drops all samples of memprof's sampler, and removes its interception of calls. Does nothing for an allocator
    /// that it cannot sample.
    ///
    /// # Errors
    /// `Busy`: a thread stays inside the sampler. `Unavailable`: the loader does not let memprof restore the slots.
    pub(crate) fn drop_samples_and_uninstall(&self) -> Result<()> {
        match &self.own_sampler {
            Some(sampler) => sampler.drop_samples_and_uninstall(),
            None => Ok(()),
        }
    }

    /// Counts of memprof's sampler. `None` unless it is selected for this allocator.
    pub(crate) fn sampler_status(&self) -> Option<SamplerStatus> {
        self.lock_selected_sampler().map(SelectedSampler::status)
    }

    /// Reason why the allocator's own profiler cannot be used, while memprof's sampler replaces it. `None` if memprof's
    /// sampler is not selected, or if the allocator could be profiled.
    pub(crate) fn fallback_reason(&self) -> Option<Unprofilable> {
        self.lock_selected_sampler()?;
        self.allocator.unprofilable_reason()
    }

    /// Reason why no profile can be taken with the selected sampler. `None` if one can, as always with memprof's. If
    /// memprof's sampler cannot be used either, the reason includes its remedy.
    pub(crate) fn unprofilable_reason(&self) -> Option<Unprofilable> {
        if self.lock_selected_sampler().is_some() {
            return None;
        }
        let reason = self.allocator.unprofilable_reason()?;
        Some(
            match self
                .own_sampler
                .as_ref()
                .and_then(OwnSampler::reason_unusable)
            {
                Some(error) => reason.with_sampler_remedy(error),
                None => reason,
            },
        )
    }

    /// Whether the selected sampler is so expensive that an activation needs a time limit. Always false for the
    /// allocator's own sampler.
    pub(crate) fn needs_time_limit(&self) -> bool {
        self.lock_selected_sampler()
            .is_some_and(|sampler| sampler.needs_time_limit())
    }

    /// Makes memprof's sampler intercept libraries loaded since the last call. Returns false while it is not selected
    /// or does not sample.
    pub(crate) fn maintain_interception(&self) -> bool {
        self.lock_selected_sampler()
            .is_some_and(SelectedSampler::maintain_interception)
    }

    /// Fails unless a heap profile can be taken with the selected sampler, as always with memprof's.
    ///
    /// # Errors
    /// `Unsupported`: this build of the allocator can never be profiled. `Unavailable`: the process was started without
    /// profiling.
    pub(crate) fn require_profiling(&self) -> Result<()> {
        self.unprofilable_reason()
            .map_or(Ok(()), |reason| Err(reason.into()))
    }

    /// Fails unless a profile of this kind can be written with the selected sampler. With memprof's, a heap profile
    /// always can.
    ///
    /// # Errors
    /// `Unsupported`: the selected sampler lacks this kind, or the allocator has no profiler. `Unavailable`: the
    /// process was started without profiling, or memprof's samples may belong to another allocator or to freed memory.
    pub(crate) fn require_profile_kind(&self, kind: ProfileKind) -> Result<()> {
        match (kind, self.lock_selected_sampler()) {
            (ProfileKind::Heap, Some(_)) => Ok(()),
            (ProfileKind::Pinned, Some(own_sampler)) => own_sampler
                .require_slab_occupancy(&self.allocator)
                .map(drop),
            (_, _) => self.allocator.require_profile_kind(kind),
        }
    }

    /// Whether the selected sampler is on: memprof's, or the allocator's built-in one.
    pub(crate) fn is_active(&self) -> bool {
        match self.lock_selected_sampler() {
            Some(sampler) => sampler.is_active(),
            None => self.allocator.is_active(),
        }
    }

    /// Mean bytes between samples of the selected sampler. `None` if that is the allocator's own sampler, and it
    /// reports no interval.
    pub(crate) fn sample_interval(&self) -> Option<u64> {
        match self.lock_selected_sampler() {
            Some(sampler) => Some(sampler.interval()),
            None => self.allocator.sample_interval(),
        }
    }

    /// Starts sampling. If `interval` is `None`, the selected sampler's current or most recent interval applies, or
    /// else the configured one. Returns warnings for the operator.
    ///
    /// # Errors
    /// The allocator cannot be profiled or refused, or memprof's sampler cannot intercept its calls.
    pub(crate) fn start_sampling(&self, interval: Option<SampleInterval>) -> Result<Vec<String>> {
        match self.lock_selected_sampler() {
            Some(sampler) => sampler.start_sampling(interval, &self.allocator),
            None if self.allocator.sample_interval().is_some() => {
                self.allocator.start_sampling(interval)
            }
            None => self.allocator.start_sampling(interval.or(self.interval)),
        }
    }

    /// Stops sampling. Samples taken so far are kept.
    ///
    /// # Errors
    /// The allocator or the loader refused.
    pub(crate) fn stop_sampling(&self) -> Result<()> {
        match self.lock_selected_sampler() {
            Some(sampler) => sampler.stop_sampling(),
            None => self.allocator.stop_sampling(),
        }
    }

    /// Discards all samples, and sets the interval if given.
    ///
    /// # Errors
    /// The allocator cannot be profiled, cannot discard samples, or refused. `Busy`: a thread stays inside memprof's
    /// sampler.
    pub(crate) fn reset_samples(&self, interval: Option<SampleInterval>) -> Result<()> {
        match self.lock_selected_sampler() {
            Some(sampler) => sampler.reset_samples(interval),
            None => self.allocator.reset_samples(interval),
        }
    }

    /// Estimated memory in bytes for writing a profile. `None` if memprof's sampler would write it, or if the allocator
    /// gives no estimate.
    pub(crate) fn profile_memory_estimate(&self, kind: ProfileKind) -> Option<u64> {
        match (kind, self.lock_selected_sampler()) {
            (ProfileKind::Heap | ProfileKind::Pinned, Some(_)) => None,
            (_, _) => self.allocator.profile_memory_estimate(kind),
        }
    }

    /// Memory that the samples occupy, in bytes. `None` if unknown, as for tcmalloc's sampler.
    pub(crate) fn sample_memory_bytes(&self) -> Option<u64> {
        match self.lock_selected_sampler() {
            Some(sampler) => Some(sampler.status().table_bytes),
            None => self.allocator.as_jemalloc()?.profile_memory_estimate(),
        }
    }

    /// Writes a profile with the selected sampler to the temporary file `scratch`, and checks it. Kinds other than heap
    /// and pinned are always written by the allocator. Stores for how long
    /// the allocator's own profiler may have stalled threads. Call it on the dumper's thread only: jemalloc never
    /// samples the calling thread again.
    ///
    /// # Errors
    /// The sampler cannot write this kind of profile, the allocator or the kernel refused, or the written profile is
    /// damaged.
    pub(crate) fn write_profile(
        &self,
        kind: ProfileKind,
        scratch: &Scratch,
    ) -> Result<ProfileSummary> {
        match (kind, self.lock_selected_sampler()) {
            (ProfileKind::Heap, Some(own_sampler)) => {
                own_sampler.write_profile(&self.allocator, scratch)
            }
            (ProfileKind::Pinned, Some(own_sampler)) => {
                own_sampler.write_pinned_profile(&self.allocator, scratch)
            }
            (_, _) => {
                let summary = self.allocator.write_profile(kind, scratch)?;
                if let Some(stall) = summary.stall {
                    let nanos = u64::try_from(stall.as_nanos()).unwrap_or(u64::MAX);
                    self.last_stall_nanos.store(nanos, Ordering::Relaxed);
                }
                Ok(summary)
            }
        }
    }

    /// Longest time for which threads that allocated may have waited during the last profile; the next one takes as
    /// long unless the number of stacks changes. `None` before the first profile, and while memprof's sampler is
    /// selected, which makes no thread wait.
    pub(crate) fn last_dump_stall(&self) -> Option<Duration> {
        if self.lock_selected_sampler().is_some() {
            return None;
        }
        match self.last_stall_nanos.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }
}
