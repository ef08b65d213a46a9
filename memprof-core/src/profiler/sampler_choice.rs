//! The choice of the sampler: each allocator's built-in one, or memprof's for the allocator that serves
//! `malloc`.

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
                if own.select(SamplerSelection::OwnFallback).is_ok() {
                    let is_needed = |each: &&Arc<Backend>| {
                        // One beside malloc is sampled together with it.
                        let is_sampled_too = !own.identity().owns_malloc && !Arc::ptr_eq(each, own);
                        !is_unused(each) && (!is_sampled_too || each.require_profiling().is_ok())
                    };
                    return Ok(backends.iter().filter(is_needed).cloned().collect());
                }
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

    /// Whether memprof's sampler is needed: the allocator that serves the program cannot be profiled, and memprof's
    /// would see what the program allocates; or a jemalloc that does not sample yet would leave threads out. Another
    /// allocator, such as a jemalloc of one library, changes nothing. Hooks are used only on request: jemalloc 5.3.1
    /// may hang after a thread ended that had not allocated since hooks were installed or removed, because it stays
    /// in jemalloc's list (`tsd_cleanup`).
    fn needs_own_sampler(&self, backends: &BackendList, own: &Arc<Backend>) -> bool {
        let mut others = backends.iter().filter(|each| !Arc::ptr_eq(each, own));
        let is_other_jemalloc = |each: &Arc<Backend>| {
            each.identity().kind == AllocatorKind::Jemalloc && serves_program_beside_malloc(each)
        };
        let jemalloc = own.allocator.jemalloc();
        let leaves_threads_out = jemalloc.is_some_and(Jemalloc::leaves_threads_out);
        let cannot_sample = own.allocator.require_profiling().is_err()
            || leaves_threads_out && !own.allocator.is_active();
        !own.uses_jemalloc_hooks()
            && cannot_sample
            && !others.any(is_other_jemalloc)
            && self.allocators.stripped_jemalloc().is_none()
    }

    /// Lets memprof's sampler intercept newly loaded libraries. Returns false while it does not sample.
    pub(super) fn maintain_sampler(&self) -> bool {
        let backends = self.allocators.all();
        let own = backends.iter().filter(|each| each.supports_own_sampler());
        own.filter(|each| each.maintain()).count() > 0
    }
}

/// The backend that memprof's sampler would sample, of which there is one per process: the one that it samples now, whose
/// samples another would lack; otherwise one beside `malloc` that has the program's own heap, otherwise the allocator of `malloc`, otherwise a jemalloc that can be hooked. `None` if it can
/// sample none.
fn own_sampler_backend(backends: &BackendList) -> Option<&Arc<Backend>> {
    let mut able = backends.iter().filter(|each| each.supports_own_sampler());
    let sampled = able
        .clone()
        .find(|each| each.sampler_status().is_some() && each.is_active());
    let is_used =
        |each: &Backend| each.identity().kind == AllocatorKind::Jemalloc || !is_small(each);
    let beside = able
        .clone()
        .find(|each| serves_program_beside_malloc(each) && is_used(each));
    let malloc = || able.clone().find(|each| each.identity().owns_malloc);
    sampled.or(beside).or_else(malloc).or_else(|| able.next())
}

/// Whether this is an allocator that does not serve `malloc`, but the program's own calls, as in Rust: the program
/// contains it. That of a library serves the library.
fn serves_program_beside_malloc(each: &Arc<Backend>) -> bool {
    let identity = each.identity();
    !identity.owns_malloc
        && identity.kind != AllocatorKind::Glibc
        && (identity.found_by == FoundBy::Host || is_program_code(identity.address))
}

/// Bytes that an allocator allocates for itself at its start, at most.
const MAX_UNUSED_BYTES: u64 = 1 << 20;

/// Whether an allocator cannot be profiled, and would show nothing if it could: a library's jemalloc that is not used.
fn is_unused(each: &Arc<Backend>) -> bool {
    !each.identity().owns_malloc && each.unprofilable_reason().is_some() && is_small(each)
}

/// Whether an allocator holds no more than it needs for itself; false if it keeps no count.
fn is_small(each: &Backend) -> bool {
    let allocated = match each.allocator.heap_usage() {
        Ok(Some(HeapUsage::Detailed(totals))) => totals.allocated,
        Ok(Some(HeapUsage::CommittedOnly { committed })) => committed,
        Ok(None) | Err(_) => u64::MAX,
    };
    allocated < MAX_UNUSED_BYTES
}
