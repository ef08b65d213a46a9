//! memprof's sampler as a replacement for an allocator's profiler.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

pub(crate) use memprof_sampler::exclude_this_thread;
use memprof_sampler::{GotSlots, PatchedEntries};

pub(crate) use super::entries_beside_malloc::patched_allocators_beside_malloc;
pub(crate) use super::fork::stop_sampling_in_children;
pub(crate) use super::jemalloc_hooks::touch_hooked_jemalloc;
pub(crate) use super::selected_sampler::SelectedSampler;

use super::SamplerSelection;
use super::entries_beside_malloc::is_non_malloc_allocator_patched;
use super::fork::{keep_sampling_in_children, register_fork_handler};
use super::interception::{Interception, require_patched_slots};
use super::interception_error::{
    convert_sampler_error, loader_lock_error, statically_linked_error,
};
use super::jemalloc_hooks::JemallocHookInstaller;
use super::loaded_libraries;
use super::sampled_allocator::may_have_sampled;
use crate::allocators::allocator::Allocator;
use crate::allocators::interval::SampleInterval;
use crate::allocators::loaded_objects::ForkGuard;
use crate::allocators::symbols::malloc_address;
use crate::allocators::tcmalloc::make_tcmalloc_sample_this_thread;
use crate::error::{Error, Result};
use crate::lock::lock;

/// Default sample interval in bytes, as in jemalloc and tcmalloc.
const DEFAULT_INTERVAL: u64 = 512 << 10;

/// Scope of a sampling that begins with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartScope {
    /// The program and its forked children.
    Program,
    /// As [`Program`](Self::Program), and all allocations are also counted; a dump contains what was live at the peak.
    Tally,
    /// This process alone. No profiler will take over.
    Process,
}

/// Starts sampling before a profiler exists, so that a program is sampled from its first moments. `interval` is `None`
/// for one sample per 512 KiB.
///
/// With [`StartScope::Process`], forked children stop sampling, and no profiler takes over. With another scope,
/// children go on sampling, and the profiler later takes over, or stops the sampling if the allocator samples. With
/// [`StartScope::Program`], also makes tcmalloc's own sampler sample the calling thread, in case tcmalloc's sampler is
/// selected later.
///
/// # Errors
/// Reason why memprof's sampler cannot be used in this process. Sampling is off then.
pub fn sample_from_start(interval: Option<SampleInterval>, scope: StartScope) -> Result<()> {
    let bytes = interval.map_or(DEFAULT_INTERVAL, SampleInterval::bytes);
    match scope {
        StartScope::Tally => memprof_sampler::enable_tally(),
        StartScope::Program => make_tcmalloc_sample_this_thread(bytes),
        StartScope::Process => {}
    }
    let mut slots = Interception::find_got_slots()?;
    if slots.provider().is_program {
        return Err(statically_linked_error());
    }
    register_fork_handler();
    if scope != StartScope::Process {
        keep_sampling_in_children();
    }
    start_and_patch(&mut slots, bytes).inspect_err(|_| {
        memprof_sampler::stop();
        stop_sampling_in_children();
    })
}

/// Starts sampling, once per `interval` bytes. Patches `slots`, and lets those of libraries that are loaded later be
/// patched too.
///
/// # Errors
/// `Io`: no memory for the sampler's tables. `Unavailable`: the slots cannot be patched. Sampling may be on after an
/// error.
fn start_and_patch(slots: &mut GotSlots, interval: u64) -> Result<()> {
    memprof_sampler::start(interval).map_err(convert_sampler_error)?;
    let no_fork = ForkGuard::acquire();
    let patched = slots.patch().ok_or_else(loader_lock_error)?;
    loaded_libraries::start_patching_new_libraries(slots, &no_fork);
    require_patched_slots(&patched)
}

/// memprof's sampler for one allocator.
#[derive(Debug)]
pub(crate) struct OwnSampler {
    /// Interception of the calls, or the reason why it is impossible.
    sampler: Result<Mutex<Interception>>,
    /// Current or most recent sample interval in bytes.
    interval: AtomicU64,
}

impl OwnSampler {
    /// Creates memprof's sampler for an allocator. The sample interval is that of the running sampling, or else
    /// `interval`, or else 512 KiB. If the sampler cannot be used, stores the reason. `None` if the allocator does not
    /// serve `malloc`, has no hooks, and has no patched functions.
    pub(crate) fn for_allocator(
        allocator: &Allocator,
        interval: Option<SampleInterval>,
    ) -> Option<Self> {
        let identity = allocator.identity();
        let interval = match memprof_sampler::interval() {
            0 => interval.map_or(DEFAULT_INTERVAL, SampleInterval::bytes),
            running => running,
        };
        let hooks = || allocator.as_jemalloc().and_then(JemallocHookInstaller::new);
        let sampler = if identity.owns_malloc || is_non_malloc_allocator_patched(identity) {
            Interception::find(identity, hooks)
        } else {
            Interception::with_jemalloc_hooks(hooks()?, identity)
        };
        Some(Self {
            sampler: sampler.map(Mutex::new),
            interval: AtomicU64::new(interval),
        })
    }

    /// Whether memprof's sampler, once it is selected, samples through jemalloc's allocation hooks. False if it cannot
    /// be used.
    pub(crate) fn uses_jemalloc_hooks(&self) -> bool {
        let sampler = self.sampler.as_ref();
        sampler.is_ok_and(|sampler| lock(sampler).uses_jemalloc_hooks())
    }

    /// Whether another method of interception is possible now, because `memprof attach` patched or restored entry
    /// points of the allocator since the last search.
    pub(crate) fn has_new_interception(&self, allocator: &Allocator) -> bool {
        match &self.sampler {
            Ok(sampler) => lock(sampler).is_outdated(),
            Err(_) => {
                allocator.identity().owns_malloc
                    && malloc_address().and_then(PatchedEntries::find).is_some()
            }
        }
    }

    /// Whether a sampler can now be created for an allocator that had none, because `memprof attach` patched its
    /// functions.
    pub(crate) fn is_possible_for(allocator: &Allocator) -> bool {
        is_non_malloc_allocator_patched(allocator.identity())
    }

    /// Reason why memprof's sampler cannot be used in this process. `None` if it can.
    pub(crate) fn reason_unusable(&self) -> Option<&Error> {
        self.sampler.as_ref().err()
    }

    /// Selects the sampler for the next activation, and stops the other one. If the allocator's sampler is selected,
    /// also drops the samples that [`sample_from_start`] took.
    ///
    /// # Errors
    /// Reason why memprof's sampler cannot be used, or the error of the sampler that refused to stop.
    pub(crate) fn select_sampler(
        &self,
        selection: SamplerSelection,
        allocator: &Allocator,
    ) -> Result<()> {
        let sampler = match (&self.sampler, selection) {
            (Ok(sampler), _) => sampler,
            (Err(_), SamplerSelection::Allocator) => return Ok(()),
            (Err(error), _) => return Err(error.clone()),
        };
        let before = std::mem::replace(&mut lock(sampler).selection, selection);
        match (before, selection) {
            (
                SamplerSelection::Allocator,
                SamplerSelection::OwnFallback | SamplerSelection::OwnRequested,
            ) => allocator.stop_sampling(),
            (
                SamplerSelection::OwnFallback | SamplerSelection::OwnRequested,
                SamplerSelection::Allocator,
            ) => lock(sampler).stop_sampling(),
            // `sample_from_start` samples without knowing whether the allocator does.
            (SamplerSelection::Allocator, SamplerSelection::Allocator)
                if may_have_sampled(allocator.identity()) && lock(sampler).has_patches() =>
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

    /// Drops all samples and removes the interception of all calls, including slots that the parent of a forked child
    /// patched. Does nothing if the sampler cannot be used here.
    ///
    /// # Errors
    /// `Busy`: a thread stays inside the sampler. `Unavailable`: the loader cannot be locked.
    pub(crate) fn drop_samples_and_uninstall(&self) -> Result<()> {
        let Ok(sampler) = &self.sampler else {
            return Ok(());
        };
        let mut sampler = lock(sampler);
        sampler.drop_samples()?;
        sampler.uninstall()
    }

    /// Locks the sampler if it is selected. `None` if the allocator's own sampler is, or if this one cannot be used.
    pub(crate) fn lock_if_selected(&self) -> Option<SelectedSampler<'_>> {
        let sampler = lock(self.sampler.as_ref().ok()?);
        (sampler.selection != SamplerSelection::Allocator).then_some(SelectedSampler {
            sampler,
            interval: &self.interval,
        })
    }
}
