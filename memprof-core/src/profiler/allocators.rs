//! The allocators of the process, and which of them a message acts on.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::ProfilerSettings;
use crate::allocators::discover::{Discovered, discover};
use crate::allocators::loaded_objects;
use crate::allocators::stripped_jemalloc;
use crate::allocators::unprofilable::Unprofilable;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::sampler::Backend;
use memprof_messages::{AllocatorKind, ProfileKind};

/// Some or all allocators of the process.
pub(super) type BackendList = Arc<[Arc<Backend>]>;

/// The allocators that were found last.
#[derive(Debug)]
pub(super) struct Allocators(Mutex<FoundBackends>);

/// The allocators, and how many libraries had been loaded when they were looked for.
#[derive(Debug)]
struct FoundBackends {
    backends: BackendList,
    unknown_malloc: Option<PathBuf>,
    load_count: u64,
    /// [`Discovered::without_allocators`].
    without_allocators: Arc<[u64]>,
    /// The program's file, where it contains a jemalloc that cannot be driven; unknown until it is
    /// asked for, because the whole file is read.
    undrivable: Option<Option<PathBuf>>,
}

impl FoundBackends {
    /// `known` are the allocators that were found before: they stay what they are. Objects that are known to be
    /// `without_allocators` are not searched again.
    fn find_all(
        settings: &ProfilerSettings,
        known: &[Arc<Backend>],
        without_allocators: &[u64],
    ) -> Self {
        let load_count = loaded_objects::load_count();
        let Discovered {
            allocators,
            unknown_malloc,
            without_allocators,
        } = discover(
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
            undrivable: None,
        }
    }
}

impl Allocators {
    pub(super) fn find_all(settings: &ProfilerSettings) -> Self {
        Self(Mutex::new(FoundBackends::find_all(settings, &[], &[])))
    }

    /// An allocator may have come with a library that was loaded since.
    pub(super) fn refresh(&self, settings: &ProfilerSettings) {
        let (known, without_allocators) = {
            let found = lock(&self.0);
            (found.load_count, Arc::clone(&found.without_allocators))
        };
        if known != loaded_objects::load_count() || self.is_outdated() {
            let found = FoundBackends::find_all(settings, &self.all(), &without_allocators);
            *lock(&self.0) = found;
        }
    }

    /// Whether `memprof attach` has made one of them known to memprof's sampler since it was found.
    pub(super) fn is_outdated(&self) -> bool {
        self.all().iter().any(|each| each.has_new_interception())
    }

    /// All of them.
    pub(super) fn all(&self) -> BackendList {
        Arc::clone(&lock(&self.0).backends)
    }

    /// Whether one of them samples.
    pub(super) fn is_active(&self) -> bool {
        self.all().iter().any(|each| each.is_active())
    }

    /// The file whose `malloc` serves the process, where that is none of them.
    pub(super) fn unknown_malloc(&self) -> Option<PathBuf> {
        lock(&self.0).unknown_malloc.clone()
    }

    /// The program's file, where it contains a jemalloc that no profile shows.
    pub(super) fn stripped_jemalloc(&self) -> Option<PathBuf> {
        let (known, backends) = {
            let found = lock(&self.0);
            (found.undrivable.clone(), Arc::clone(&found.backends))
        };
        // Not while the lock is held: a child that is forked meanwhile would never get it.
        known.unwrap_or_else(|| {
            let jemallocs = backends.iter().filter_map(|each| each.allocator.jemalloc());
            let path = stripped_jemalloc::find_stripped_jemalloc(
                jemallocs.map(|each| each.mallctl.address()),
            );
            lock(&self.0).undrivable = Some(path.clone());
            path
        })
    }

    /// The allocators that a message acts on: those of the kind that it names; else the one that
    /// serves `malloc`, every jemalloc, which may serve the program by another name, and every one
    /// that samples.
    ///
    /// # Errors
    /// `Unsupported`: there is none of that kind, or none at all.
    pub(super) fn backends_for(&self, named: Option<AllocatorKind>) -> Result<BackendList> {
        let Some(kind) = named else {
            return self.default_backends().map_err(Error::from);
        };
        let backends = self.all();
        let is_named = |each: &&Arc<Backend>| each.identity().kind == kind;
        let driven: BackendList = backends.iter().filter(is_named).cloned().collect();
        if driven.is_empty() {
            let message = format!("this process has no {kind} that memprof can find");
            return Err(Error::new(ErrorKind::Unsupported, message)
                .remedy("send `status` for the allocators there are"));
        }
        Ok(driven)
    }

    /// Those that a message acts on which names none.
    fn default_backends(&self) -> std::result::Result<BackendList, Unprofilable> {
        let backends = self.all();
        let is_driven = |each: &&Arc<Backend>| {
            let identity = each.identity();
            identity.owns_malloc || identity.kind == AllocatorKind::Jemalloc || each.is_active()
        };
        let driven: BackendList = backends.iter().filter(is_driven).cloned().collect();
        match driven.is_empty() {
            false => Ok(driven),
            true => Err(match (self.stripped_jemalloc(), self.unknown_malloc()) {
                (Some(program), _) => Unprofilable::StrippedJemalloc(program),
                (None, Some(path)) => Unprofilable::UnknownMalloc(path),
                (None, None) => Unprofilable::no_profiler(None),
            }),
        }
    }

    /// Why profiling cannot be on, unless an allocator is named.
    pub(super) fn default_unprofilable_reason(&self) -> Option<Unprofilable> {
        match self.default_backends() {
            Ok(served) => self.unprofilable_reason(&served),
            Err(why) => Some(why),
        }
    }

    /// Why none of these can be profiled, where none can: as the first of them says, or because the
    /// program's own jemalloc is not among them.
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

    /// Whether one of them can take a profile of that kind.
    ///
    /// # Errors
    /// Why the first cannot.
    pub(super) fn require_profile(
        &self,
        backends: &[Arc<Backend>],
        kind: ProfileKind,
    ) -> Result<()> {
        match kind {
            ProfileKind::Heap => self
                .unprofilable_reason(backends)
                .map_or(Ok(()), |why| Err(why.into())),
            ProfileKind::Growth | ProfileKind::Pinned => {
                let mut able = backends.iter().map(|each| each.require_profile(kind));
                let Some(Err(first)) = able.next() else {
                    return Ok(());
                };
                able.find_map(Result::ok).ok_or(first)
            }
        }
    }
}
