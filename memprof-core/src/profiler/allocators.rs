//! The allocators of the process, and which of them a message acts on.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::Settings;
use crate::allocators::discover::{Discovered, discover};
use crate::allocators::embedded;
use crate::allocators::objects;
use crate::allocators::refusal::WhyNot;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::sampler::Driven;
use memprof_messages::{Kind, ProfileKind};

/// Some or all allocators of the process.
pub(super) type Backends = Arc<[Arc<Driven>]>;

/// The allocators that were found last.
#[derive(Debug)]
pub(super) struct Allocators(Mutex<Found>);

/// The allocators, and how many libraries had been loaded when they were looked for.
#[derive(Debug)]
struct Found {
    backends: Backends,
    stranger: Option<PathBuf>,
    load_count: u64,
    /// [`Discovered::barren`].
    barren: Arc<[u64]>,
    /// The program's file, where it contains a jemalloc that cannot be driven; unknown until it is
    /// asked for, because the whole file is read.
    undrivable: Option<Option<PathBuf>>,
}

impl Found {
    /// `known` are the allocators that were found before: they stay what they are. Objects that are known to be
    /// `barren` are not searched again.
    fn look(settings: &Settings, known: &[Arc<Driven>], barren: &[u64]) -> Self {
        let load_count = objects::load_count();
        let Discovered {
            allocators,
            stranger,
            barren,
        } = discover(settings.host, settings.own_image, settings.readers, barren);
        let backends = allocators.into_iter().map(|allocator| {
            let address = allocator.identity().address;
            let mut known = known.iter();
            let same = known.find(|each| each.identity().address == address && !each.is_outdated());
            same.map_or_else(
                || Arc::new(Driven::new(allocator, settings.interval)),
                Arc::clone,
            )
        });
        Self {
            backends: backends.collect(),
            stranger,
            load_count,
            barren: barren.into(),
            undrivable: None,
        }
    }
}

impl Allocators {
    pub(super) fn look(settings: &Settings) -> Self {
        Self(Mutex::new(Found::look(settings, &[], &[])))
    }

    /// An allocator may have come with a library that was loaded since.
    pub(super) fn look_again(&self, settings: &Settings) {
        let (known, barren) = {
            let found = lock(&self.0);
            (found.load_count, Arc::clone(&found.barren))
        };
        if known != objects::load_count() || self.is_outdated() {
            let found = Found::look(settings, &self.all(), &barren);
            *lock(&self.0) = found;
        }
    }

    /// Whether `memprof attach` has made one of them known to memprof's sampler since it was found.
    pub(super) fn is_outdated(&self) -> bool {
        self.all().iter().any(|each| each.is_outdated())
    }

    /// All of them.
    pub(super) fn all(&self) -> Backends {
        Arc::clone(&lock(&self.0).backends)
    }

    /// Whether one of them samples.
    pub(super) fn is_active(&self) -> bool {
        self.all().iter().any(|each| each.is_active())
    }

    /// The file whose `malloc` serves the process, where that is none of them.
    pub(super) fn unknown_malloc(&self) -> Option<PathBuf> {
        lock(&self.0).stranger.clone()
    }

    /// The program's file, where it contains a jemalloc that no profile shows.
    pub(super) fn undrivable(&self) -> Option<PathBuf> {
        let (known, backends) = {
            let found = lock(&self.0);
            (found.undrivable.clone(), Arc::clone(&found.backends))
        };
        // Not while the lock is held: a child that is forked meanwhile would never get it.
        known.unwrap_or_else(|| {
            let jemallocs = backends.iter().filter_map(|each| each.allocator.jemalloc());
            let path = embedded::undrivable(jemallocs.map(|each| each.mallctl.address()));
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
    pub(super) fn driven(&self, named: Option<Kind>) -> Result<Backends> {
        let Some(kind) = named else {
            return self.served().map_err(Error::from);
        };
        let backends = self.all();
        let is_named = |each: &&Arc<Driven>| each.identity().kind == kind;
        let driven: Backends = backends.iter().filter(is_named).cloned().collect();
        if driven.is_empty() {
            let message = format!("this process has no {kind} that memprof can find");
            return Err(Error::new(ErrorKind::Unsupported, message)
                .remedy("send `status` for the allocators there are"));
        }
        Ok(driven)
    }

    /// Those that a message acts on which names none.
    fn served(&self) -> std::result::Result<Backends, WhyNot> {
        let backends = self.all();
        let is_driven = |each: &&Arc<Driven>| {
            let identity = each.identity();
            identity.owns_malloc || identity.kind == Kind::Jemalloc || each.is_active()
        };
        let driven: Backends = backends.iter().filter(is_driven).cloned().collect();
        match driven.is_empty() {
            false => Ok(driven),
            true => Err(match (self.undrivable(), self.unknown_malloc()) {
                (Some(program), _) => WhyNot::Undrivable(program),
                (None, Some(path)) => WhyNot::UnknownMalloc(path),
                (None, None) => WhyNot::no_profiler(None),
            }),
        }
    }

    /// Why profiling cannot be on, unless an allocator is named.
    pub(super) fn why_not_any(&self) -> Option<WhyNot> {
        match self.served() {
            Ok(served) => self.why_not(&served),
            Err(why) => Some(why),
        }
    }

    /// Why none of these can be profiled, where none can: as the first of them says, or because the
    /// program's own jemalloc is not among them.
    fn why_not(&self, backends: &[Arc<Driven>]) -> Option<WhyNot> {
        let mut reasons = backends.iter().map(|each| each.why_not());
        let first = reasons.next()??;
        if reasons.any(|reason| reason.is_none()) {
            return None;
        }
        Some(self.undrivable().map_or(first, WhyNot::Undrivable))
    }

    /// Whether one of them can take a profile of that kind.
    ///
    /// # Errors
    /// Why the first cannot.
    pub(super) fn require_profile(
        &self,
        backends: &[Arc<Driven>],
        kind: ProfileKind,
    ) -> Result<()> {
        match kind {
            ProfileKind::Heap => self.why_not(backends).map_or(Ok(()), |why| Err(why.into())),
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
