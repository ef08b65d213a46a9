//! The profiler of one process: the messages' meaning, over all its allocators.

use std::process;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use rustix::rand::GetRandomFlags;

use crate::background::{self, Background};
use crate::doctor::{Finding, Severity, examine};
use crate::dump::{self, Dump, Origin};
use crate::dump_name::DumpName;
use crate::dumper::Dumper;
use crate::error::{Error, ErrorKind, Result};
use crate::facts::gather;
use crate::jemalloc::{Jemalloc, discover, is_secure_execution};
use crate::lease::Lease;
use crate::ledger::{self, Ledger, Resident};
use crate::mallctl::Mallctl;
use crate::objects;
use crate::printout::{PrintOptions, Printout};
use crate::stats::{Figures, ReadFigures, ReadReport, Stats};
use crate::status::{Activation, Allocator, DumpReport, Purged, Status};
use crate::store::{Kept, Store};

/// What a profiler needs to know of its process.
#[derive(Debug)]
pub struct Settings {
    /// The program's name.
    pub program: String,
    /// The host's own jemalloc, where it hands it over.
    pub host: Option<Mallctl>,
    /// An address in the image that no allocator of the host's lies in: the plugin's.
    pub own_image: usize,
    /// Where dumps are kept.
    pub store: Store,
    /// How to read the totals of a jemalloc.
    pub read_figures: ReadFigures,
    /// How to read what `malloc_stats_print` says.
    pub read_report: ReadReport,
}

/// The profiler of this process.
#[derive(Debug)]
pub struct Profiler {
    settings: Settings,
    started: SystemTime,
    found: RwLock<Found>,
    active_since: Mutex<Option<SystemTime>>,
    lease: Mutex<Option<Lease>>,
    dumper: Dumper,
    /// The pid of the process in which a dump runs; a forked child inherits the value, not the
    /// dump.
    dumping: AtomicU32,
    sequence: AtomicU32,
    last_size: AtomicU64,
    last_heap: Mutex<Option<Figures>>,
}

/// The allocators, and how many libraries had been loaded when they were looked for.
#[derive(Debug)]
struct Found {
    allocators: Arc<[Jemalloc]>,
    load_count: u64,
}

impl Found {
    fn look(settings: &Settings) -> Self {
        let load_count = objects::load_count();
        Self {
            allocators: discover(settings.host, settings.own_image).into(),
            load_count,
        }
    }
}

impl Profiler {
    /// Finds the allocators and starts the dumper. `now` is the host's start, near enough.
    pub fn new(settings: Settings, now: SystemTime) -> Self {
        let profiler = Self {
            found: RwLock::new(Found::look(&settings)),
            settings,
            started: now,
            active_since: Mutex::new(None),
            lease: Mutex::new(None),
            dumper: Dumper::default(),
            dumping: AtomicU32::new(0),
            sequence: AtomicU32::new(0),
            last_size: AtomicU64::new(0),
            last_heap: Mutex::new(None),
        };
        if profiler.allocators().iter().any(Jemalloc::prof_active) {
            profiler.set_active_since(Some(now));
        }
        if let Err(error) = profiler.dumper.start() {
            log::warn!("{error}; the first dump tries again");
        }
        profiler
    }

    /// Starts sampling in every jemalloc that can. `lg_sample` also sets the interval, which
    /// drops the samples so far; `duration` is when it ends by itself. An activation without it
    /// lasts, also where one with it is running.
    ///
    /// # Errors
    /// Why none of them can, with the remedy for this process.
    pub fn activate(
        self: &Arc<Self>,
        lg_sample: Option<u64>,
        duration: Option<Duration>,
    ) -> Result<Activation> {
        self.look_again();
        let allocators = self.allocators();
        self.require_profiling(&allocators)?;
        let mut warnings = Vec::new();
        let _running = lg_sample.map(|_| self.begin_dump()).transpose()?;
        // Held over the switching: the switch is read back, and another thread may turn it.
        let mut since = self
            .active_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for jemalloc in allocators.iter() {
            match jemalloc.require_profiling() {
                Ok(()) => {
                    if let Some(lg_sample) = lg_sample {
                        jemalloc.reset(lg_sample)?;
                        warnings.push("setting lg_sample dropped the samples so far".to_owned());
                    }
                    jemalloc.set_active(true)?;
                }
                Err(error) => warnings.push(with_remedy(&error)),
            }
        }
        since.get_or_insert_with(SystemTime::now);
        drop(since);
        warnings.dedup();
        let lease = duration
            .map(|duration| self.lease_for(duration))
            .transpose()?;
        self.set_lease(lease);
        Ok(Activation {
            status: self.status(),
            warnings,
        })
    }

    /// Stops sampling. What was sampled stays, and frees are still counted.
    ///
    /// # Errors
    /// jemalloc refused.
    pub fn deactivate(&self) -> Result<Activation> {
        let allocators = self.allocators();
        let mut since = self
            .active_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        allocators
            .iter()
            .try_for_each(|jemalloc| jemalloc.set_active(false))?;
        *since = None;
        drop(since);
        self.set_lease(None);
        let unavailable = self.require_profiling(&allocators).err();
        let warnings = unavailable.iter().map(with_remedy).collect();
        Ok(Activation {
            status: self.status(),
            warnings,
        })
    }

    /// Drops all samples in every jemalloc that profiles, and sets the sample interval where
    /// `lg_sample` is given.
    ///
    /// # Errors
    /// `Busy` while a dump runs; why profiling is not on.
    pub fn reset(&self, lg_sample: Option<u64>) -> Result<Activation> {
        let running = self.begin_dump()?;
        let allocators = self.allocators();
        self.require_profiling(&allocators)?;
        for jemalloc in allocators.iter().filter(|jemalloc| jemalloc.opt_prof) {
            let current = jemalloc.lg_sample();
            match lg_sample.or(current) {
                Some(lg_sample) => jemalloc.reset(lg_sample)?,
                None => {
                    return Err(Error::allocator(
                        "jemalloc does not tell its sample interval",
                    ));
                }
            }
        }
        drop(running);
        let warnings = vec!["all samples so far were dropped".to_owned()];
        Ok(Activation {
            status: self.status(),
            warnings,
        })
    }

    /// Switches jemalloc's own dumps at every new peak of mapped memory, in every jemalloc that
    /// profiles.
    ///
    /// # Errors
    /// Why profiling is not on; jemalloc refused.
    pub fn set_gdump(&self, on: bool) -> Result<Activation> {
        let allocators = self.allocators();
        self.require_profiling(&allocators)?;
        allocators
            .iter()
            .filter(|jemalloc| jemalloc.opt_prof)
            .try_for_each(|jemalloc| jemalloc.set_gdump(on))?;
        let mut warnings = Vec::new();
        if on {
            warnings.push(
                "jemalloc writes these dumps itself, to the names that opt.prof_prefix gives: they \
                 are not kept, nor limited, with the others"
                    .to_owned(),
            );
        }
        Ok(Activation {
            status: self.status(),
            warnings,
        })
    }

    /// Gives all free pages back to the kernel.
    ///
    /// # Errors
    /// `Busy` while a dump runs; no jemalloc; jemalloc refused.
    pub fn purge(&self) -> Result<Purged> {
        let _running = self.begin_dump()?;
        let allocators = self.allocators();
        if allocators.is_empty() {
            return Err(no_jemalloc());
        }
        let before = self.resident()?.anonymous;
        allocators.iter().try_for_each(Jemalloc::purge)?;
        let after = self.resident()?.anonymous;
        Ok(Purged {
            anonymous_before_bytes: before,
            anonymous_after_bytes: after,
            released_bytes: before.saturating_sub(after),
        })
    }

    /// Switches jemalloc's background threads where `on` is given, at most `max`, in every jemalloc
    /// that has them.
    ///
    /// # Errors
    /// `Busy` while a dump runs; no jemalloc has them; `max` is out of range; jemalloc refused.
    pub fn background_threads(
        &self,
        on: Option<bool>,
        max: Option<u64>,
    ) -> Result<Vec<Background>> {
        let _running = self.begin_dump()?;
        self.look_again();
        let allocators = self.allocators();
        let able = |jemalloc: &&Jemalloc| background::require(jemalloc).is_ok();
        let with_threads: Vec<_> = allocators.iter().filter(able).collect();
        if with_threads.is_empty() {
            let first = allocators.first().ok_or_else(no_jemalloc)?;
            background::require(first)?;
        }
        if let Some(max) = max {
            // All of them before the first is changed.
            let mut allocators = with_threads.iter();
            allocators.try_for_each(|jemalloc| background::check_max(jemalloc, max))?;
        }
        let switch = |jemalloc: &Jemalloc| background::switch(jemalloc, on, max);
        with_threads.into_iter().map(switch).collect()
    }

    /// Where the resident memory is. At once, also while a dump runs: then with the totals that
    /// were read last.
    ///
    /// # Errors
    /// `/proc/thread-self/status` cannot be read; jemalloc refused.
    pub fn ledger(&self) -> Result<Ledger> {
        if let Ok(_running) = self.begin_dump() {
            let heap = self.heap()?;
            *self
                .last_heap
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = heap;
        }
        let heap = *self
            .last_heap
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let cgroup = read("/proc/thread-self/cgroup")
            .and_then(|own| ledger::cgroup(&own, |file| read(&format!("/sys/fs/cgroup{file}"))));
        Ok(ledger::reconcile(self.resident()?, heap, cgroup))
    }

    /// What is wrong with profiling here, worst first. At once, also while a dump runs: then
    /// without looking at how much is allocated.
    pub fn doctor(&self) -> Vec<Finding> {
        self.look_again();
        let allocators = self.allocators();
        let running = self.begin_dump();
        let allocated = |jemalloc: &Jemalloc| {
            let figures = (self.settings.read_figures)(&jemalloc.mallctl);
            // A jemalloc that refuses its figures is told of by `stats`.
            figures
                .ok()
                .filter(|_| running.is_ok() && jemalloc.config_stats)
                .map(|f| f.allocated)
        };
        let mut findings = examine(&gather(&allocators, allocated, &self.settings.store));
        findings.sort_by_key(|finding| finding.severity != Severity::Error);
        findings
    }

    /// The sum over all jemallocs that keep figures.
    fn heap(&self) -> Result<Option<Figures>> {
        let allocators = self.allocators();
        let with_figures = allocators.iter().filter(|jemalloc| jemalloc.config_stats);
        let figures: Vec<Figures> = with_figures
            .map(|jemalloc| (self.settings.read_figures)(&jemalloc.mallctl))
            .collect::<Result<_>>()?;
        Ok(figures.into_iter().reduce(Figures::plus))
    }

    fn resident(&self) -> Result<Resident> {
        const STATUS: &str = "/proc/thread-self/status";
        let status = std::fs::read_to_string(STATUS)
            .map_err(|error| Error::io(&format!("read {STATUS}"), &error))?;
        Resident::parse(&status)
            .ok_or_else(|| Error::new(ErrorKind::Io, format!("{STATUS} does not tell RssAnon")))
    }

    fn lease_for(self: &Arc<Self>, duration: Duration) -> Result<Lease> {
        // Weak: a lease must not keep the profiler of a host that ends.
        let profiler = Arc::downgrade(self);
        Lease::start(duration, move || {
            let Some(profiler) = profiler.upgrade() else {
                return;
            };
            match profiler.deactivate() {
                Ok(_) => log::info!("profiling is inactive: its time is over"),
                Err(error) => log::error!("profiling could not be ended in time: {error}"),
            }
        })
    }

    fn set_lease(&self, lease: Option<Lease>) {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = lease;
    }

    fn active_until(&self) -> Option<SystemTime> {
        let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        lease.as_ref().map(|lease| lease.until)
    }

    /// Takes a dump of every jemalloc that profiles, and keeps it.
    ///
    /// # Errors
    /// `Busy` while another one runs; why profiling is not on; what the system refused.
    pub fn dump(&self, trigger: &'static str) -> Result<DumpReport> {
        let _running = self.begin_dump()?;
        let begun = Instant::now();
        dump::require_memory()?;
        self.look_again();
        let allocators = self.allocators();
        self.require_profiling(&allocators)?;
        let active_since = *self
            .active_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let origin = Origin {
            program: self.settings.program.clone(),
            started: self.started,
            active_since,
            trigger,
        };
        let mut dumps = Vec::new();
        for jemalloc in allocators.iter().filter(|jemalloc| jemalloc.opt_prof) {
            dumps.push(self.dump_one(jemalloc.clone(), origin.clone())?);
        }
        let largest = dumps
            .iter()
            .max_by_key(|dump| dump.estimated_inuse_bytes)
            .cloned()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "no allocator was dumped"))?;
        self.last_size.store(largest.bytes, Ordering::Relaxed);
        Ok(DumpReport {
            warnings: explain(&dumps, active_since, SystemTime::now()),
            largest,
            active_since: active_since.map(rfc3339),
            duration_ms: begun.elapsed().as_millis() as u64,
            dumps,
        })
    }

    fn dump_one(&self, jemalloc: Jemalloc, origin: Origin) -> Result<Dump> {
        let name = self.next_name()?;
        let store = self.settings.store.clone();
        let last_size = self.last_size.load(Ordering::Relaxed);
        self.dumper
            .run(move || dump::take(&jemalloc, &store, &name, &origin, last_size))?
    }

    fn next_name(&self) -> Result<DumpName> {
        let mut random = [0; 4];
        rustix::rand::getrandom(&mut random, GetRandomFlags::empty())
            .map_err(|errno| Error::io("get random bytes", &errno.into()))?;
        Ok(DumpName {
            taken: SystemTime::now(),
            pid: process::id(),
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed) + 1,
            random: u32::from_ne_bytes(random),
        })
    }

    /// The allocators' own figures, and what `malloc_stats_print` says under `options`.
    ///
    /// # Errors
    /// `Busy` while a dump runs, whose lock jemalloc's statistics would wait for.
    pub fn stats(&self, options: Option<&PrintOptions>) -> Result<Vec<Stats>> {
        let _running = self.begin_dump()?;
        self.look_again();
        let allocators = self.allocators();
        if allocators.is_empty() {
            return Err(no_jemalloc());
        }
        let read = |jemalloc: &Jemalloc| {
            let figures = (self.settings.read_figures)(&jemalloc.mallctl)?;
            let report = match options {
                None => (self.settings.read_report)(&jemalloc.mallctl)?,
                Some(options) => Printout::of(&jemalloc.mallctl, options),
            };
            Ok(Stats {
                kind: "jemalloc",
                version: jemalloc.version.clone(),
                figures: jemalloc.config_stats.then_some(figures),
                report: report.into_text(),
            })
        };
        allocators.iter().map(read).collect()
    }

    /// The state, at once, also while a dump runs.
    pub fn status(&self) -> Status {
        let allocators = self.allocators();
        let unavailable = self.require_profiling(&allocators).err();
        let active = allocators.iter().any(Jemalloc::prof_active);
        let since = *self
            .active_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (kept, unreadable) = match self.settings.store.list() {
            Ok(kept) => (kept.len(), None),
            Err(error) => (0, Some(with_remedy(&error))),
        };
        let remedy = unavailable.as_ref().map(|error| error.remedy.clone());
        Status {
            profiling: match (&unavailable, active) {
                (Some(_), _) => "unavailable",
                (None, true) => "active",
                (None, false) => "inactive",
            },
            reason: unavailable.map(|error| error.message).or(unreadable),
            remedy: remedy.filter(|remedy| !remedy.is_empty()),
            active_since: since.filter(|_| active).map(rfc3339),
            active_until: self.active_until().filter(|_| active).map(rfc3339),
            sample_interval: allocators
                .iter()
                .filter(|jemalloc| jemalloc.opt_prof)
                .find_map(Jemalloc::lg_sample)
                .and_then(|lg| 1u64.checked_shl(lg as u32)),
            allocators: allocators.iter().map(Allocator::from).collect(),
            dump_dir: self.settings.store.directory().display().to_string(),
            kept,
            busy: self.dumping.load(Ordering::Acquire) == process::id(),
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
    pub fn fetch(&self, id: &str) -> Result<std::fs::File> {
        self.settings.store.fetch(id)
    }

    fn allocators(&self) -> Arc<[Jemalloc]> {
        Arc::clone(
            &self
                .found
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .allocators,
        )
    }

    /// A jemalloc may have come with a library that was loaded since.
    fn look_again(&self) {
        let known = self
            .found
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .load_count;
        if known != objects::load_count() {
            let found = Found::look(&self.settings);
            *self.found.write().unwrap_or_else(PoisonError::into_inner) = found;
        }
    }

    fn require_profiling(&self, allocators: &[Jemalloc]) -> Result<()> {
        let mut reasons = allocators.iter().map(Jemalloc::require_profiling);
        match reasons.next() {
            None => Err(no_jemalloc()),
            Some(first) => first.or_else(|error| reasons.find_map(Result::ok).ok_or(error)),
        }
    }

    fn set_active_since(&self, since: Option<SystemTime>) {
        *self
            .active_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = since;
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

/// Marks the time during which jemalloc's dump lock may be held.
struct Running<'a>(&'a AtomicU32);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// What a reader of these dumps may wonder about.
fn explain(dumps: &[Dump], active_since: Option<SystemTime>, now: SystemTime) -> Vec<String> {
    let mut warnings = Vec::new();
    match active_since {
        None => warnings.push(
            "profiling is inactive: the dump holds only what was sampled before and still lives; \
             send `activate`, wait, dump again"
                .to_owned(),
        ),
        Some(since) if dumps.iter().all(|dump| dump.stacks == 0) => {
            let elapsed = now.duration_since(since).unwrap_or(Duration::ZERO);
            warnings.push(format!(
                "no samples yet: profiling became active {} ago and samples about once every {} \
                 allocated bytes",
                humantime::format_duration(Duration::from_secs(elapsed.as_secs())),
                dumps.first().map_or(0, |dump| dump.sample_interval),
            ));
        }
        Some(_) => {}
    }
    warnings
}

fn no_jemalloc() -> Error {
    let error = Error::new(
        ErrorKind::Unavailable,
        "this process has no jemalloc that memprof can find",
    );
    if is_secure_execution() {
        return error.remedy(
            "it runs in secure-execution mode (AT_SECURE), in which the loader ignores LD_PRELOAD: \
             start it without changing uid, or use /etc/ld.so.preload and /etc/malloc.conf",
        );
    }
    error.remedy(
        "start it with LD_PRELOAD=libjemalloc.so.2 and MALLOC_CONF=prof:true,prof_active:false; \
         if jemalloc is linked in, do not strip the program, or export mallctl",
    )
}

fn with_remedy(error: &Error) -> String {
    match error.remedy.as_str() {
        "" => error.message.clone(),
        remedy => format!("{}; {remedy}", error.message),
    }
}

fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}
