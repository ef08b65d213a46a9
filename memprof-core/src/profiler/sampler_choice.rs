//! Who samples: each allocator for itself, or memprof's sampler for the one that serves `malloc`.

use std::sync::Arc;

use super::Profiler;
use super::allocators::BackendList;
use crate::error::{Error, ErrorKind, Result};
use crate::sampler::Backend;
use crate::sampler::SamplerSelection;
use memprof_messages::{AllocatorKind, SamplerChoice};

impl Profiler {
    /// Settles who samples, and returns those of `backends` that do, or could.
    ///
    /// # Errors
    /// Why memprof's sampler cannot, where it was asked for.
    pub(super) fn choose_sampler(
        &self,
        backends: &BackendList,
        choice: SamplerChoice,
    ) -> Result<BackendList> {
        let ours = own_sampler_backend(backends);
        match (choice, ours) {
            (SamplerChoice::Auto, Some(ours)) if self.needs_own_sampler(backends, ours) => {
                self.deselect_others(ours)?;
                // Where it cannot, the allocators tell what would help.
                let _refused = ours.select(SamplerSelection::OwnFallback);
            }
            (SamplerChoice::Auto | SamplerChoice::Allocator, Some(_)) => {
                backends
                    .iter()
                    .try_for_each(|each| each.select(SamplerSelection::Allocator))?;
            }
            (SamplerChoice::Auto | SamplerChoice::Allocator, None) => {}
            (SamplerChoice::Memprof, Some(ours)) => {
                self.deselect_others(ours)?;
                ours.select(SamplerSelection::OwnRequested)?;
                return Ok([Arc::clone(ours)].into());
            }
            (SamplerChoice::Memprof, None) => {
                let message = "memprof's sampler serves the allocator of malloc, and a jemalloc that \
                               can be hooked, which none of these is";
                return Err(Error::new(ErrorKind::Unsupported, message)
                    .remedy("leave `allocator` out, or see `status`"));
            }
        }
        Ok(Arc::clone(backends))
    }

    /// As before any activation.
    pub(super) fn choose_by_default(&self) {
        if let Err(error) = self.choose_sampler(&self.allocators.all(), self.settings.sampler) {
            log::debug!("{error}");
        }
    }

    /// Takes notice of jumps that `memprof attach` wrote.
    pub(super) fn refresh_interception(&self) {
        if !self.allocators.is_active() && self.allocators.is_outdated() {
            self.allocators.refresh(&self.settings);
            self.choose_by_default();
        }
    }

    /// There is one sampler in a process.
    fn deselect_others(&self, ours: &Arc<Backend>) -> Result<()> {
        let all = self.allocators.all();
        let mut others = all.iter().filter(|each| !is_it(each, ours));
        others.try_for_each(|other| other.select(SamplerSelection::Allocator))
    }

    /// No allocator can profile, and ours would see what the program allocates: not where a
    /// jemalloc beside `malloc`, which cannot be hooked, serves the program by another name. Nor by
    /// hooks, unless they are asked for: jemalloc (5.3.1, `tsd_cleanup`) forgets to take a thread off its
    /// list that ends without an allocation since they were installed or removed, and may then hang.
    fn needs_own_sampler(&self, backends: &BackendList, ours: &Arc<Backend>) -> bool {
        let can = |each: &Arc<Backend>| each.allocator.require_profiling().is_ok();
        let is_unseen = |each: &Arc<Backend>| is_second_jemalloc(each) && !is_it(each, ours);
        !ours.uses_jemalloc_hooks()
            && !backends.iter().any(can)
            && !backends.iter().any(is_unseen)
            && self.allocators.stripped_jemalloc().is_none()
    }

    /// Looks after memprof's sampler while it samples. False where it does not.
    pub(super) fn maintain_sampler(&self) -> bool {
        let backends = self.allocators.all();
        let ours = backends.iter().filter(|each| each.supports_own_sampler());
        ours.filter(|each| each.maintain()).count() > 0
    }
}

/// The one that memprof's sampler serves, of which there is one in a process: a jemalloc beside
/// `malloc`, which has the program's own heap, else the allocator of `malloc`.
fn own_sampler_backend(backends: &BackendList) -> Option<&Arc<Backend>> {
    let mut able = backends.iter().filter(|each| each.supports_own_sampler());
    let beside = able.clone().find(|each| is_second_jemalloc(each));
    beside.or_else(|| able.next())
}

fn is_second_jemalloc(each: &Arc<Backend>) -> bool {
    let identity = each.identity();
    identity.kind == AllocatorKind::Jemalloc && !identity.owns_malloc
}

fn is_it(each: &Arc<Backend>, one: &Arc<Backend>) -> bool {
    Arc::ptr_eq(each, one)
}
