//! The profiler of one process: the messages' meaning, over all its allocators.

mod ages;
mod detaching;
pub(crate) mod dump;
mod dumper;
mod dumping;
mod farewell;
mod figures;
mod heaps;
mod labels;
mod lease;
mod recent;
mod sampling;
pub(crate) mod status;
mod switching;
mod unsampled;
mod watching;

pub use ages::AgeWidth;
use ages::Ages;
pub use labels::LabelKeys;
use labels::Labels;
pub use switching::ActivateOptions;

use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Instant, SystemTime};

use self::dumper::Dumper;
use self::farewell::Farewell;
use self::heaps::Heaps;
use self::lease::Lease;
use self::status::allocator_status;
use crate::allocators::discover::{Discovered, discover};
use crate::allocators::embedded;
use crate::allocators::interval::SampleInterval;
use crate::allocators::mallctl::Mallctl;
use crate::allocators::objects;
use crate::allocators::refusal::use_jemalloc;
use crate::allocators::stats::Readers;
use crate::clock::rfc3339;
use crate::dumps::store::{Fetched, Store};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::sampler::Driven;
use crate::unwinder::{Tick, Unwinder, UnwinderSettings};
use crate::watching::watcher::Watcher;
use memprof_messages::SamplerChoice;
use memprof_messages::{Kept, Kind, ProfileKind, Profiling, Status};

/// What helps where a profile lacks what was allocated before it began.
pub const SEEN_FROM_THE_START: &str = "and show when they are allocated anew; to see all of it, \
     start the program with `memprof run --active` or set activate_at_start = true";

/// What a profiler needs to know of its process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program's name.
    pub program: String,
    /// The host's own jemalloc, where it hands it over.
    pub host: Option<Mallctl>,
    /// An address in the image that no allocator of the host's lies in: the plugin's.
    pub own_image: usize,
    /// Where dumps are kept.
    pub store: Store,
    /// How to read a jemalloc's figures.
    pub readers: Readers,
    /// Who walks the stacks.
    pub unwinder: UnwinderSettings,
    /// Who samples, unless an activation asks for another one.
    pub sampler: SamplerChoice,
    /// How often to sample where nothing else is asked for, and the allocator has no interval of its
    /// own.
    pub interval: Option<SampleInterval>,
}

/// The profiler of this process.
#[derive(Debug)]
pub struct Profiler {
    settings: Settings,
    started: SystemTime,
    found: Mutex<Found>,
    active_since: Mutex<Option<SystemTime>>,
    /// An allocator sampled before us.
    was_active: bool,
    lease: Mutex<Option<Lease>>,
    dumper: Dumper,
    /// The pid of the process in which a dump runs; a forked child inherits the value, not the
    /// dump.
    dumping: AtomicU32,
    sequence: AtomicU32,
    last_size: AtomicU64,
    last_heaps: Mutex<Heaps>,
    /// The live bytes of an earlier ledger, and when.
    first_heap: Mutex<Option<(Instant, u64)>>,
    /// The most bytes that the allocators were seen to count without having touched them.
    untouched: AtomicU64,
    watcher: Mutex<Option<Arc<Watcher>>>,
    /// Not behind a lock: the exiting thread may hold any.
    farewell: OnceLock<Farewell>,
    /// The last dump of a rule was refused for want of memory, which was logged.
    was_refused: AtomicBool,
    unwinder: Unwinder,
    ages: Ages,
    labels: Labels,
    tick: Mutex<Option<Tick>>,
}

/// Some or all allocators of the process.
type Backends = Arc<[Arc<Driven>]>;

/// The allocators, and how many libraries had been loaded when they were looked for.
#[derive(Debug)]
struct Found {
    backends: Backends,
    stranger: Option<PathBuf>,
    load_count: u64,
    /// The program's file, where it contains a jemalloc that cannot be driven; unknown until it is
    /// asked for, because the whole file is read.
    undrivable: Option<Option<PathBuf>>,
}

impl Found {
    /// `known` are those that were found before: they stay what they are.
    fn look(settings: &Settings, known: &[Arc<Driven>]) -> Self {
        let load_count = objects::load_count();
        let Discovered {
            allocators,
            stranger,
        } = discover(settings.host, settings.own_image, settings.readers);
        let backends = allocators.into_iter().map(|allocator| {
            let address = allocator.identity().address;
            let same = known.iter().find(|each| each.identity().address == address);
            same.map_or_else(
                || Arc::new(Driven::new(allocator, settings.interval)),
                Arc::clone,
            )
        });
        Self {
            backends: backends.collect(),
            stranger,
            load_count,
            undrivable: None,
        }
    }
}

impl Profiler {
    /// Finds the allocators and starts the dumper. `now` is the host's start, near enough.
    pub fn new(settings: Settings, now: SystemTime) -> Self {
        let mut profiler = Self {
            unwinder: Unwinder::new(settings.unwinder),
            ages: Ages::new(),
            labels: Labels::default(),
            tick: Mutex::new(None),
            found: Mutex::new(Found::look(&settings, &[])),
            settings,
            started: now,
            active_since: Mutex::new(None),
            was_active: false,
            lease: Mutex::new(None),
            dumper: Dumper::default(),
            dumping: AtomicU32::new(0),
            sequence: AtomicU32::new(0),
            last_size: AtomicU64::new(0),
            last_heaps: Mutex::default(),
            first_heap: Mutex::new(None),
            untouched: AtomicU64::new(0),
            watcher: Mutex::new(None),
            farewell: OnceLock::new(),
            was_refused: AtomicBool::new(false),
        };
        profiler.choose_by_default();
        if profiler.is_active() {
            *lock(&profiler.active_since) = Some(now);
            profiler.was_active = true;
        }
        if let Err(error) = profiler.dumper.start() {
            log::warn!("{error}; the first dump tries again");
        }
        profiler
    }

    /// The state, at once, also while a dump runs.
    pub fn status(&self) -> Status {
        let backends = self.backends();
        let active = self.is_active();
        let unavailable = self.unavailable().filter(|_| !active);
        let since = *lock(&self.active_since);
        let (kept, unreadable) = match self.settings.store.list() {
            Ok(kept) => (kept.len(), None),
            Err(error) => (0, Some(with_remedy(&error))),
        };
        let remedy = unavailable.as_ref().map(|error| error.remedy.clone());
        Status {
            profiling: match (&unavailable, active) {
                (Some(_), _) => Profiling::Unavailable,
                (None, true) => Profiling::Active,
                (None, false) => Profiling::Inactive,
            }
            .into(),
            reason: unavailable.map(|error| error.to_string()).or(unreadable),
            remedy: remedy.filter(|remedy| !remedy.is_empty()),
            active_since: since.filter(|_| active).map(rfc3339),
            active_until: self.active_until().filter(|_| active).map(rfc3339),
            sample_interval: backends.iter().find_map(|each| each.sample_interval()),
            allocators: backends.iter().map(|each| allocator_status(each)).collect(),
            unknown_malloc: self.stranger().map(|path| path.display().to_string()),
            undrivable_jemalloc: self.undrivable().map(|path| path.display().to_string()),
            dump_dir: self.settings.store.directory().display().to_string(),
            kept,
            busy: self.dumping.load(Ordering::Acquire) == process::id(),
            watch: self.watch_status(),
            gdump: self.gdump_status(),
            unwinder: self.unwinder.status(),
            ages_s: self.ages.width(),
            labels: self.labels.on(),
        }
    }

    /// The kept dumps, newest first.
    ///
    /// # Errors
    /// The dump directory cannot be read.
    pub fn list(&self) -> Result<Vec<Kept>> {
        self.settings.store.list()
    }

    /// Opens a kept dump.
    ///
    /// # Errors
    /// No kept dump has that id.
    pub fn fetch(&self, id: &str) -> Result<Fetched> {
        self.settings.store.fetch(id)
    }

    fn backends(&self) -> Backends {
        Arc::clone(&lock(&self.found).backends)
    }

    fn is_active(&self) -> bool {
        self.backends().iter().any(|each| each.is_active())
    }

    /// Why nothing can be profiled unless an allocator is named.
    fn unavailable(&self) -> Option<Error> {
        let driven = self.driven(None);
        driven
            .and_then(|driven| self.require_profile(&driven, ProfileKind::Heap))
            .err()
    }

    /// Whether one of them can take a profile of that kind.
    ///
    /// # Errors
    /// Why the first cannot, or why the program's own jemalloc is not among them.
    fn require_profile(&self, backends: &[Arc<Driven>], kind: ProfileKind) -> Result<()> {
        require_profile(backends, kind).map_err(|error| match self.undrivable() {
            Some(path) => Error::new(error.kind, embedded::message(&path)).remedy(embedded::REMEDY),
            None => error,
        })
    }

    fn stranger(&self) -> Option<PathBuf> {
        lock(&self.found).stranger.clone()
    }

    /// The program's file, where it contains a jemalloc that no profile shows.
    fn undrivable(&self) -> Option<PathBuf> {
        let (known, backends) = {
            let found = lock(&self.found);
            (found.undrivable.clone(), Arc::clone(&found.backends))
        };
        // Not while the lock is held: a child that is forked meanwhile would never get it.
        known.unwrap_or_else(|| {
            let jemallocs = backends.iter().filter_map(|each| each.allocator.jemalloc());
            let path = embedded::undrivable(jemallocs.map(|each| each.mallctl.address()));
            lock(&self.found).undrivable = Some(path.clone());
            path
        })
    }

    /// The allocators that a message acts on: those of the kind that it names; else the one that
    /// serves `malloc`, every jemalloc, which may serve the program by another name, and every one
    /// that samples.
    ///
    /// # Errors
    /// `Unsupported`: there is none of that kind, or none at all.
    fn driven(&self, named: Option<Kind>) -> Result<Backends> {
        let backends = self.backends();
        let is_driven = |each: &&Arc<Driven>| {
            let identity = each.identity();
            match named {
                Some(kind) => identity.kind == kind,
                None => identity.owns_malloc || identity.kind == Kind::Jemalloc || each.is_active(),
            }
        };
        let driven: Backends = backends.iter().filter(is_driven).cloned().collect();
        if !driven.is_empty() {
            return Ok(driven);
        }
        let stranger = self.stranger();
        let message = match (named, stranger) {
            (Some(kind), _) => format!("this process has no {kind} that memprof can find"),
            (None, Some(path)) => format!(
                "malloc is served by {}, which memprof does not know",
                path.display()
            ),
            (None, None) => "this process has no allocator that memprof can find".to_owned(),
        };
        Err(
            Error::new(ErrorKind::Unsupported, message).remedy(match named {
                Some(_) => "send `status` for the allocators there are",
                None => use_jemalloc(),
            }),
        )
    }

    /// An allocator may have come with a library that was loaded since.
    fn look_again(&self) {
        let known = lock(&self.found).load_count;
        if known != objects::load_count() {
            let found = Found::look(&self.settings, &self.backends());
            *lock(&self.found) = found;
        }
    }

    fn begin_dump(&self) -> Result<Running<'_>> {
        let own = process::id();
        let claimed = self
            .dumping
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |owner| {
                (owner != own).then_some(own)
            });
        match claimed {
            Ok(_) => Ok(Running(&self.dumping)),
            Err(_) => Err(Error::new(ErrorKind::Busy, "a dump is running").remedy("try again")),
        }
    }
}

/// Marks the time during which an allocator's dump lock may be held.
struct Running<'a>(&'a AtomicU32);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Whether one of them can take a profile of that kind.
///
/// # Errors
/// Why the first cannot.
fn require_profile(backends: &[Arc<Driven>], kind: ProfileKind) -> Result<()> {
    let mut reasons = backends.iter().map(|each| each.require_profile(kind));
    match reasons.next() {
        None => Ok(()),
        Some(first) => first.or_else(|error| reasons.find_map(Result::ok).ok_or(error)),
    }
}

/// Does `work` with each of them, and returns what the operator should know. One that cannot is
/// among it, unless it is of a kind that never has a profiler: beside one that has, it is no news.
///
/// # Errors
/// Why the first cannot, when none can; or one refused.
fn with_each(
    backends: &[Arc<Driven>],
    work: impl Fn(&Driven) -> Result<Vec<String>>,
) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    let mut unable = None;
    let mut is_done = false;
    for backend in backends {
        match work(backend) {
            Ok(more) => {
                warnings.extend(more);
                is_done = true;
            }
            Err(error) if matches!(error.kind, ErrorKind::Unsupported | ErrorKind::Unavailable) => {
                if backend.identity().kind.has_profiler() {
                    let message = format!("{error}: no profile shows what it gives out");
                    let error = Error::new(error.kind, message).remedy(&error.remedy);
                    warnings.push(with_remedy(&error));
                }
                unable.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match unable {
        Some(error) if !is_done => Err(error),
        _ => Ok(warnings),
    }
}

/// Why a process without jemalloc is refused what `only jemalloc` completes.
fn only_jemalloc(has: &str) -> Error {
    let message = format!("only jemalloc {has}, and this process has none that memprof can find");
    Error::new(ErrorKind::Unsupported, message).remedy(use_jemalloc())
}

fn with_remedy(error: &Error) -> String {
    match error.remedy.as_str() {
        "" => error.to_string(),
        remedy => format!("{error}; {remedy}"),
    }
}
