//! memprof's sampler in the place of an allocator's profiler.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use memprof_sampler::PatchedEntries;
pub(crate) use memprof_sampler::exclude_this_thread as leave_this_thread_out;

pub(crate) use super::chosen::SelectedSampler;
pub(crate) use super::fork::stop_sampling_in_children;

use super::SamplerSelection;
use super::fork::{keep_sampling_in_children, register_fork_handler};
use super::hooked::JemallocHookInstaller;
use super::installed::{Interception, loader_refused, sampler_error, statically_linked_error};
use crate::allocators::allocator::Allocator;
use crate::allocators::interval::SampleInterval;
use crate::allocators::loaded_objects::ForkGuard;
use crate::allocators::symbols::malloc;
use crate::error::{Error, Result};
use crate::lock::lock;

/// As jemalloc's and tcmalloc's own.
const DEFAULT_INTERVAL: u64 = 512 << 10;

/// Samples from now on, before there is a profiler: for the first moments of a program. The profiler
/// goes on with it, or ends it where the allocator samples by itself. With `is_tallied` all allocations
/// are counted besides, and a dump holds what lived when most did.
///
/// # Errors
/// Why memprof's sampler cannot serve this process.
pub fn sample_from_start(interval: Option<SampleInterval>, is_tallied: bool) -> Result<()> {
    if is_tallied {
        memprof_sampler::enable_tally();
    }
    let mut slots = Interception::find_slots()?;
    if slots.owner().is_program {
        return Err(statically_linked_error());
    }
    register_fork_handler();
    keep_sampling_in_children();
    let interval = interval.map_or(DEFAULT_INTERVAL, SampleInterval::bytes);
    memprof_sampler::start(interval).map_err(sampler_error)?;
    let _reading = ForkGuard::acquire();
    slots.patch().ok_or_else(loader_refused).map(drop)
}

/// The sampler before the allocator that serves `malloc`.
#[derive(Debug)]
pub(crate) struct OwnSampler {
    /// Or why it cannot serve this process.
    sampler: Result<Mutex<Interception>>,
    /// What the sampler samples at, or did last.
    interval: AtomicU64,
}

impl OwnSampler {
    /// None where the allocator neither serves `malloc` nor has hooks. It samples at `interval` where
    /// nothing else is asked for.
    pub(crate) fn for_allocator(
        allocator: &Allocator,
        interval: Option<SampleInterval>,
    ) -> Option<Self> {
        let identity = allocator.identity();
        let interval = match memprof_sampler::interval() {
            0 => interval.map_or(DEFAULT_INTERVAL, SampleInterval::bytes),
            at_once => at_once,
        };
        let hooked = || allocator.jemalloc().and_then(JemallocHookInstaller::of);
        let sampler = if identity.owns_malloc {
            Interception::find(identity, hooked)
        } else {
            hooked().map(Interception::with_jemalloc_hooks)?
        };
        Some(Self {
            sampler: sampler.map(Mutex::new),
            interval: AtomicU64::new(interval),
        })
    }

    /// It would sample through jemalloc's hooks.
    pub(crate) fn uses_jemalloc_hooks(&self) -> bool {
        let sampler = self.sampler.as_ref();
        sampler.is_ok_and(|sampler| lock(sampler).is_hooked())
    }

    /// Jumps at the allocator's functions were written since it was looked for, by which it could sample now.
    pub(crate) fn has_new_interception(&self, allocator: &Allocator) -> bool {
        let has_way = match &self.sampler {
            Ok(sampler) => {
                let sampler = lock(sampler);
                !sampler.is_hooked() || memprof_sampler::interval() > 0
            }
            Err(_) => false,
        };
        let malloc = || malloc().and_then(PatchedEntries::find);
        !has_way && allocator.identity().owns_malloc && malloc().is_some()
    }

    /// Why it cannot serve this process.
    pub(crate) fn error(&self) -> Option<&Error> {
        self.sampler.as_ref().err()
    }

    /// Settles whether it samples from the next activation on.
    ///
    /// # Errors
    /// Why it cannot serve this process; `allocator` refused to be switched off.
    pub(crate) fn select(&self, samples: SamplerSelection, allocator: &Allocator) -> Result<()> {
        let sampler = match (&self.sampler, samples) {
            (Ok(sampler), _) => sampler,
            (Err(_), SamplerSelection::Allocator) => return Ok(()),
            (Err(error), _) => return Err(error.clone()),
        };
        let before = std::mem::replace(&mut lock(sampler).samples, samples);
        match (before, samples) {
            (
                SamplerSelection::Allocator,
                SamplerSelection::OwnFallback | SamplerSelection::OwnRequested,
            ) => allocator.deactivate(),
            (
                SamplerSelection::OwnFallback | SamplerSelection::OwnRequested,
                SamplerSelection::Allocator,
            ) => lock(sampler).stop(),
            // `sample_at_once` did not know that the allocator does.
            (SamplerSelection::Allocator, SamplerSelection::Allocator)
                if lock(sampler).has_patched() =>
            {
                let mut sampler = lock(sampler);
                sampler.drop_samples()?;
                sampler.uninstall()
            }
            (SamplerSelection::Allocator, SamplerSelection::Allocator)
            | (
                SamplerSelection::OwnFallback | SamplerSelection::OwnRequested,
                SamplerSelection::OwnFallback | SamplerSelection::OwnRequested,
            ) => Ok(()),
        }
    }

    /// Drops all samples and gives every slot back, also those that the parent of a forked child took.
    ///
    /// # Errors
    /// A thread stays inside of the sampler; the loader does not let us.
    pub(crate) fn release(&self) -> Result<()> {
        let Ok(sampler) = &self.sampler else {
            return Ok(());
        };
        let mut sampler = lock(sampler);
        sampler.drop_samples()?;
        sampler.uninstall()
    }

    /// The sampler, where it samples or would.
    pub(crate) fn selected(&self) -> Option<SelectedSampler<'_>> {
        let sampler = lock(self.sampler.as_ref().ok()?);
        (sampler.samples != SamplerSelection::Allocator).then_some(SelectedSampler {
            sampler,
            interval: &self.interval,
        })
    }
}
