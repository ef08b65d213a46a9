//! Stub of memprof's sampler for the processors that it does not support.

use std::marker::PhantomData;

use super::SamplerSelection;
use crate::allocators::allocator::Allocator;
use crate::allocators::interval::SampleInterval;
use crate::allocators::jemalloc::Jemalloc;
use crate::dumps::heap::ProfileSummary;
use crate::dumps::scratch::Scratch;
use crate::error::{Error, Result};
use memprof_messages::SamplerStatus;

/// Scope of a sampling that begins with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "documented in own_sampler.rs")]
pub enum StartScope {
    Program,
    Tally,
    Process,
}

/// Does nothing, because there is no sampler.
///
/// # Errors
/// Never fails.
pub fn sample_from_start(_: Option<SampleInterval>, _: StartScope) -> Result<()> {
    Ok(())
}

/// Does nothing, because there is no sampler.
pub(crate) fn stop_sampling_in_children() {}

/// Returns no names, because no allocator has patched functions.
pub(crate) fn patched_allocators_beside_malloc(_: &[usize]) -> Vec<&'static str> {
    Vec::new()
}

/// Does nothing, because there is no sampler.
pub(crate) fn exclude_this_thread() {}

/// Does nothing, because no jemalloc has memprof's hooks.
pub(crate) fn touch_hooked_jemalloc() {}

/// Has no value.
#[derive(Debug)]
pub(crate) enum OwnSampler {}

impl OwnSampler {
    /// Returns `None`, because there is no sampler.
    pub(crate) fn for_allocator(_: &Allocator, _: Option<SampleInterval>) -> Option<Self> {
        None
    }

    pub(crate) fn uses_jemalloc_hooks(&self) -> bool {
        match *self {}
    }

    pub(crate) fn has_new_interception(&self, _: &Allocator) -> bool {
        match *self {}
    }

    /// Returns false, because there is no sampler.
    pub(crate) fn is_possible_for(_: &Allocator) -> bool {
        false
    }

    pub(crate) fn reason_unusable(&self) -> Option<&Error> {
        match *self {}
    }

    pub(crate) fn lock_if_selected(&self) -> Option<SelectedSampler<'_>> {
        match *self {}
    }

    pub(crate) fn drop_samples_and_uninstall(&self) -> Result<()> {
        match *self {}
    }

    pub(crate) fn select_sampler(&self, _: SamplerSelection, _: &Allocator) -> Result<()> {
        match *self {}
    }
}

/// Uninhabited, like [`OwnSampler`].
pub(crate) struct SelectedSampler<'a>(OwnSampler, PhantomData<&'a ()>);

impl SelectedSampler<'_> {
    pub(crate) fn status(self) -> SamplerStatus {
        match self.0 {}
    }

    pub(crate) fn needs_time_limit(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn maintain_interception(self) -> bool {
        match self.0 {}
    }

    pub(crate) fn is_active(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn interval(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) fn start_sampling(
        self,
        _: Option<SampleInterval>,
        _: &Allocator,
    ) -> Result<Vec<String>> {
        match self.0 {}
    }

    pub(crate) fn stop_sampling(self) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn reset_samples(self, _: Option<SampleInterval>) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn require_slab_occupancy<'a>(&self, _: &'a Allocator) -> Result<&'a Jemalloc> {
        match self.0 {}
    }

    pub(crate) fn write_pinned_profile(
        &self,
        _: &Allocator,
        _: &Scratch,
    ) -> Result<ProfileSummary> {
        match self.0 {}
    }

    pub(crate) fn write_profile(&self, _: &Allocator, _: &Scratch) -> Result<ProfileSummary> {
        match self.0 {}
    }
}
