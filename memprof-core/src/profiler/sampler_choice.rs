//! Chooses the sampler: each allocator's built-in one, or memprof's for the allocator that serves `malloc`.

use std::sync::Arc;

use super::Profiler;
use super::allocators::BackendList;
use crate::allocators::jemalloc::Jemalloc;
use crate::allocators::loaded_objects::is_program_code;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::FoundBy;
use crate::sampler::Backend;
use crate::sampler::SamplerSelection;
use memprof_messages::{AllocatorKind, HeapUsage, SamplerChoice};

impl Profiler {
    /// Selects the samplers for the next activation. Returns those of `backends` that are or could be sampled. With
    /// [`SamplerChoice::Auto`], memprof's sampler is selected only if the allocator that it would serve cannot sample
    /// all threads by itself, and only if memprof's can be used.
    ///
    /// # Errors
    /// Reason why memprof's sampler cannot be used although it was requested, or the error of an allocator that refused
    /// to stop sampling.
    pub(super) fn select_sampler(
        &self,
        backends: &BackendList,
        choice: SamplerChoice,
    ) -> Result<BackendList> {
        let own = select_own_sampler_backend(backends);
        match (choice, own) {
            (SamplerChoice::Auto, Some(own)) if self.needs_own_sampler(backends, own) => {
                self.deselect_own_sampler_except(own)?;
                // If memprof's sampler cannot be used, the allocators' own errors contain the remedies.
                if own.select_sampler(SamplerSelection::OwnFallback).is_ok() {
                    let is_needed = |each: &&Arc<Backend>| {
                        // If `own` does not serve malloc, the allocator of malloc is sampled together with it.
                        let is_sampled_too = !own.identity().owns_malloc && !Arc::ptr_eq(each, own);
                        !needs_no_profile(each)
                            && (!is_sampled_too || each.require_profiling().is_ok())
                    };
                    return Ok(backends.iter().filter(is_needed).cloned().collect());
                }
            }
            (SamplerChoice::Auto | SamplerChoice::Allocator, Some(_)) => {
                backends
                    .iter()
                    .try_for_each(|each| each.select_sampler(SamplerSelection::Allocator))?;
            }
            (SamplerChoice::Auto | SamplerChoice::Allocator, None) => {}
            (SamplerChoice::Memprof, Some(own)) => {
                self.deselect_own_sampler_except(own)?;
                own.select_sampler(SamplerSelection::OwnRequested)?;
                return Ok([Arc::clone(own)].into());
            }
            (SamplerChoice::Memprof, None) => {
                let message = "memprof's sampler serves the allocator of malloc, and a jemalloc that \
                               can be hooked, which none of these is";
                return Err(Error::new(ErrorKind::Unsupported, message)
                    .with_remedy("leave `allocator` out, or see `status`"));
            }
        }
        Ok(Arc::clone(backends))
    }

    /// Selects the configured sampler for all allocators. Undoes the selection of an activation. An error is only
    /// logged.
    pub(super) fn select_default_sampler(&self) {
        if let Err(error) =
            self.select_sampler(&self.allocators.all_backends(), self.settings.sampler)
        {
            log::debug!("{error}");
        }
    }

    /// Searches for allocators again, and selects the configured sampler, if `memprof attach` patched entry points
    /// since the last search. Does nothing while sampling is on.
    pub(super) fn refresh_interception(&self) {
        if !self.allocators.is_active() && self.allocators.is_outdated() {
            self.allocators.search_if_changed(&self.settings);
            self.select_default_sampler();
        }
    }

    /// Deselects memprof's sampler for all allocators except `own`, because a process has only one such sampler. Fails
    /// with the error of the first whose sampler refuses to stop.
    fn deselect_own_sampler_except(&self, own: &Arc<Backend>) -> Result<()> {
        let all = self.allocators.all_backends();
        let mut others = all.iter().filter(|each| !Arc::ptr_eq(each, own));
        others.try_for_each(|other| other.select_sampler(SamplerSelection::Allocator))
    }

    /// Returns whether memprof's sampler must serve `own`, the backend that it can sample. It must if `own` cannot
    /// profile by itself, or is a jemalloc that does not sample yet and would leave threads out.
    ///
    /// It must not if another jemalloc, or a stripped one, serves the program: the sampler would miss its allocations.
    /// Nor if it needs jemalloc's hooks, which are used only on request, because jemalloc 5.3.1 may hang afterwards: a
    /// thread that ends without having allocated since hooks were installed or removed stays in jemalloc's list of
    /// threads (`tsd_cleanup`).
    fn needs_own_sampler(&self, backends: &BackendList, own: &Arc<Backend>) -> bool {
        let mut others = backends.iter().filter(|each| !Arc::ptr_eq(each, own));
        let is_other_jemalloc = |each: &Arc<Backend>| {
            each.identity().kind == AllocatorKind::Jemalloc && serves_program_beside_malloc(each)
        };
        let jemalloc = own.allocator.as_jemalloc();
        let may_skip_threads = jemalloc.is_some_and(Jemalloc::may_skip_threads);
        let cannot_sample = own.allocator.require_profiling().is_err()
            || may_skip_threads && !own.allocator.is_active();
        !own.uses_jemalloc_hooks()
            && cannot_sample
            && !others.any(is_other_jemalloc)
            && self.allocators.stripped_jemalloc().is_none()
    }

    /// Makes memprof's sampler intercept newly loaded libraries, whichever allocator it samples. Returns false while it
    /// does not sample.
    pub(super) fn maintain_sampler(&self) -> bool {
        let backends = self.allocators.all_backends();
        let own = backends.iter().filter(|each| each.supports_own_sampler());
        // Counted, because each must be maintained: `any` would stop at the first that samples.
        own.filter(|each| each.maintain_interception()).count() > 0
    }
}

/// Selects the backend (allocator) for memprof's sampler, of which a process has only one. In order of preference: the
/// backend that it samples now, because its samples would be dropped; an allocator with the program's own heap that
/// does not serve `malloc`; the allocator of `malloc`; a jemalloc that can be hooked. `None` if the sampler can sample
/// none of them.
fn select_own_sampler_backend(backends: &BackendList) -> Option<&Arc<Backend>> {
    let mut able = backends.iter().filter(|each| each.supports_own_sampler());
    let sampled = able
        .clone()
        .find(|each| each.sampler_status().is_some() && each.is_active());
    let is_used = |each: &Backend| {
        each.identity().kind == AllocatorKind::Jemalloc || !holds_only_own_memory(each)
    };
    let beside = able
        .clone()
        .find(|each| serves_program_beside_malloc(each) && is_used(each));
    let malloc = || able.clone().find(|each| each.identity().owns_malloc);
    sampled.or(beside).or_else(malloc).or_else(|| able.next())
}

/// Whether the program's own calls use this allocator although it does not serve `malloc`, as in Rust. They do if the
/// program contains it, or passed it to memprof. An allocator inside a library serves only that library.
fn serves_program_beside_malloc(each: &Arc<Backend>) -> bool {
    let identity = each.identity();
    !identity.owns_malloc
        && identity.kind != AllocatorKind::Glibc
        && (identity.found_by == FoundBy::Host || is_program_code(identity.address))
}

/// Maximum number of bytes that an allocator allocates for its own use at its start.
const MAX_UNUSED_BYTES: u64 = 1 << 20;

/// Whether a profile of an allocator is neither possible nor needed: it cannot be profiled, does not serve `malloc`,
/// and holds nothing, like the unused jemalloc of a library.
fn needs_no_profile(each: &Arc<Backend>) -> bool {
    !each.identity().owns_malloc
        && each.unprofilable_reason().is_some()
        && holds_only_own_memory(each)
}

/// Whether an allocator holds less than [`MAX_UNUSED_BYTES`], so no more memory than it allocates for itself at its
/// start. False if it keeps no count.
fn holds_only_own_memory(each: &Backend) -> bool {
    let allocated = match each.allocator.heap_usage() {
        Ok(Some(HeapUsage::Detailed(totals))) => totals.allocated,
        Ok(Some(HeapUsage::CommittedOnly { committed })) => committed,
        Ok(None) | Err(_) => u64::MAX,
    };
    allocated < MAX_UNUSED_BYTES
}
