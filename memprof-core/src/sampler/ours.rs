//! memprof's sampler in the place of an allocator's profiler.
#![expect(unsafe_code, reason = "a handler of fork")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once};
use std::time::SystemTime;

use memprof_sampler::{Refused, Role};
use rustix::io::Errno;

pub(crate) use memprof_sampler::mute_this_thread as leave_this_thread_out;

use memprof_messages::{SamplerStatus, Slots, Through};

use super::hooked::{Hooked, remove_in_child};
use super::{Samples, profile};
use crate::allocators::allocator::Allocator;
use crate::allocators::interval::SampleInterval;
use crate::allocators::objects::{self, Reading};
use crate::dumps::heap::{Summary, Taken, Tally};
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
/// goes on with it, or ends it where the allocator samples by itself. With `is_tallied` all allocations
/// are counted besides, and a dump holds what lived when most did.
///
/// # Errors
/// Why memprof's sampler cannot serve this process.
pub fn sample_at_once(interval: Option<SampleInterval>, is_tallied: bool) -> Result<()> {
    if is_tallied {
        memprof_sampler::tally_all();
    }
    let mut slots = Sampler::find_slots()?;
    if slots.owner().is_program {
        return Err(linked_in());
    }
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

/// How allocations are seen.
#[derive(Debug)]
enum Way {
    Slots(Box<memprof_sampler::Slots>),
    Hooks(Hooked),
}

/// What leads the program's calls to the sampler, and what is done with it.
#[derive(Debug)]
struct Sampler {
    way: Way,
    samples: Samples,
    seen: Slots,
    /// Libraries loaded and unloaded when slots were taken last.
    loaded: (u64, u64),
    /// Since when samples were taken, those that were dropped left aside.
    since: Option<SystemTime>,
}

impl Ours {
    /// None where the allocator neither serves `malloc` nor has hooks. It samples at `interval` where
    /// nothing else is asked for.
    pub(crate) fn before(allocator: &Allocator, interval: Option<SampleInterval>) -> Option<Self> {
        let identity = allocator.identity();
        let interval = match memprof_sampler::interval() {
            0 => interval.map_or(DEFAULT_INTERVAL, SampleInterval::bytes),
            at_once => at_once,
        };
        let hooked = || allocator.jemalloc().and_then(Hooked::of);
        let sampler = if identity.owns_malloc {
            Sampler::find(identity, hooked)
        } else {
            hooked().map(Sampler::in_hooks)?
        };
        Some(Self {
            sampler: sampler.map(Mutex::new),
            interval: AtomicU64::new(interval),
        })
    }

    /// It would sample through jemalloc's hooks.
    pub(crate) fn is_hooked(&self) -> bool {
        let sampler = self.sampler.as_ref();
        sampler.is_ok_and(|sampler| lock(sampler).is_hooked())
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
            (Samples::Not, Samples::Not) if lock(sampler).holds_slots() => {
                let mut sampler = lock(sampler);
                sampler.drop_samples()?;
                sampler.end()
            }
            (Samples::Not, Samples::Not)
            | (Samples::InPlace | Samples::Asked, Samples::InPlace | Samples::Asked) => Ok(()),
        }
    }

    /// Drops all samples and gives every slot back, also those that the parent of a forked child took.
    ///
    /// # Errors
    /// A thread stays inside of the sampler; the loader does not let us.
    pub(crate) fn give_back(&self) -> Result<()> {
        let Ok(sampler) = &self.sampler else {
            return Ok(());
        };
        let mut sampler = lock(sampler);
        sampler.drop_samples()?;
        sampler.end()
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
    /// By the slots of the process, or by the hooks of a jemalloc that no slot leads to.
    ///
    /// # Errors
    /// `Unsupported`: why it cannot serve this process.
    fn find(allocator: &Identity, hooked: impl FnOnce() -> Option<Hooked>) -> Result<Self> {
        let cannot = |error: Error| {
            let message = format!("memprof cannot sample {allocator}: {}", error.message);
            Error { message, ..error }
        };
        let slots = Self::find_slots().map_err(cannot)?;
        if slots.owner().is_program {
            return hooked().map_or_else(|| Err(cannot(linked_in())), Self::in_hooks);
        }
        Ok(Self::by(Way::Slots(Box::new(slots))))
    }

    /// # Errors
    /// `Unsupported`: why it cannot serve this process.
    fn in_hooks(hooked: Hooked) -> Result<Self> {
        // Which tells where memprof's own code lies, too.
        Self::find_slots().map(|_| Self::by(Way::Hooks(hooked)))
    }

    fn by(way: Way) -> Self {
        Self {
            seen: Slots {
                // What the parent of a forked child took.
                patched: match &way {
                    Way::Slots(slots) => slots.count(),
                    Way::Hooks(_) => 0,
                },
                ..Slots::default()
            },
            way,
            samples: Samples::Not,
            loaded: (0, 0),
            // It began with the program, or the parent of a forked child began it.
            since: (memprof_sampler::interval() > 0).then(SystemTime::now),
        }
    }

    /// # Errors
    /// `Unsupported`: why nothing can be sampled in this process.
    fn find_slots() -> Result<memprof_sampler::Slots> {
        let unsupported = |message: &str| Error::new(ErrorKind::Unsupported, message);
        prepare_walks().map_err(|why| unsupported(&why))?;
        let _reading = Reading::begin();
        let slots = memprof_sampler::Slots::find()
            .ok_or_else(|| unsupported("no object defines malloc"))?;
        if !slots.can_be_taken() {
            return Err(unsupported("memprof's library was loaded twice"));
        }
        Ok(slots)
    }

    /// Leads the calls of all objects that are loaded now to the sampler.
    fn begin(&mut self) -> Result<()> {
        match &mut self.way {
            Way::Slots(_) => self.take_slots(),
            Way::Hooks(hooked) => hooked.install(),
        }
    }

    /// What was loaded since is seen too, and its stacks are walked by its own rules.
    fn look_again(&mut self) -> Result<()> {
        if self.loaded == objects::load_and_unload_count() {
            return Ok(());
        }
        match self.way {
            Way::Slots(_) => self.take_slots(),
            Way::Hooks(_) => {
                self.loaded = objects::load_and_unload_count();
                memprof_unwind::forget_rules();
                Ok(())
            }
        }
    }

    /// Takes the slots of all objects that are loaded now.
    fn take_slots(&mut self) -> Result<()> {
        self.loaded = objects::load_and_unload_count();
        memprof_unwind::forget_rules();
        let Way::Slots(slots) = &mut self.way else {
            return Ok(());
        };
        let _reading = Reading::begin();
        let patched = slots.take().ok_or_else(loader_refused)?;
        if patched.patched == 0 && patched.refused > 0 {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the calls of malloc cannot be patched: mprotect(2) was refused",
            )
            .remedy("let a seccomp filter or SELinux (execmod) permit it, or start the program with `memprof run --allocator jemalloc`"));
        }
        self.seen = Slots {
            patched: patched.patched,
            foreign: patched.foreign,
            unseen_objects: patched.unseen_objects,
            other_mallocs: patched.other_mallocs,
            refused: patched.refused,
        };
        Ok(())
    }

    /// Gives back what only allocations need; while nothing that was sampled lives, all. Hooks are
    /// removed: they cost as much for a free as for an allocation.
    fn end(&mut self) -> Result<()> {
        let slots = match &mut self.way {
            Way::Slots(slots) => slots,
            Way::Hooks(hooked) => return hooked.remove(),
        };
        let role = (memprof_sampler::counts().live_samples > 0).then_some(Role::Allocates);
        let _reading = Reading::begin();
        slots.give_back(role).ok_or_else(loader_refused)?;
        self.seen.patched = slots.count();
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        memprof_sampler::stop();
        self.end()
    }

    fn drop_samples(&mut self) -> Result<()> {
        memprof_sampler::stop();
        self.since = None;
        memprof_sampler::clear().map_err(refused)
    }

    /// `sample_at_once` took slots for it, or the parent of a forked child did.
    fn holds_slots(&self) -> bool {
        matches!(&self.way, Way::Slots(slots) if slots.count() > 0)
    }

    fn is_hooked(&self) -> bool {
        matches!(self.way, Way::Hooks(_))
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        let ended = match &mut self.way {
            Way::Slots(slots) if slots.count() == 0 => Ok(()),
            Way::Slots(slots) => {
                memprof_sampler::stop();
                slots.give_back(None).ok_or_else(loader_refused).map(drop)
            }
            Way::Hooks(hooked) => hooked.remove(),
        };
        if let Err(error) = ended {
            log::warn!("calls of malloc go on through memprof's sampler, which is off: {error}");
        }
    }
}

fn linked_in() -> Error {
    let message = "it is linked into the program, whose own calls lead through no slot, and it has no \
                   experimental.hooks.install, as jemalloc 5.2 and newer have it";
    Error::new(ErrorKind::Unsupported, message)
}

fn loader_refused() -> Error {
    let message = "the calls of malloc cannot be patched: the loader does not let memprof";
    Error::new(ErrorKind::Unavailable, message)
}

fn refused(refused: Refused) -> Error {
    match refused {
        Refused::NoMemory => Error::io("map the sampler's tables", &Errno::NOMEM.into()),
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
            through: match self.sampler.way {
                Way::Slots(_) => Through::Slots,
                Way::Hooks(_) => Through::JemallocHooks,
            }
            .into(),
            slots: self.sampler.seen,
            samples: counts.samples,
            live_samples: counts.live_samples,
            lost: counts.lost,
            table_bytes: counts.table_bytes,
        }
    }

    /// Sees libraries that were loaded since. False where it does not sample.
    pub(crate) fn tend(mut self) -> bool {
        let is_active = self.is_active();
        if is_active && let Err(error) = self.sampler.look_again() {
            log::warn!("libraries that were loaded since are not sampled: {error}");
        }
        is_active
    }

    /// It costs too much to be left on by mistake.
    pub(crate) fn needs_an_end(&self) -> bool {
        self.sampler.is_hooked()
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
            self.sampler.drop_samples()?;
        } else if self.needs_an_end() && !self.is_active() {
            // What was freed meanwhile is not known.
            self.sampler.drop_samples()?;
        }
        stop_in_children();
        memprof_sampler::start(interval).map_err(refused)?;
        self.interval.store(interval, Ordering::Relaxed);
        if let Err(error) = self.sampler.begin() {
            memprof_sampler::stop();
            return Err(error);
        }
        self.sampler.since.get_or_insert_with(SystemTime::now);
        if let Err(why) = allocator.require_profiling() {
            warnings.push(format!("memprof samples in the allocator's place: {why}"));
        }
        if self.needs_an_end() {
            warnings.push(format!(
                "{} is linked into the program, so it is sampled through jemalloc's own hooks: a malloc \
                 and its free take about 45 ns longer while it is on; what is freed after `deactivate` \
                 stays in the profile; jemalloc may hang later where a thread ends that allocated nothing since: \
                 not for production",
                allocator.identity()
            ));
        }
        warnings.extend(self.unseen(allocator.identity()));
        Ok(warnings)
    }

    /// What of the program's allocations leads past the sampler.
    fn unseen(&self, allocator: &Identity) -> Vec<String> {
        let Slots {
            foreign,
            unseen_objects,
            other_mallocs,
            refused,
            ..
        } = self.sampler.seen;
        let of_others = match other_mallocs {
            0 => String::new(),
            1 => " (1 library has a malloc of its own)".to_owned(),
            count => format!(" ({count} libraries have a malloc of their own)"),
        };
        let told = [
            (
                foreign,
                format!(
                    "{foreign} calls lead to another allocator than {allocator}{of_others}, and are \
                     not seen"
                ),
            ),
            (
                unseen_objects,
                format!(
                    "{unseen_objects} libraries keep the address of malloc or its kin in their data; \
                     what they allocate through that is not seen"
                ),
            ),
            (
                refused,
                format!(
                    "{refused} calls could not be patched, and are not seen: mprotect(2) was refused"
                ),
            ),
        ];
        let told = told.into_iter().filter(|(count, _)| *count > 0);
        told.map(|(_, text)| text).collect()
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
        self.sampler.drop_samples()?;
        self.sampler.since = was_active.then(SystemTime::now);
        if let Some(interval) = interval {
            self.interval.store(interval.bytes(), Ordering::Relaxed);
        }
        if was_active {
            return memprof_sampler::start(self.interval()).map_err(refused);
        }
        self.sampler.end()
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
                tally: memprof_sampler::tally().map(|tally| Tally {
                    objects: tally.objects,
                    bytes: tally.bytes,
                    peak: tally.peak,
                }),
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
    remove_in_child();
    memprof_sampler::enter_child();
}
