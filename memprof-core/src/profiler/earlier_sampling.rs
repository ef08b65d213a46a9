//! The sampling that an activation finds, so that it can be restored: when a lease ends, or when the activation fails.

use std::sync::Arc;
use std::time::SystemTime;

use super::Profiler;
use crate::allocators::interval::SampleInterval;
use crate::error::Result;
use crate::sampler::{Backend, SamplerSelection};

/// Sampling that was on when an activation with a time limit began, for example of a host that always profiles.
#[derive(Clone, Debug)]
pub(super) struct EarlierSampling {
    pub(super) since: SystemTime,
    /// Backends that were being sampled.
    pub(super) backends: Vec<EarlierBackend>,
}

/// A backend before an activation.
#[derive(Clone, Debug)]
pub(super) struct EarlierBackend {
    backend: Arc<Backend>,
    /// Whether it was being sampled.
    pub(super) is_active: bool,
    /// Sample interval in bytes. `None` if the allocator has none.
    interval: Option<u64>,
    /// Whether memprof's sampler was selected.
    has_own_sampler: bool,
}

impl EarlierBackend {
    fn read(backend: &Arc<Backend>) -> Self {
        Self {
            backend: Arc::clone(backend),
            is_active: backend.is_active(),
            interval: backend.sample_interval(),
            has_own_sampler: backend.sampler_status().is_some(),
        }
    }

    /// Selects the sampler again, and starts or stops sampling as before.
    ///
    /// # Errors
    /// The allocator refused.
    fn restore(&self) -> Result<()> {
        let backend = &self.backend;
        if backend.sampler_status().is_some() != self.has_own_sampler {
            backend.select_sampler(match self.has_own_sampler {
                true => SamplerSelection::OwnRequested,
                false => SamplerSelection::Allocator,
            })?;
        }
        if !self.is_active {
            return backend.stop_sampling();
        }
        let has_interval = backend.sample_interval() == self.interval;
        if !(backend.is_active() && has_interval) {
            let interval = self.interval.filter(|_| !has_interval);
            backend.start_sampling(interval.and_then(SampleInterval::from_bytes))?;
        }
        Ok(())
    }
}

impl Profiler {
    /// Reads, for each allocator, which sampler is selected, whether it samples and at which interval, so that this can
    /// be restored later.
    pub(super) fn read_backend_states(&self) -> Vec<EarlierBackend> {
        let backends = self.allocators.all_backends();
        backends.iter().map(EarlierBackend::read).collect()
    }

    /// Restores the sampling state of the backends in `earlier`. Stops sampling in all other backends, whose sampler
    /// stays selected.
    ///
    /// # Errors
    /// The error of the first allocator that refused; the others are still restored.
    pub(super) fn restore_backends(&self, earlier: &[EarlierBackend]) -> Result<()> {
        let is_listed = |each: &Arc<Backend>| {
            let mut known = earlier.iter();
            known.any(|known| Arc::ptr_eq(&known.backend, each))
        };
        let backends = self.allocators.all_backends();
        let others = backends.iter().filter(|each| !is_listed(each));
        let stopped = others.map(|each| each.stop_sampling());
        // The active ones last: a process has one sampler of memprof's, which the inactive ones must release first.
        let in_order = [false, true].into_iter().flat_map(|is_active| {
            let of_state = move |each: &&EarlierBackend| each.is_active == is_active;
            earlier.iter().filter(of_state)
        });
        let restored = in_order.map(EarlierBackend::restore);
        // Collected, so that all are restored even if one refuses.
        let errors: Vec<_> = stopped.chain(restored).filter_map(Result::err).collect();
        errors.into_iter().next().map_or(Ok(()), Err)
    }
}
