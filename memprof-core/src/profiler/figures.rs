//! What the allocators hold, and what can be done about it without a profile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Profiler, lock, no_jemalloc};
use crate::backend::Backend;
use crate::background::{self, Background};
use crate::cgroup::Cgroup;
use crate::doctor::{Facts, Finding, Severity, examine};
use crate::error::{Error, ErrorKind, Result};
use crate::facts::gather;
use crate::jemalloc::Jemalloc;
use crate::ledger::{self, Earlier, Ledger, Resident};
use crate::printout::PrintOptions;
use crate::smaps::Smaps;
use crate::stats::{Figures, Stats};
use crate::status::Purged;

/// A ledger is compared to the first one of the last hour.
const COMPARED: Duration = Duration::from_secs(60 * 60);

impl Profiler {
    /// The allocators' own figures, and what `malloc_stats_print` says under `options`.
    ///
    /// # Errors
    /// `Busy` while a dump runs, whose lock jemalloc's statistics would wait for.
    pub fn stats(&self, options: Option<&PrintOptions>) -> Result<Vec<Stats>> {
        let _running = self.begin_dump()?;
        self.look_again();
        let backends = self.backends();
        if backends.is_empty() {
            return Err(no_jemalloc());
        }
        let read = |backend: &Arc<dyn Backend>| {
            let identity = backend.identity();
            Ok(Stats {
                kind: identity.kind,
                version: identity.version.clone(),
                figures: backend.figures()?,
                report: backend.report(options)?.into_text(),
            })
        };
        backends.iter().map(read).collect()
    }

    /// Where the resident memory is. At once, also while a dump runs: then with the totals that
    /// were read last.
    ///
    /// # Errors
    /// `/proc/thread-self/status` cannot be read; an allocator refused.
    pub fn ledger(&self) -> Result<Ledger> {
        let mut resident = self.resident()?;
        if let Ok(_running) = self.begin_dump() {
            let heap = self.heap()?;
            *lock(&self.last_heap) = heap;
            let before = resident.anonymous;
            resident = self.resident()?;
            // Pages that came or went meanwhile are no untouched ones.
            let most = before.max(resident.anonymous);
            let untouched = heap.map_or(0, |heap| ledger::untouched(most, &heap));
            // Beside other memory it does not show: so the most that was ever seen.
            self.untouched.fetch_max(untouched, Ordering::Relaxed);
        }
        let heap = *lock(&self.last_heap);
        let untouched = self.untouched.load(Ordering::Relaxed);
        let earlier = heap.and_then(|heap| self.earlier(heap.allocated));
        let cgroup = Cgroup::of_this_process();
        Ok(ledger::reconcile(
            resident, heap, untouched, earlier, cgroup,
        ))
    }

    /// The ledger with the kernel's account of all mappings, for which it walks every page.
    ///
    /// # Errors
    /// As [`ledger`](Self::ledger); `/proc/thread-self/smaps_rollup` cannot be read.
    pub fn ledger_with_smaps(&self) -> Result<Ledger> {
        Ok(Ledger {
            smaps: Some(Smaps::of_this_process()?),
            ..self.ledger()?
        })
    }

    /// The live heap of an earlier ledger, to which `allocated` is compared.
    fn earlier(&self, allocated: u64) -> Option<Earlier> {
        let now = Instant::now();
        let mut first = lock(&self.first_heap);
        let earlier = first.map(|(at, allocated)| Earlier {
            allocated,
            ago: now.duration_since(at),
        });
        let is_stale = |earlier: Earlier| earlier.ago > COMPARED;
        if earlier.is_none_or(is_stale) {
            *first = Some((now, allocated));
        }
        earlier
    }

    /// The sum over all allocators that keep figures.
    fn heap(&self) -> Result<Option<Figures>> {
        let backends = self.backends();
        let figures: Vec<Figures> = backends
            .iter()
            .filter_map(|each| each.figures().transpose())
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

    /// What is wrong with profiling here, worst first. At once, also while a dump runs: then
    /// without looking at how much is allocated.
    pub fn doctor(&self) -> Vec<Finding> {
        self.look_again();
        let backends = self.backends();
        let jemallocs = jemallocs(&backends);
        let running = self.begin_dump();
        let allocated = |jemalloc: &Jemalloc| {
            if running.is_err() {
                return None;
            }
            // A jemalloc that refuses its figures is told of by `stats`.
            let figures = jemalloc.figures().ok().flatten();
            figures.map(|figures| figures.allocated)
        };
        let facts = Facts {
            given_up_walks: self.unwinder.given_up(),
            ..gather(&jemallocs, allocated, &self.settings.store)
        };
        let mut findings = examine(&facts);
        findings.sort_by_key(|finding| finding.severity != Severity::Error);
        findings
    }

    /// Gives all free pages back to the kernel.
    ///
    /// # Errors
    /// `Busy` while a dump runs; no allocator; it refused.
    pub fn purge(&self) -> Result<Purged> {
        let _running = self.begin_dump()?;
        let backends = self.backends();
        if backends.is_empty() {
            return Err(no_jemalloc());
        }
        let before = self.resident()?.anonymous;
        backends.iter().try_for_each(|each| each.purge())?;
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
        let backends = self.backends();
        let jemallocs = jemallocs(&backends);
        let able = |jemalloc: &&Jemalloc| background::require(jemalloc).is_ok();
        let with_threads: Vec<_> = jemallocs.iter().copied().filter(able).collect();
        if with_threads.is_empty() {
            let first = jemallocs.first().ok_or_else(no_jemalloc)?;
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
}

pub(super) fn jemallocs(backends: &[Arc<dyn Backend>]) -> Vec<&Jemalloc> {
    backends.iter().filter_map(|each| each.jemalloc()).collect()
}
