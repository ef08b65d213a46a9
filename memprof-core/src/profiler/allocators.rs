//! The allocators of the process, and the selection of those to which a message applies.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::ProfilerSettings;
use crate::allocators::discover::{DiscoveredAllocators, discover_allocators};
use crate::allocators::loaded_objects;
use crate::allocators::stripped_jemalloc;
use crate::allocators::unprofilable::Unprofilable;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::sampler::Backend;
use memprof_messages::{AllocatorKind, ProfileKind};

/// Some or all allocators of the process, each with its sampler.
pub(super) type BackendList = Arc<[Arc<Backend>]>;

/// The allocators that the most recent search found.
#[derive(Debug)]
pub(super) struct Allocators(Mutex<FoundBackends>);

/// Result of a search, and the number of libraries that had been loaded before it.
#[derive(Debug)]
struct FoundBackends {
    backends: BackendList,
    unknown_malloc: Option<PathBuf>,
    load_count: u64,
    /// Fingerprints of objects without allocators, as in [`DiscoveredAllocators::without_allocators`].
    without_allocators: Arc<[u64]>,
    /// File of the program, if it contains a stripped jemalloc. The outer `None` means that this was not searched yet.
    /// The search reads the whole file, so it waits until the answer is needed.
    stripped_jemalloc: Option<Option<PathBuf>>,
}

impl FoundBackends {
    /// Searches for allocators. Creates a backend (allocator with its sampler) for each, but reuses those of `known`
    /// unless they can now be intercepted by another method. Skips objects with fingerprints in `without_allocators`.
    fn find_all(
        settings: &ProfilerSettings,
        known: &[Arc<Backend>],
        without_allocators: &[u64],
    ) -> Self {
        // Read before the search, so that a library loaded during it causes another one.
        let load_count = loaded_objects::load_count();
        let DiscoveredAllocators {
            allocators,
            unknown_malloc,
            without_allocators,
        } = discover_allocators(
            settings.host,
            settings.own_image,
            settings.readers,
            without_allocators,
        );
        let backends = allocators.into_iter().map(|allocator| {
            let address = allocator.identity().address;
            let mut known = known.iter();
            let same = known
                .find(|each| each.identity().address == address && !each.has_new_interception());
            same.map_or_else(
                || Arc::new(Backend::new(allocator, settings.interval)),
                Arc::clone,
            )
        });
        Self {
            backends: backends.collect(),
            unknown_malloc,
            load_count,
            without_allocators: without_allocators.into(),
            stripped_jemalloc: None,
        }
    }
}

impl Allocators {
    /// Searches for allocators in all loaded objects, and creates their backends.
    pub(super) fn find_all(settings: &ProfilerSettings) -> Self {
        Self(Mutex::new(FoundBackends::find_all(settings, &[], &[])))
    }

    /// Searches for allocators again if a library was loaded since the last search, or if one can now be intercepted by
    /// another method.
    pub(super) fn search_if_changed(&self, settings: &ProfilerSettings) {
        loop {
            let (known, load_count, without_allocators) = {
                let found = lock(&self.0);
                let without_allocators = Arc::clone(&found.without_allocators);
                (
                    Arc::clone(&found.backends),
                    found.load_count,
                    without_allocators,
                )
            };
            if load_count == loaded_objects::load_count() && !is_outdated(&known) {
                return;
            }
            let found = FoundBackends::find_all(settings, &known, &without_allocators);
            if self.store_unless_replaced(found, &known) {
                return;
            }
        }
    }

    /// Stores the result of a search that reused the backends `known`. Returns false and stores nothing if another
    /// thread has replaced these since: an allocator would then have a second backend, without the sampler's state.
    fn store_unless_replaced(&self, found: FoundBackends, known: &BackendList) -> bool {
        let mut stored = lock(&self.0);
        let is_current = Arc::ptr_eq(&stored.backends, known);
        if is_current {
            *stored = found;
        }
        is_current
    }

    /// Whether `memprof attach` patched an allocator's entry points since the last search.
    pub(super) fn is_outdated(&self) -> bool {
        is_outdated(&self.all_backends())
    }

    /// All allocators of the most recent search.
    pub(super) fn all_backends(&self) -> BackendList {
        Arc::clone(&lock(&self.0).backends)
    }

    /// Whether some allocator is being sampled, by its own sampler or by memprof's.
    pub(super) fn is_active(&self) -> bool {
        self.all_backends().iter().any(|each| each.is_active())
    }

    /// File of the `malloc` that serves the process. `None` if it belongs to a known allocator.
    pub(super) fn unknown_malloc(&self) -> Option<PathBuf> {
        lock(&self.0).unknown_malloc.clone()
    }

    /// File of the program, if it contains a stripped jemalloc, whose allocations no profile shows. `None` if it does
    /// not. The first call searches the file.
    pub(super) fn stripped_jemalloc(&self) -> Option<PathBuf> {
        let (known, backends) = {
            let found = lock(&self.0);
            (found.stripped_jemalloc.clone(), Arc::clone(&found.backends))
        };
        // Searched without holding the lock: a child that is forked during the search would inherit a locked lock.
        known.unwrap_or_else(|| {
            let jemallocs = backends
                .iter()
                .filter_map(|each| each.allocator.as_jemalloc());
            let path = stripped_jemalloc::find_stripped_jemalloc(
                jemallocs.map(|each| each.mallctl.address()),
            );
            let mut found = lock(&self.0);
            // Another thread's search may have found a jemalloc in the program meanwhile.
            if Arc::ptr_eq(&found.backends, &backends) {
                found.stripped_jemalloc = Some(path.clone());
            }
            path
        })
    }

    /// Selects the allocators to which a message applies. If it names a kind, `named`, these are the allocators of that
    /// kind. If `named` is `None`, they are the allocator that serves `malloc`, every jemalloc (which may serve the
    /// program under another name), and each allocator that memprof's sampler can sample or that is being sampled.
    ///
    /// # Errors
    /// `Unsupported`: the process has no such allocator.
    pub(super) fn select_backends(&self, named: Option<AllocatorKind>) -> Result<BackendList> {
        let Some(kind) = named else {
            return self.default_backends().map_err(Error::from);
        };
        let backends = self.all_backends();
        let is_named = |each: &&Arc<Backend>| each.identity().kind == kind;
        let selected: BackendList = backends.iter().filter(is_named).cloned().collect();
        if selected.is_empty() {
            let message = format!("this process has no {kind} that memprof can find");
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_remedy("send `status` for the allocators there are"));
        }
        Ok(selected)
    }

    /// Selects the allocators for a message that names no kind: the one that serves `malloc`, every jemalloc, and each
    /// that memprof's sampler can sample or that is being sampled. Fails with the reason if there are none.
    fn default_backends(&self) -> std::result::Result<BackendList, Unprofilable> {
        let backends = self.all_backends();
        let is_default = |each: &&Arc<Backend>| {
            let identity = each.identity();
            identity.owns_malloc
                || identity.kind == AllocatorKind::Jemalloc
                || each.supports_own_sampler()
                || each.is_active()
        };
        let selected: BackendList = backends.iter().filter(is_default).cloned().collect();
        match selected.is_empty() {
            false => Ok(selected),
            true => Err(match (self.stripped_jemalloc(), self.unknown_malloc()) {
                (Some(program), _) => Unprofilable::StrippedJemalloc(program),
                (None, Some(path)) => Unprofilable::UnknownMalloc(path),
                (None, None) => Unprofilable::no_profiler(None),
            }),
        }
    }

    /// Reason why no default allocator can be profiled. `None` if one can.
    pub(super) fn default_unprofilable_reason(&self) -> Option<Unprofilable> {
        match self.default_backends() {
            Ok(backends) => self.unprofilable_reason(&backends),
            Err(reason) => Some(reason),
        }
    }

    /// Reason why none of these allocators can be profiled: that the program contains a stripped jemalloc if it does,
    /// otherwise the reason of the first allocator. `None` if one can.
    fn unprofilable_reason(&self, backends: &[Arc<Backend>]) -> Option<Unprofilable> {
        let mut reasons = backends.iter().map(|each| each.unprofilable_reason());
        let first = reasons.next()??;
        if reasons.any(|reason| reason.is_none()) {
            return None;
        }
        Some(
            self.stripped_jemalloc()
                .map_or(first, Unprofilable::StrippedJemalloc),
        )
    }

    /// Fails unless one of the allocators can write a profile of this kind.
    ///
    /// # Errors
    /// The reason why the first allocator cannot.
    pub(super) fn require_profile_kind(
        &self,
        backends: &[Arc<Backend>],
        kind: ProfileKind,
    ) -> Result<()> {
        match kind {
            ProfileKind::Heap => self
                .unprofilable_reason(backends)
                .map_or(Ok(()), |reason| Err(reason.into())),
            ProfileKind::Growth | ProfileKind::Pinned => {
                let mut results = backends.iter().map(|each| each.require_profile_kind(kind));
                let Some(Err(first)) = results.next() else {
                    return Ok(());
                };
                results.find_map(Result::ok).ok_or(first)
            }
        }
    }
}

/// Whether one of these allocators can now be intercepted by another method than the one found first.
fn is_outdated(backends: &[Arc<Backend>]) -> bool {
    backends.iter().any(|each| each.has_new_interception())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::fake::{Behaviour, fake_mallctl};
    use crate::profiler::tests::new_profiler;

    struct Fake;
    impl Behaviour for Fake {}

    #[test]
    fn later_of_two_simultaneous_searches_replaces_no_backend() {
        let (profiler, _directory) = new_profiler(Some(fake_mallctl::<Fake>()));
        let (allocators, settings) = (&profiler.allocators, &profiler.settings);
        let known = allocators.all_backends();
        // As in a search that finds a new allocator.
        let search = || FoundBackends::find_all(settings, &[], &[]);
        assert!(allocators.store_unless_replaced(search(), &known));
        let first = allocators.all_backends();
        assert!(!Arc::ptr_eq(&first[0], &known[0]));
        assert!(!allocators.store_unless_replaced(search(), &known));
        assert!(Arc::ptr_eq(&allocators.all_backends(), &first));
    }
}
