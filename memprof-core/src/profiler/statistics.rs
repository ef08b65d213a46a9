//! What the allocators hold, and what can be done about it without a profile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::usage_cache::CachedUsage;
use super::{Profiler, needs_jemalloc_error, with_each, with_remedy};
use crate::accounting::ledger::{self, EarlierLedger, ResidentMemory};
use crate::accounting::smaps;
use crate::allocators::background::{self};
use crate::allocators::jemalloc::Jemalloc;
use crate::allocators::printout::{PrintOptions, Printout};
use crate::allocators::unprofilable::Unprofilable;
use crate::doctor::{Facts, examine, gather};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::sampler::Backend;
use crate::system::cgroup;
use memprof_messages::{
    AllocatorHeap, AllocatorKind, BackgroundThreads, Finding, HeapUsage, Ledger, PurgeResult,
    Severity, Stats,
};

/// A ledger is compared to the first one of the last hour.
const COMPARED: Duration = Duration::from_secs(60 * 60);

impl Profiler {
    /// The allocators' own figures, and what they print of themselves. `options` are jemalloc's,
    /// so they leave the others out; `allocator` leaves out all of other kinds.
    ///
    /// # Errors
    /// `Busy` while a dump runs, whose lock jemalloc's statistics would wait for; none is left.
    pub fn stats(
        &self,
        allocator: Option<AllocatorKind>,
        options: Option<&PrintOptions>,
    ) -> Result<Vec<Stats>> {
        let _running = self.dump_slot.acquire()?;
        self.allocators.refresh(&self.settings);
        let backends = match allocator {
            None => self.allocators.all(),
            named => self.allocators.backends_for(named)?,
        };
        let prints =
            |each: &&Arc<Backend>| options.is_none() || each.allocator.jemalloc().is_some();
        let printing: Vec<_> = backends.iter().filter(prints).collect();
        if printing.is_empty() {
            return Err(match backends.first() {
                Some(first) => Error::new(
                    ErrorKind::Unsupported,
                    format!("opts are jemalloc's; {} has none", first.identity()),
                )
                .remedy("leave opts and format=json out"),
                None => Unprofilable::no_profiler(None).into(),
            });
        }
        let stats = printing.into_iter().map(|each| stats(each, options));
        Ok(stats.collect())
    }

    /// Where the resident memory is. At once, also while a dump runs: then with the totals that
    /// were read last; so too where reading them takes long and was done just now.
    ///
    /// # Errors
    /// `/proc/thread-self/status` cannot be read.
    pub fn ledger(&self) -> Result<Ledger> {
        let mut resident = self.resident()?;
        if !lock(&self.figures.heaps).is_fresh()
            && let Ok(_running) = self.dump_slot.acquire()
        {
            let heaps = CachedUsage::read(|| {
                self.allocators
                    .all()
                    .iter()
                    .map(|each| heap(each))
                    .collect()
            });
            let before = resident.anonymous;
            resident = self.resident()?;
            // Pages that came or went meanwhile are no untouched ones.
            let most = before.max(resident.anonymous);
            let untouched = ledger::untouched(most, &heaps.list);
            *lock(&self.figures.heaps) = heaps;
            // Beside other memory it does not show: so the most that was ever seen.
            self.figures
                .untouched
                .fetch_max(untouched, Ordering::Relaxed);
        }
        let heaps = lock(&self.figures.heaps).list.clone();
        let untouched = self.figures.untouched.load(Ordering::Relaxed);
        let allocated = (!heaps.is_empty()).then(|| ledger::live_bytes(&heaps));
        let earlier = allocated.and_then(|allocated| self.earlier(allocated));
        let cgroup = cgroup::read_current();
        Ok(ledger::reconcile(
            resident, heaps, untouched, earlier, cgroup,
        ))
    }

    /// The ledger with the kernel's account of all mappings, for which it walks every page.
    ///
    /// # Errors
    /// As [`ledger`](Self::ledger); `/proc/thread-self/smaps_rollup` cannot be read.
    pub fn ledger_with_smaps(&self) -> Result<Ledger> {
        Ok(Ledger {
            smaps: Some(smaps::read_current()?),
            ..self.ledger()?
        })
    }

    /// What the program holds of these allocators, where they count it and no dump runs, whose lock
    /// their statistics would wait for.
    pub(super) fn live_of(&self, backends: &[Arc<Backend>]) -> Option<u64> {
        let _running = self.dump_slot.acquire().ok()?;
        live(backends)
    }

    /// The live heap of an earlier ledger, to which `allocated` is compared.
    fn earlier(&self, allocated: u64) -> Option<EarlierLedger> {
        let now = Instant::now();
        let mut first = lock(&self.figures.first);
        let earlier = first.map(|(at, allocated)| EarlierLedger {
            allocated,
            ago: now.duration_since(at),
        });
        let is_stale = |earlier: EarlierLedger| earlier.ago > COMPARED;
        if earlier.is_none_or(is_stale) {
            *first = Some((now, allocated));
        }
        earlier
    }

    fn resident(&self) -> Result<ResidentMemory> {
        const STATUS: &str = "/proc/thread-self/status";
        let status = std::fs::read_to_string(STATUS)
            .map_err(|error| Error::io(&format!("read {STATUS}"), &error))?;
        ResidentMemory::parse(&status)
            .ok_or_else(|| Error::new(ErrorKind::Io, format!("{STATUS} has no RssAnon")))
    }

    /// What is wrong with profiling here, worst first. At once, also while a dump runs: then
    /// without looking at how much is allocated.
    pub fn doctor(&self) -> Vec<Finding> {
        self.allocators.refresh(&self.settings);
        let backends = self.allocators.all();
        let running = self.dump_slot.acquire();
        let allocated = |jemalloc: &Jemalloc| {
            if running.is_err() {
                return None;
            }
            // A jemalloc that refuses its figures is told of by `stats`.
            match jemalloc.totals() {
                Ok(Some(HeapUsage::Detailed(figures))) => Some(figures.allocated),
                _ => None,
            }
        };
        let facts = Facts {
            unavailable: self.allocators.default_unprofilable_reason(),
            walker_disagreements: self.switch.walker_disagreements(),
            stripped_jemalloc: self.allocators.stripped_jemalloc(),
            ..gather(
                &backends,
                self.allocators.unknown_malloc(),
                allocated,
                &self.settings.store,
            )
        };
        let mut findings = examine(&facts);
        findings.sort_by_key(|finding| finding.severity != Severity::Error);
        findings
    }

    /// Gives all free pages back to the kernel, of the allocators that `allocator` names, else of
    /// those that are driven.
    ///
    /// # Errors
    /// `Busy` while a dump runs; no allocator; it refused.
    pub fn purge(&self, allocator: Option<AllocatorKind>) -> Result<PurgeResult> {
        let _running = self.dump_slot.acquire()?;
        let backends = self.allocators.backends_for(allocator)?;
        let before = self.resident()?.anonymous;
        with_each(&backends, |each| {
            each.allocator.purge().map(|()| Vec::new())
        })?;
        lock(&self.figures.heaps).invalidate();
        let after = self.resident()?.anonymous;
        Ok(PurgeResult {
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
    ) -> Result<Vec<BackgroundThreads>> {
        let _running = self.dump_slot.acquire()?;
        self.allocators.refresh(&self.settings);
        let backends = self.allocators.all();
        let jemallocs = jemallocs(&backends);
        let able = |jemalloc: &&Jemalloc| background::require_support(jemalloc).is_ok();
        let with_threads: Vec<_> = jemallocs.iter().copied().filter(able).collect();
        if with_threads.is_empty() {
            let none = || needs_jemalloc_error("has background threads");
            let first = jemallocs.first().ok_or_else(none)?;
            background::require_support(first)?;
        }
        if let Some(max) = max {
            // All of them before the first is changed.
            let mut allocators = with_threads.iter();
            allocators.try_for_each(|jemalloc| background::check_max(jemalloc, max))?;
        }
        let switch = |jemalloc: &Jemalloc| background::set_background_threads(jemalloc, on, max);
        with_threads.into_iter().map(switch).collect()
    }
}

/// One that does not answer is told of in place of its figures.
fn stats(backend: &Backend, options: Option<&PrintOptions>) -> Stats {
    let told = |error: Error| with_remedy(&error) + "\n";
    let AllocatorHeap {
        kind,
        version,
        totals,
        error,
        ..
    } = heap(backend);
    Stats {
        kind,
        version,
        totals,
        error,
        report: backend
            .allocator
            .printout(options)
            .map_or_else(told, Printout::into_text),
    }
}

/// What the program holds of these allocators, where they count it.
pub(super) fn live(backends: &[Arc<Backend>]) -> Option<u64> {
    let heaps: Vec<_> = backends.iter().map(|each| heap(each)).collect();
    Some(ledger::live_bytes(&heaps)).filter(|live| *live > 0)
}

fn heap(backend: &Backend) -> AllocatorHeap {
    let identity = backend.identity();
    let totals = backend.allocator.totals();
    AllocatorHeap {
        kind: identity.kind.into(),
        version: identity.version.clone(),
        owns_malloc: identity.owns_malloc,
        sampled: match &totals {
            Ok(Some(totals)) => backend.allocator.sampled_objects(totals),
            Ok(None) | Err(_) => None,
        },
        error: totals.as_ref().err().map(with_remedy),
        totals: totals.unwrap_or_default(),
    }
}

pub(super) fn jemallocs(backends: &[Arc<Backend>]) -> Vec<&Jemalloc> {
    backends
        .iter()
        .filter_map(|each| each.allocator.jemalloc())
        .collect()
}
