//! What the allocators hold, and what can be done about it without a profile.

use super::{Profiler, lock, no_jemalloc};
use crate::background::{self, Background};
use crate::cgroup::Cgroup;
use crate::doctor::{Finding, Severity, examine};
use crate::error::{Error, ErrorKind, Result};
use crate::facts::gather;
use crate::jemalloc::Jemalloc;
use crate::ledger::{self, Ledger, Resident};
use crate::printout::{PrintOptions, Printout};
use crate::recent::{self, Recent};
use crate::stats::{Figures, Stats};
use crate::status::Purged;

impl Profiler {
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

    /// The latest sampled allocations, of every jemalloc that keeps them; `max` sets how many.
    ///
    /// # Errors
    /// `Busy` while a dump runs; `Unsupported` where jemalloc is too old; none are kept yet; `max`
    /// is out of range.
    pub fn recent(&self, max: Option<u64>) -> Result<Vec<Recent>> {
        let _running = self.begin_dump()?;
        self.look_again();
        let allocators = self.allocators();
        let first = allocators.first().ok_or_else(no_jemalloc)?;
        let able = |jemalloc: &&Jemalloc| recent::require(jemalloc, max).is_ok();
        let mut able = allocators.iter().filter(able).peekable();
        if able.peek().is_none() {
            recent::require(first, max)?;
        }
        // Where signals are blocked, and what is allocated is left out of the profile.
        let take = |jemalloc: &Jemalloc| {
            let jemalloc = jemalloc.clone();
            self.dumper.run(move || {
                jemalloc.leave_this_thread_out();
                recent::take(&jemalloc, max)
            })?
        };
        able.map(take).collect()
    }

    /// Where the resident memory is. At once, also while a dump runs: then with the totals that
    /// were read last.
    ///
    /// # Errors
    /// `/proc/thread-self/status` cannot be read; jemalloc refused.
    pub fn ledger(&self) -> Result<Ledger> {
        if let Ok(_running) = self.begin_dump() {
            let heap = self.heap()?;
            *lock(&self.last_heap) = heap;
        }
        let heap = *lock(&self.last_heap);
        let cgroup = Cgroup::of_this_process();
        Ok(ledger::reconcile(self.resident()?, heap, cgroup))
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

    /// Switches jemalloc's background threads in every jemalloc that has them, at most `max`.
    ///
    /// # Errors
    /// `Busy` while a dump runs; no jemalloc has them; `max` is out of range; jemalloc refused.
    pub fn background_threads(&self, on: bool, max: Option<u64>) -> Result<Vec<Background>> {
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
}
