//! The choice of the sampler: each allocator's built-in one, or memprof's for the allocator that serves
//! `malloc`.

use std::sync::Arc;

use super::Profiler;
use super::allocators::BackendList;
use crate::error::{Error, ErrorKind, Result};
use crate::sampler::Backend;
use crate::sampler::SamplerSelection;
use memprof_messages::{AllocatorKind, SamplerChoice};

impl Profiler {
    /// Selects the samplers for the next activation, and returns those of `backends` that are or could be
    /// sampled.
    ///
    /// # Errors
    /// Reason why memprof's sampler cannot be used, if it was requested; or an allocator refused to stop
    /// sampling.
    pub(super) fn select_sampler(
        &self,
        backends: &BackendList,
        choice: SamplerChoice,
    ) -> Result<BackendList> {
        let own = own_sampler_backend(backends);
        match (choice, own) {
            (SamplerChoice::Auto, Some(own)) if self.needs_own_sampler(backends, own) => {
                self.deselect_others(own)?;
                // If it cannot be used, the allocators' own errors say what would help.
                let _refused = own.select(SamplerSelection::OwnFallback);
            }
            (SamplerChoice::Auto | SamplerChoice::Allocator, Some(_)) => {
                backends
                    .iter()
                    .try_for_each(|each| each.select(SamplerSelection::Allocator))?;
            }
            (SamplerChoice::Auto | SamplerChoice::Allocator, None) => {}
            (SamplerChoice::Memprof, Some(own)) => {
                self.deselect_others(own)?;
                own.select(SamplerSelection::OwnRequested)?;
                return Ok([Arc::clone(own)].into());
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

    /// Selects the configured sampler for all allocators, as before any activation. An error is only logged.
    pub(super) fn select_default_sampler(&self) {
        if let Err(error) = self.select_sampler(&self.allocators.all(), self.settings.sampler) {
            log::debug!("{error}");
        }
    }

    /// Searches for allocators again if `memprof attach` has patched entry points since the last search, unless
    /// sampling is on.
    pub(super) fn refresh_interception(&self) {
        if !self.allocators.is_active() && self.allocators.is_outdated() {
            self.allocators.refresh(&self.settings);
            self.select_default_sampler();
        }
    }

    /// Deselects memprof's sampler for all other allocators, because a process has only one.
    fn deselect_others(&self, own: &Arc<Backend>) -> Result<()> {
        let all = self.allocators.all();
        let mut others = all.iter().filter(|each| !Arc::ptr_eq(each, own));
        others.try_for_each(|other| other.select(SamplerSelection::Allocator))
    }

    /// Whether memprof's sampler is needed: no allocator can be profiled, and memprof's would see what the
    /// program allocates. That is not so if a jemalloc beside `malloc`, which cannot be hooked, serves the
    /// program under another name. Hooks are used only on request: jemalloc (5.3.1, `tsd_cleanup`) does not
    /// remove a thread from its list that ends without an allocation since hooks were installed or removed,
    /// and may then hang.
    fn needs_own_sampler(&self, backends: &BackendList, own: &Arc<Backend>) -> bool {
        let can_profile = |each: &Arc<Backend>| each.allocator.require_profiling().is_ok();
        let is_unhooked_jemalloc =
            |each: &Arc<Backend>| is_second_jemalloc(each) && !Arc::ptr_eq(each, own);
        !own.uses_jemalloc_hooks()
            && !backends.iter().any(can_profile)
            && !backends.iter().any(is_unhooked_jemalloc)
            && self.allocators.stripped_jemalloc().is_none()
    }

    /// Lets memprof's sampler intercept newly loaded libraries. Returns false while it does not sample.
    pub(super) fn maintain_sampler(&self) -> bool {
        let backends = self.allocators.all();
        let own = backends.iter().filter(|each| each.supports_own_sampler());
        own.filter(|each| each.maintain()).count() > 0
    }
}

/// The backend that memprof's sampler would sample, of which there is one per process: a jemalloc beside
/// `malloc`, because it has the program's own heap, otherwise the allocator of `malloc`. `None` if it can sample
/// neither.
fn own_sampler_backend(backends: &BackendList) -> Option<&Arc<Backend>> {
    let mut able = backends.iter().filter(|each| each.supports_own_sampler());
    let beside = able.clone().find(|each| is_second_jemalloc(each));
    beside.or_else(|| able.next())
}

/// Whether this is a jemalloc that does not serve `malloc`.
fn is_second_jemalloc(each: &Arc<Backend>) -> bool {
    let identity = each.identity();
    identity.kind == AllocatorKind::Jemalloc && !identity.owns_malloc
}
