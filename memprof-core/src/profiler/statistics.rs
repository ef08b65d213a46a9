//! Statistics of the allocators, and operations that need no profile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::usage_cache::CachedUsage;
use super::{Profiler, error_text_with_remedy, for_each_backend, no_jemalloc_error};
use crate::accounting::findings::EarlierLedger;
use crate::accounting::ledger;
use crate::accounting::resident_memory::ResidentMemory;
use crate::accounting::smaps;
use crate::allocators::background_threads;
use crate::allocators::jemalloc::Jemalloc;
use crate::allocators::printout::{PrintOptions, Printout};
use crate::allocators::unprofilable::Unprofilable;
use crate::doctor::{Facts, diagnose, gather_facts};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::sampler::{Backend, patched_allocators_beside_malloc};
use crate::system::cgroup;
use memprof_messages::{
    AllocatorHeap, AllocatorKind, BackgroundThreads, Finding, HeapUsage, Ledger, NamedEnum,
    OpenEnum, PurgeResult, Severity, Stats,
};

/// Age from which the earlier ledger is replaced by the current one, for comparison with later ledgers.
const COMPARISON_WINDOW: Duration = Duration::from_secs(60 * 60);

impl Profiler {
    /// Reads the statistics and the printouts of the allocators of the kind `allocator`, or of all if it is `None`.
    /// `options` apply to jemalloc only, so they exclude other allocators; `None` stands for each allocator's default
    /// printout. If an allocator cannot report, its element contains the error.
    ///
    /// # Errors
    /// `Busy` while a dump runs, because jemalloc's statistics would wait for the dump's lock. `Unsupported`: no
    /// allocator matches `allocator` and `options`.
    pub fn read_stats(
        &self,
        allocator: Option<AllocatorKind>,
        options: Option<&PrintOptions>,
    ) -> Result<Vec<Stats>> {
        let _running = self.dump_slot.acquire()?;
        self.allocators.search_if_changed(&self.settings);
        let backends = match allocator {
            None => self.allocators.all_backends(),
            named => self.allocators.select_backends(named)?,
        };
        let prints =
            |each: &&Arc<Backend>| options.is_none() || each.allocator.as_jemalloc().is_some();
        let printing: Vec<_> = backends.iter().filter(prints).collect();
        if printing.is_empty() {
            return Err(match backends.first() {
                Some(first) => Error::new(
                    ErrorKind::Unsupported,
                    format!("opts are jemalloc's; {} has none", first.identity()),
                )
                .with_remedy("leave opts and format=json out"),
                None => Unprofilable::no_profiler(None).into(),
            });
        }
        let stats = printing
            .into_iter()
            .map(|each| read_allocator_stats(each, options));
        Ok(stats.collect())
    }

    /// Divides the resident memory into parts. Does not wait: while a dump runs, or shortly after an expensive read of
    /// the allocators' totals, it uses the most recent totals.
    ///
    /// # Errors
    /// `Io`: `/proc/thread-self/status` cannot be read, or lacks a field.
    pub fn ledger(&self) -> Result<Ledger> {
        let mut resident = self.read_resident_memory()?;
        if !lock(&self.ledger_history.usage).is_fresh()
            && let Ok(_running) = self.dump_slot.acquire()
        {
            let heaps = CachedUsage::read_and_time(|| {
                let backends = self.allocators.all_backends();
                let counted = backends.iter().map(|each| read_allocator_heap(each));
                counted.chain(uncounted_heaps(&backends)).collect()
            });
            let before = resident.anonymous;
            resident = self.read_resident_memory()?;
            // Pages that appeared or disappeared during the read must not count as untouched.
            let most = before.max(resident.anonymous);
            let untouched = ledger::untouched_bytes(most, &heaps.heaps);
            *lock(&self.ledger_history.usage) = heaps;
            // Other anonymous memory can hide untouched pages, so the largest value is used.
            self.ledger_history
                .max_untouched
                .fetch_max(untouched, Ordering::Relaxed);
        }
        let heaps = lock(&self.ledger_history.usage).heaps.clone();
        let untouched = self.ledger_history.max_untouched.load(Ordering::Relaxed);
        let allocated = (!heaps.is_empty()).then(|| ledger::live_bytes(&heaps));
        let earlier = allocated.and_then(|allocated| self.load_or_renew_earlier_ledger(allocated));
        let cgroup = cgroup::read_current_cgroup();
        Ok(ledger::build_ledger(
            resident, heaps, untouched, earlier, cgroup,
        ))
    }

    /// Returns the ledger (the resident memory by part) with the kernel's sums over all mappings, for which the kernel
    /// walks every page.
    ///
    /// # Errors
    /// `Io`: a file in /proc cannot be read, or lacks a field.
    pub fn ledger_with_smaps(&self) -> Result<Ledger> {
        Ok(Ledger {
            smaps: Some(smaps::read_current_smaps()?),
            ..self.ledger()?
        })
    }

    /// Reads the live bytes of the program in these allocators. `None` if they keep no statistics, or report 0. Also
    /// `None` while a dump runs, because statistics would wait for the dump's lock. No dump can start meanwhile.
    pub(super) fn live_bytes_unless_busy(&self, backends: &[Arc<Backend>]) -> Option<u64> {
        let _running = self.dump_slot.acquire().ok()?;
        read_live_bytes(backends)
    }

    /// Returns the live heap of the stored earlier ledger, for comparison; `None` at the first call. If there is none,
    /// or if it is older than [`COMPARISON_WINDOW`], also stores `allocated`, the current live heap, for later calls.
    fn load_or_renew_earlier_ledger(&self, allocated: u64) -> Option<EarlierLedger> {
        let now = Instant::now();
        let mut base = lock(&self.ledger_history.base);
        let earlier = base.map(|(time, allocated)| EarlierLedger {
            allocated,
            ago: now.duration_since(time),
        });
        let is_stale = |earlier: EarlierLedger| earlier.ago > COMPARISON_WINDOW;
        if earlier.is_none_or(is_stale) {
            *base = Some((now, allocated));
        }
        earlier
    }

    /// Reads the resident memory of the process.
    ///
    /// # Errors
    /// `Io`: `/proc/thread-self/status` cannot be read, or lacks a field.
    fn read_resident_memory(&self) -> Result<ResidentMemory> {
        const STATUS: &str = "/proc/thread-self/status";
        let status =
            std::fs::read(STATUS).map_err(|error| Error::io(&format!("read {STATUS}"), &error))?;
        // The thread's name may have bytes that are not UTF-8.
        ResidentMemory::parse(&String::from_utf8_lossy(&status))
            .ok_or_else(|| Error::new(ErrorKind::Io, format!("{STATUS} has no RssAnon")))
    }

    /// Diagnoses why profiling cannot work in this process. Returns errors first. Does not wait: while a dump runs, it
    /// omits checks that need an allocator's statistics.
    pub fn doctor(&self) -> Vec<Finding> {
        self.allocators.search_if_changed(&self.settings);
        let backends = self.allocators.all_backends();
        let running = self.dump_slot.acquire();
        let allocated = |jemalloc: &Jemalloc| {
            if running.is_err() {
                return None;
            }
            // An error is ignored here: the message `stats` reports it.
            match jemalloc.heap_usage() {
                Ok(Some(HeapUsage::Detailed(figures))) => Some(figures.allocated),
                _ => None,
            }
        };
        let facts = Facts {
            unavailable: self.allocators.default_unprofilable_reason(),
            walker_disagreements: self.switch.walker_disagreements(),
            stripped_jemalloc: self.allocators.stripped_jemalloc(),
            ..gather_facts(
                &backends,
                self.allocators.unknown_malloc(),
                allocated,
                &self.settings.store,
            )
        };
        let mut findings = diagnose(&facts);
        findings.sort_by_key(|finding| finding.severity != Severity::Error);
        findings
    }

    /// Releases all free pages to the kernel: those of the allocators of the kind `allocator`, or of the default ones
    /// if it is `None`. Returns the resident bytes before and after.
    ///
    /// # Errors
    /// `Busy` while a dump runs. `Unsupported`: there is no such allocator, or none can purge. `Io`: the resident
    /// memory cannot be read. Otherwise the error of an allocator that refused.
    pub fn purge(&self, allocator: Option<AllocatorKind>) -> Result<PurgeResult> {
        let _running = self.dump_slot.acquire()?;
        let backends = self.allocators.select_backends(allocator)?;
        let estimated_bytes = purgeable_bytes(&backends);
        let before = self.read_resident_memory()?.anonymous;
        for_each_backend(&backends, |each| {
            each.allocator.purge_free_pages().map(|()| Vec::new())
        })?;
        lock(&self.ledger_history.usage).invalidate();
        let after = self.read_resident_memory()?.anonymous;
        Ok(PurgeResult {
            anonymous_before_bytes: before,
            anonymous_after_bytes: after,
            released_bytes: before.saturating_sub(after),
            estimated_bytes,
        })
    }

    /// Turns background threads on or off if `on` is given, and limits them to `max` if given, in every jemalloc that
    /// supports them. Returns their state.
    ///
    /// # Errors
    /// `Busy` while a dump runs. Otherwise: no jemalloc supports them, `max` is out of range, or jemalloc refused.
    pub fn set_background_threads(
        &self,
        on: Option<bool>,
        max: Option<u64>,
    ) -> Result<Vec<BackgroundThreads>> {
        let _running = self.dump_slot.acquire()?;
        self.allocators.search_if_changed(&self.settings);
        let backends = self.allocators.all_backends();
        let jemallocs = jemallocs(&backends);
        let has_support = |jemalloc: &&Jemalloc| {
            background_threads::require_background_thread_support(jemalloc).is_ok()
        };
        let with_threads: Vec<_> = jemallocs.iter().copied().filter(has_support).collect();
        if with_threads.is_empty() {
            let no_jemalloc = || no_jemalloc_error("has background threads");
            let first = jemallocs.first().ok_or_else(no_jemalloc)?;
            // Always fails here, with the reason.
            background_threads::require_background_thread_support(first)?;
        }
        if let Some(max) = max {
            // All are checked first, so that an invalid `max` changes none.
            let mut allocators = with_threads.iter();
            allocators.try_for_each(|jemalloc| {
                background_threads::check_max_background_threads(jemalloc, max)
            })?;
        }
        let switch =
            |jemalloc: &Jemalloc| background_threads::set_background_threads(jemalloc, on, max);
        with_threads.into_iter().map(switch).collect()
    }
}

/// Reads the statistics of one allocator. `options` are those of jemalloc's printout; `None` stands for the default. A
/// part that cannot be read is replaced by its error.
fn read_allocator_stats(backend: &Backend, options: Option<&PrintOptions>) -> Stats {
    let error_text = |error: Error| error_text_with_remedy(&error) + "\n";
    let AllocatorHeap {
        kind,
        version,
        totals,
        error,
        ..
    } = read_allocator_heap(backend);
    Stats {
        kind,
        version,
        totals,
        error,
        report: backend
            .allocator
            .printout(options)
            .map_or_else(error_text, Printout::into_text),
    }
}

/// Reads the live bytes of the program in these allocators. `None` if they keep no statistics, or report 0.
pub(super) fn read_live_bytes(backends: &[Arc<Backend>]) -> Option<u64> {
    let heaps: Vec<_> = backends
        .iter()
        .map(|each| read_allocator_heap(each))
        .collect();
    Some(ledger::live_bytes(&heaps)).filter(|live| *live > 0)
}

/// Bytes of the free pages that a purge would release. `None` if one of these allocators does not count them: glibc
/// does not report which free pages are whole, and mimalloc reports none.
fn purgeable_bytes(backends: &[Arc<Backend>]) -> Option<u64> {
    let each = backends
        .iter()
        .map(|each| match each.allocator.heap_usage() {
            Ok(Some(HeapUsage::Detailed(totals)))
                if each.identity().kind != AllocatorKind::Glibc =>
            {
                Some(
                    totals
                        .resident
                        .saturating_sub(totals.active.saturating_add(totals.metadata))
                        .saturating_add(totals.lazily_free),
                )
            }
            _ => None,
        });
    each.sum()
}

/// Reads the totals of one allocator, and its sampled objects. If that fails, stores the error instead of totals.
fn read_allocator_heap(backend: &Backend) -> AllocatorHeap {
    let identity = backend.identity();
    let totals = backend.allocator.heap_usage();
    AllocatorHeap {
        kind: identity.kind.into(),
        version: identity.version.clone(),
        owns_malloc: identity.owns_malloc,
        sampled: match &totals {
            Ok(Some(totals)) => backend.allocator.sampled_objects(totals),
            Ok(None) | Err(_) => None,
        },
        error: totals.as_ref().err().map(error_text_with_remedy),
        totals: totals.unwrap_or_default(),
    }
}

/// Heaps of allocators that memprof knows only by their patched functions, because the program lacks the functions that
/// would report totals.
fn uncounted_heaps(backends: &[Arc<Backend>]) -> impl Iterator<Item = AllocatorHeap> {
    let addresses = backends.iter().map(|each| each.identity().address);
    let names = patched_allocators_beside_malloc(&addresses.collect::<Vec<_>>());
    names.into_iter().map(|name| AllocatorHeap {
        kind: AllocatorKind::from_name(name)
            .map_or_else(|| OpenEnum::Other(name.to_owned()), OpenEnum::Known),
        version: "of unknown version".to_owned(),
        owns_malloc: false,
        totals: None,
        sampled: None,
        error: None,
    })
}

/// Returns those of the backends' allocators that are jemallocs.
pub(super) fn jemallocs(backends: &[Arc<Backend>]) -> Vec<&Jemalloc> {
    backends
        .iter()
        .filter_map(|each| each.allocator.as_jemalloc())
        .collect()
}
