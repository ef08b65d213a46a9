//! memprof's sampler in the place of an allocator's profiler.
#![expect(unsafe_code, reason = "a handler of fork")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once};
use std::time::SystemTime;

use memprof_sampler::{Refused, Role};

pub(crate) use memprof_sampler::mute_this_thread as leave_this_thread_out;

use super::{SamplerStatus, Samples, Slots, profile};
use crate::allocators::allocator::Allocator;
use crate::allocators::interval::SampleInterval;
use crate::allocators::objects::{self, Reading};
use crate::dumps::heap::{Summary, Taken};
use crate::dumps::scratch::Scratch;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::lock::lock;
use crate::unwinder::prepare_walks;

/// As jemalloc's and tcmalloc's own.
const DEFAULT_INTERVAL: u64 = 512 << 10;

/// Whether forked children go on sampling: it began with the program, and nothing will end it.
static GOES_ON_IN_CHILDREN: AtomicBool = AtomicBool::new(false);

/// Samples from now on, before there is a profiler: for the first moments of a program. The profiler
/// goes on with it, or ends it where the allocator samples by itself.
///
/// # Errors
/// Why memprof's sampler cannot serve this process.
pub fn sample_at_once(interval: Option<SampleInterval>) -> Result<()> {
    let mut slots = Sampler::find_slots()?;
    stop_in_children();
    GOES_ON_IN_CHILDREN.store(true, Ordering::Relaxed);
    let interval = interval.map_or(DEFAULT_INTERVAL, SampleInterval::bytes);
    memprof_sampler::start(interval).map_err(refused)?;
    let _reading = Reading::begin();
    slots.take().ok_or_else(loader_refused).map(drop)
}

/// Forked children do not go on sampling: the activation has an end.
pub(crate) fn end_in_children() {
    GOES_ON_IN_CHILDREN.store(false, Ordering::Relaxed);
}

/// The sampler before the allocator that serves `malloc`.
#[derive(Debug)]
pub(crate) struct Ours {
    /// Or why it cannot serve this process.
    sampler: Result<Mutex<Sampler>>,
    /// What the sampler samples at, or did last.
    interval: AtomicU64,
}

/// The sampler, where it samples or would.
pub(crate) struct Chosen<'a> {
    sampler: MutexGuard<'a, Sampler>,
    interval: &'a AtomicU64,
}

/// The slots of the process, and what is done with them.
#[derive(Debug)]
struct Sampler {
    slots: memprof_sampler::Slots,
    samples: Samples,
    seen: Slots,
    /// Libraries loaded and unloaded when slots were taken last.
    loaded: (u64, u64),
    /// Since when samples were taken, those that were dropped left aside.
    since: Option<SystemTime>,
}

impl Ours {
    /// None where the allocator does not serve `malloc`. It samples at `interval` where nothing else is
    /// asked for.
    pub(crate) fn before(allocator: &Allocator, interval: Option<SampleInterval>) -> Option<Self> {
        let identity = allocator.identity();
        let interval = match memprof_sampler::interval() {
            0 => interval.map_or(DEFAULT_INTERVAL, SampleInterval::bytes),
            at_once => at_once,
        };
        identity.owns_malloc.then(|| Self {
            sampler: Sampler::find(identity).map(Mutex::new),
            interval: AtomicU64::new(interval),
        })
    }

    /// Settles whether it samples from the next activation on.
    ///
    /// # Errors
    /// Why it cannot serve this process; `allocator` refused to be switched off.
    pub(crate) fn choose(&self, samples: Samples, allocator: &Allocator) -> Result<()> {
        let sampler = match (&self.sampler, samples) {
            (Ok(sampler), _) => sampler,
            (Err(_), Samples::Not) => return Ok(()),
            (Err(error), _) => return Err(error.clone()),
        };
        let before = std::mem::replace(&mut lock(sampler).samples, samples);
        match (before, samples) {
            (Samples::Not, Samples::InPlace | Samples::Asked) => allocator.deactivate(),
            (Samples::InPlace | Samples::Asked, Samples::Not) => lock(sampler).stop(),
            // `sample_at_once` did not know that the allocator does.
            (Samples::Not, Samples::Not) if memprof_sampler::interval() > 0 => {
                memprof_sampler::stop();
                memprof_sampler::clear().map_err(refused)?;
                lock(sampler).give_slots_back()
            }
            (Samples::Not, Samples::Not)
            | (Samples::InPlace | Samples::Asked, Samples::InPlace | Samples::Asked) => Ok(()),
        }
    }

    /// The sampler, where it samples or would.
    pub(crate) fn chosen(&self) -> Option<Chosen<'_>> {
        let sampler = lock(self.sampler.as_ref().ok()?);
        (sampler.samples != Samples::Not).then_some(Chosen {
            sampler,
            interval: &self.interval,
        })
    }
}

impl Sampler {
    /// # Errors
    /// `Unsupported`: why it cannot serve this process.
    fn find(allocator: &Identity) -> Result<Self> {
        let slots = Self::find_slots().map_err(|error| {
            Error::new(
                error.kind,
                format!("memprof cannot sample {allocator}: {error}"),
            )
        })?;
        Ok(Self {
            seen: Slots {
                // What the parent of a forked child took.
                patched: slots.count(),
                ..Slots::default()
            },
            slots,
            samples: Samples::Not,
            loaded: (0, 0),
            // It began with the program, or the parent of a forked child began it.
            since: (memprof_sampler::interval() > 0).then(SystemTime::now),
        })
    }

    /// # Errors
    /// `Unsupported`: why the slots of this process cannot be used.
    fn find_slots() -> Result<memprof_sampler::Slots> {
        let unsupported = |message: &str| Error::new(ErrorKind::Unsupported, message);
        prepare_walks().map_err(|why| unsupported(&why))?;
        let _reading = Reading::begin();
        let slots = memprof_sampler::Slots::find()
            .ok_or_else(|| unsupported("no object defines malloc"))?;
        if slots.owner().is_program {
            return Err(unsupported(
                "it is linked into the program, whose own calls lead through no slot",
            ));
        }
        if !slots.can_be_taken() {
            return Err(unsupported("memprof's library was loaded twice"));
        }
        Ok(slots)
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

impl Chosen<'_> {
    /// What it did.
    pub(crate) fn status(self) -> SamplerStatus {
        let counts = memprof_sampler::counts();
        SamplerStatus {
            slots: self.sampler.seen,
            samples: counts.samples,
            live_samples: counts.live_samples,
            lost: counts.lost,
            table_bytes: counts.table_bytes,
        }
    }

    /// Takes the slots of libraries that were loaded since. False where it does not sample.
    pub(crate) fn tend(mut self) -> bool {
        let is_active = self.is_active();
        if is_active
            && self.sampler.loaded != objects::load_and_unload_count()
            && let Err(error) = self.sampler.take_slots()
        {
            log::warn!("libraries that were loaded since are not sampled: {error}");
        }
        is_active
    }

    pub(crate) fn is_active(&self) -> bool {
        memprof_sampler::interval() > 0
    }

    /// Mean bytes between samples.
    pub(crate) fn interval(&self) -> u64 {
        self.interval.load(Ordering::Relaxed)
    }

    /// Starts sampling for `allocator`. Returns what the operator should know.
    ///
    /// # Errors
    /// There is no memory for the tables, or the loader does not let the slots be taken.
    pub(crate) fn activate(
        mut self,
        interval: Option<SampleInterval>,
        allocator: &Allocator,
    ) -> Result<Vec<String>> {
        let before = self.interval();
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
            self.sampler.since = None;
        }
        stop_in_children();
        memprof_sampler::start(interval).map_err(refused)?;
        self.interval.store(interval, Ordering::Relaxed);
        if let Err(error) = self.sampler.take_slots() {
            memprof_sampler::stop();
            return Err(error);
        }
        self.sampler.since.get_or_insert_with(SystemTime::now);
        if let Err(why) = allocator.require_profiling() {
            warnings.push(format!("memprof samples in the allocator's place: {why}"));
        }
        let Slots {
            foreign, refused, ..
        } = self.sampler.seen;
        if foreign > 0 {
            warnings.push(format!(
                "{foreign} calls lead to another allocator than {}, and are not seen",
                allocator.identity()
            ));
        }
        if refused > 0 {
            warnings.push(format!(
                "{refused} calls could not be patched, and are not seen: mprotect(2) was refused"
            ));
        }
        Ok(warnings)
    }

    pub(crate) fn stop(mut self) -> Result<()> {
        self.sampler.stop()
    }

    /// Drops all samples, and sets the interval where one is given.
    ///
    /// # Errors
    /// A thread stays inside of the sampler.
    pub(crate) fn reset(mut self, interval: Option<SampleInterval>) -> Result<()> {
        let was_active = self.is_active();
        memprof_sampler::stop();
        memprof_sampler::clear().map_err(refused)?;
        self.sampler.since = was_active.then(SystemTime::now);
        if let Some(interval) = interval {
            self.interval.store(interval.bytes(), Ordering::Relaxed);
        }
        if was_active {
            return memprof_sampler::start(self.interval()).map_err(refused);
        }
        self.sampler.give_slots_back()
    }

    /// Writes a heap profile into `scratch`.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn write_profile(&self, scratch: &Scratch) -> Result<Summary> {
        let written = scratch
            .rewound()
            .and_then(|file| profile::write(self.interval(), file));
        let summary = written.map_err(|error| Error::io("write the dump", &error))?;
        let counts = memprof_sampler::counts();
        Ok(Summary {
            ours: self.sampler.since.map(|since| Taken {
                samples: counts.samples,
                lost: counts.lost,
                since,
            }),
            ..summary
        })
    }
}

/// A forked child has the slots, and nobody who ends what it samples.
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
    if !GOES_ON_IN_CHILDREN.load(Ordering::Relaxed) {
        memprof_sampler::stop();
    }
    memprof_sampler::enter_child();
}
