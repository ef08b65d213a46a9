//! An allocator with memprof's sampler in the place of its profiler.
#![expect(unsafe_code, reason = "a handler of fork")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once};

use memprof_sampler::{Refused, Role};

use super::{SamplerStatus, Samples, Slots, profile};
use crate::allocators::backend::Backend;
use crate::allocators::interval::SampleInterval;
use crate::allocators::jemalloc::{Jemalloc, Sampled};
use crate::allocators::objects::{self, Reading};
use crate::allocators::printout::{PrintOptions, Printout};
use crate::allocators::stats::Totals;
use crate::dumps::heap::Summary;
use crate::dumps::scratch::Scratch;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::{Identity, ProfileKind};
use crate::lock::lock;
use crate::unwinder::prepare_walks;

/// As jemalloc's and tcmalloc's own.
const DEFAULT_INTERVAL: u64 = 512 << 10;

/// The allocator with the sampler before it, where it is the one that serves `malloc`.
pub(crate) fn before(allocator: Arc<dyn Backend>) -> Arc<dyn Backend> {
    if !allocator.identity().owns_malloc {
        return allocator;
    }
    Arc::new(WithSampler {
        sampler: Sampler::find(allocator.identity()).map(Mutex::new),
        allocator,
        interval: AtomicU64::new(DEFAULT_INTERVAL),
    })
}

/// An allocator, and the sampler before it.
#[derive(Debug)]
pub(crate) struct WithSampler {
    allocator: Arc<dyn Backend>,
    /// Or why it cannot serve this process.
    sampler: Result<Mutex<Sampler>>,
    /// What the sampler samples at, or did last.
    interval: AtomicU64,
}

/// The slots of the process, and what is done with them.
#[derive(Debug)]
struct Sampler {
    slots: memprof_sampler::Slots,
    samples: Samples,
    seen: Slots,
    /// Libraries loaded and unloaded when slots were taken last.
    loaded: (u64, u64),
}

impl WithSampler {
    /// Without the sampler.
    pub(crate) fn allocator(&self) -> &dyn Backend {
        &*self.allocator
    }

    /// Settles whether it samples from the next activation on.
    ///
    /// # Errors
    /// Why it cannot serve this process; the allocator refused to be switched off.
    pub(crate) fn choose(&self, samples: Samples) -> Result<()> {
        let sampler = match (&self.sampler, samples) {
            (Ok(sampler), _) => sampler,
            (Err(_), Samples::Not) => return Ok(()),
            (Err(error), _) => return Err(error.clone()),
        };
        let before = std::mem::replace(&mut lock(sampler).samples, samples);
        match (before, samples) {
            (Samples::Not, Samples::InPlace | Samples::Asked) => self.allocator.deactivate(),
            (Samples::InPlace | Samples::Asked, Samples::Not) => lock(sampler).stop(),
            (Samples::Not, Samples::Not)
            | (Samples::InPlace | Samples::Asked, Samples::InPlace | Samples::Asked) => Ok(()),
        }
    }

    /// What it did, where it samples or would.
    pub(crate) fn status(&self) -> Option<SamplerStatus> {
        let sampler = self.chosen()?;
        let counts = memprof_sampler::counts();
        Some(SamplerStatus {
            slots: sampler.seen,
            samples: counts.samples,
            live_samples: counts.live_samples,
            lost: counts.lost,
            table_bytes: counts.table_bytes,
        })
    }

    /// Takes the slots of libraries that were loaded since. False where it does not sample.
    pub(crate) fn tend(&self) -> bool {
        let Some(mut sampler) = self.chosen() else {
            return false;
        };
        let is_active = memprof_sampler::interval() > 0;
        if is_active
            && sampler.loaded != objects::load_and_unload_count()
            && let Err(error) = sampler.take_slots()
        {
            log::warn!("libraries that were loaded since are not sampled: {error}");
        }
        is_active
    }

    /// The sampler, where it samples or would.
    fn chosen(&self) -> Option<MutexGuard<'_, Sampler>> {
        let sampler = lock(self.sampler.as_ref().ok()?);
        (sampler.samples != Samples::Not).then_some(sampler)
    }
}

impl Sampler {
    /// # Errors
    /// `Unsupported`: why it cannot serve this process.
    fn find(allocator: &Identity) -> Result<Self> {
        let unsupported = |message: String| Error::new(ErrorKind::Unsupported, message);
        prepare_walks().map_err(|why| unsupported(format!("memprof cannot sample here: {why}")))?;
        let _reading = Reading::begin();
        let slots = memprof_sampler::Slots::find().ok_or_else(|| {
            unsupported("memprof cannot sample here: no object defines malloc".to_owned())
        })?;
        if slots.owner().is_program {
            let message = format!(
                "{allocator} is linked into the program, whose own calls memprof's sampler cannot see"
            );
            return Err(unsupported(message));
        }
        if !slots.can_be_taken() {
            return Err(unsupported(
                "memprof cannot sample here: its library is not the only one of its kind"
                    .to_owned(),
            ));
        }
        Ok(Self {
            seen: Slots {
                // What the parent of a forked child took.
                patched: slots.count(),
                ..Slots::default()
            },
            slots,
            samples: Samples::Not,
            loaded: (0, 0),
        })
    }

    /// Takes the slots of all objects that are loaded now.
    fn take_slots(&mut self) -> Result<()> {
        self.loaded = objects::load_and_unload_count();
        memprof_unwind::forget_rules();
        let _reading = Reading::begin();
        let patched = self.slots.take().ok_or_else(loader_refused)?;
        self.seen = Slots {
            patched: patched.patched,
            foreign: patched.foreign,
            refused: patched.refused,
        };
        Ok(())
    }

    /// Gives back what only allocations need; while nothing that was sampled lives, all.
    fn give_slots_back(&mut self) -> Result<()> {
        let role = (memprof_sampler::counts().live_samples > 0).then_some(Role::Allocates);
        let _reading = Reading::begin();
        self.slots.give_back(role).ok_or_else(loader_refused)?;
        self.seen.patched = self.slots.count();
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        memprof_sampler::stop();
        self.give_slots_back()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        memprof_sampler::stop();
        if self.slots.count() > 0 && self.slots.give_back(None).is_none() {
            log::warn!("calls of malloc go on through memprof's sampler, which is off");
        }
    }
}

fn loader_refused() -> Error {
    let message = "the calls of malloc cannot be patched: the loader does not let memprof";
    Error::new(ErrorKind::Unavailable, message)
}

fn refused(refused: Refused) -> Error {
    match refused {
        Refused::NoMemory => {
            Error::new(ErrorKind::Io, "failed to map the sampler's tables: ENOMEM")
        }
        Refused::InUse => Error::new(
            ErrorKind::Busy,
            "a thread has been inside of memprof's sampler for a second",
        )
        .remedy("try again; a debugger may hold the thread"),
    }
}

impl Backend for WithSampler {
    fn identity(&self) -> &Identity {
        self.allocator.identity()
    }

    fn require_profiling(&self) -> Result<()> {
        match self.chosen() {
            Some(_) => Ok(()),
            None => self.allocator.require_profiling(),
        }
    }

    fn require_profile(&self, kind: ProfileKind) -> Result<()> {
        match kind {
            ProfileKind::Heap => self.require_profiling(),
            ProfileKind::Growth => self.allocator.require_profile(kind),
        }
    }

    fn is_active(&self) -> bool {
        match self.chosen() {
            Some(_) => memprof_sampler::interval() > 0,
            None => self.allocator.is_active(),
        }
    }

    fn sample_interval(&self) -> Option<u64> {
        match self.chosen() {
            Some(_) => Some(self.interval.load(Ordering::Relaxed)),
            None => self.allocator.sample_interval(),
        }
    }

    fn activate(&self, interval: Option<SampleInterval>) -> Result<Vec<String>> {
        let Some(mut sampler) = self.chosen() else {
            return self.allocator.activate(interval);
        };
        let before = self.interval.load(Ordering::Relaxed);
        let interval = interval.map_or(before, SampleInterval::bytes);
        let mut warnings = Vec::new();
        if interval != before {
            if memprof_sampler::counts().samples > 0 {
                warnings.push(format!(
                    "the samples of one per {before} bytes were dropped: a profile has one interval"
                ));
            }
            memprof_sampler::stop();
            memprof_sampler::clear().map_err(refused)?;
        }
        stop_in_children();
        memprof_sampler::start(interval).map_err(refused)?;
        self.interval.store(interval, Ordering::Relaxed);
        if let Err(error) = sampler.take_slots() {
            memprof_sampler::stop();
            return Err(error);
        }
        if let Err(why) = self.allocator.require_profiling() {
            warnings.push(format!("memprof samples in the allocator's place: {why}"));
        }
        let Slots {
            foreign, refused, ..
        } = sampler.seen;
        if foreign > 0 {
            warnings.push(format!(
                "{foreign} calls lead to another allocator than {}, and are not seen",
                self.identity()
            ));
        }
        if refused > 0 {
            warnings.push(format!(
                "{refused} calls could not be patched, and are not seen: mprotect(2) was refused"
            ));
        }
        Ok(warnings)
    }

    fn deactivate(&self) -> Result<()> {
        match self.chosen() {
            Some(mut sampler) => sampler.stop(),
            None => self.allocator.deactivate(),
        }
    }

    fn reset(&self, interval: Option<SampleInterval>) -> Result<()> {
        let Some(mut sampler) = self.chosen() else {
            return self.allocator.reset(interval);
        };
        let was_active = memprof_sampler::interval() > 0;
        memprof_sampler::stop();
        memprof_sampler::clear().map_err(refused)?;
        if let Some(interval) = interval {
            self.interval.store(interval.bytes(), Ordering::Relaxed);
        }
        if was_active {
            let interval = self.interval.load(Ordering::Relaxed);
            return memprof_sampler::start(interval).map_err(refused);
        }
        sampler.give_slots_back()
    }

    fn write_profile(&self, kind: ProfileKind, scratch: &Scratch) -> Result<Summary> {
        if kind == ProfileKind::Growth || self.chosen().is_none() {
            return self.allocator.write_profile(kind, scratch);
        }
        let interval = self.interval.load(Ordering::Relaxed);
        let written = scratch
            .rewound()
            .and_then(|file| profile::write(interval, file));
        written.map_err(|error| Error::io("write the dump", &error))
    }

    fn totals(&self) -> Result<Option<Totals>> {
        self.allocator.totals()
    }

    fn report(&self, options: Option<&PrintOptions>) -> Result<Printout> {
        self.allocator.report(options)
    }

    fn purge(&self) -> Result<()> {
        self.allocator.purge()
    }

    fn missing(&self) -> &[&'static str] {
        self.allocator.missing()
    }

    fn jemalloc(&self) -> Option<&Jemalloc> {
        self.allocator.jemalloc()
    }

    fn sampled(&self, totals: &Totals) -> Option<Sampled> {
        self.allocator.sampled(totals)
    }

    fn with_sampler(&self) -> Option<&WithSampler> {
        Some(self)
    }
}

/// A forked child has the slots, but nobody who reads its samples or ends them.
fn stop_in_children() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: pthread_atfork(3): a function of this library, which is never unloaded; it only
        // stores to atomics.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if failed != 0 {
            log::warn!("forked children go on sampling: pthread_atfork refused");
        }
    });
}

extern "C" fn in_child() {
    memprof_sampler::stop_in_child();
}
