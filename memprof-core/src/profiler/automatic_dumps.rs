//! Dumps that nobody asked for just then: watch rules, high water, the exit.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::Profiler;
use super::activation::ActivateOptions;
use super::exit_dump::ExitDump;
use super::statistics::jemallocs;
use crate::dumps::trigger::Condition;
use crate::dumps::trigger::Trigger;
use crate::error::{ErrorKind, Result};
use crate::lock::lock;
use crate::system::cgroup;
use crate::watching::gdump::GdumpLimits;
use crate::watching::memory_reading::read_rss;
use crate::watching::rule::WatchRule;
use crate::watching::watcher::{DueDump, DumpOutcome, Watcher};
use memprof_messages::{
    DumpReport, GdumpResult, GdumpStatus, OnOff, ProfileKind, Profiling, WatchStatus,
};

/// How long the exit waits for its dump.
const EXIT_PATIENCE: Duration = Duration::from_secs(5);
const EXIT_TICK: Duration = Duration::from_millis(10);

/// Who takes dumps that nobody asks for.
#[derive(Debug, Default)]
pub(super) struct AutomaticDumps {
    watcher: Mutex<Option<Arc<Watcher>>>,
    /// Not behind a lock: the exiting thread may hold any.
    exit_dump: OnceLock<ExitDump>,
    /// The last dump of a rule was refused for want of memory, which was logged.
    was_refused: AtomicBool,
}

impl AutomaticDumps {
    fn watch(&self, watcher: &Arc<Watcher>) {
        *lock(&self.watcher) = Some(Arc::clone(watcher));
    }

    /// This process's own: a forked child inherits the rules, but not the thread.
    fn watcher(&self) -> Option<Arc<Watcher>> {
        let watcher = lock(&self.watcher).clone();
        watcher.filter(|watcher| watcher.owner == process::id())
    }

    /// Nobody does any more.
    pub(super) fn end(&self) {
        if let Some(watcher) = lock(&self.watcher).take() {
            watcher.stop();
        }
        if let Some(exit_dump) = self.exit_dump.get() {
            exit_dump.cancel();
        }
    }
}

impl Profiler {
    /// Watches by these rules, in place of those before.
    ///
    /// # Errors
    /// The thread that watches cannot be started.
    pub fn watch(self: &Arc<Self>, rules: &[WatchRule]) -> Result<()> {
        let reads_cgroup = |rule: &WatchRule| matches!(rule.condition, Condition::CgroupAbove(_));
        if rules.iter().any(reads_cgroup) && cgroup::read_current().is_none() {
            log::warn!("cgroup_above never fires: no memory cgroup of this process can be read");
        }
        let watcher = Watcher::new(rules);
        self.unasked.watch(&watcher);
        if rules.iter().any(|rule| rule.condition == Condition::AtExit) {
            self.prepare_exit()?;
        }
        self.start_watching(&watcher)
    }

    /// Dumps at each new high-water mark of the resident memory, within `limits`.
    ///
    /// # Errors
    /// Why profiling is not on; the thread that watches cannot be started.
    pub fn gdump(self: &Arc<Self>, limits: GdumpLimits) -> Result<GdumpResult> {
        self.allocators.refresh(&self.settings);
        if let Some(why) = self.allocators.default_unprofilable_reason() {
            return Err(why.into());
        }
        let watcher = self.unasked.watcher().unwrap_or_else(|| {
            let fresh = Watcher::new(&[]);
            self.unasked.watch(&fresh);
            fresh
        });
        watcher.set_gdump(limits);
        self.start_watching(&watcher)?;
        let status = self.status();
        let inactive = (status.profiling != Profiling::Active).then(|| {
            "profiling is inactive: the dumps hold only what was sampled before and still lives; \
             send `activate`"
                .to_owned()
        });
        Ok(GdumpResult {
            state: OnOff::On.into(),
            gdump: watcher.gdump_status(),
            warnings: inactive.into_iter().collect(),
        })
    }

    /// Ends the dumps at high water: ours, and jemalloc's own, which a host may have been started
    /// with.
    ///
    /// # Errors
    /// jemalloc refused.
    pub fn stop_gdump(&self) -> Result<GdumpResult> {
        let ended = self
            .unasked
            .watcher()
            .and_then(|watcher| watcher.stop_gdump());
        let mut warnings = Vec::new();
        for jemalloc in jemallocs(&self.allocators.all()) {
            if jemalloc.stop_builtin_gdump()? {
                warnings.push(format!(
                    "{}'s own prof.gdump was on, and is off now",
                    jemalloc.identity
                ));
            }
        }
        Ok(GdumpResult {
            state: OnOff::Off.into(),
            gdump: ended,
            warnings,
        })
    }

    /// The plugin ends: stops watching, and takes the dump that a rule `at_exit` asks for, unless
    /// [`exit`](Self::exit) did.
    pub fn end(&self) {
        if let Some(watcher) = self.unasked.watcher() {
            watcher.stop();
        }
        self.exit();
    }

    /// The program ends: takes the dump that a rule `at_exit` asks for, or leaves it when that
    /// takes longer than five seconds. Allocates nothing on the calling thread and takes no lock
    /// there, because that thread may have been interrupted by a signal anywhere.
    pub fn exit(&self) {
        if let Some(exit_dump) = self.unasked.exit_dump.get() {
            exit_dump.run(EXIT_PATIENCE);
        }
    }

    fn prepare_exit(self: &Arc<Self>) -> Result<()> {
        // Weak: a thread must not keep the profiler of a host that ends.
        let profiler = Arc::downgrade(self);
        let exit_dump = ExitDump::prepare(move || {
            if let Some(profiler) = profiler.upgrade() {
                profiler.exclude_this_thread();
                profiler.dump_at_exit();
            }
        })?;
        // The first one stays: its thread does what another one would do.
        drop(self.unasked.exit_dump.set(exit_dump));
        Ok(())
    }

    fn dump_at_exit(&self) {
        let begun = Instant::now();
        let trigger = Trigger::Rule(Condition::AtExit, read_rss().unwrap_or(0));
        loop {
            match self.dump(None, ProfileKind::Heap, trigger) {
                Err(error) if error.kind == ErrorKind::Busy && begun.elapsed() < EXIT_PATIENCE => {
                    thread::sleep(EXIT_TICK);
                }
                Err(error) => return log::error!("no dump at the exit: {error}"),
                Ok(report) => return log_dump(&report, &trigger),
            }
        }
    }

    pub(super) fn watch_status(&self) -> Vec<WatchStatus> {
        self.unasked
            .watcher()
            .map_or(Vec::new(), |watcher| watcher.status())
    }

    pub(super) fn gdump_status(&self) -> Option<GdumpStatus> {
        self.unasked.watcher()?.gdump_status()
    }

    fn start_watching(self: &Arc<Self>, watcher: &Arc<Watcher>) -> Result<()> {
        // Weak: a thread must not keep the profiler of a host that ends.
        let profiler = Arc::downgrade(self);
        let entering = Arc::downgrade(self);
        let enter = move || {
            if let Some(profiler) = entering.upgrade() {
                profiler.exclude_this_thread();
            }
        };
        watcher.start(enter, move |due| match profiler.upgrade() {
            Some(profiler) => profiler.act(due),
            None => DumpOutcome::Done,
        })
    }

    fn act(self: &Arc<Self>, due: DueDump) -> DumpOutcome {
        if due.activate && self.status().profiling == Profiling::Inactive {
            match self.activate(ActivateOptions::default()) {
                Ok(_) => log::info!("profiling is active: {}", due.trigger),
                Err(error) if error.kind == ErrorKind::Busy => return DumpOutcome::Busy,
                Err(error) => log::error!("{}: {error}", due.trigger),
            }
            return DumpOutcome::Activated;
        }
        match self.dump(None, ProfileKind::Heap, due.trigger) {
            Ok(report) => {
                self.unasked.was_refused.store(false, Ordering::Relaxed);
                log_dump(&report, &due.trigger);
            }
            Err(error) if error.kind == ErrorKind::Busy => return DumpOutcome::Busy,
            Err(error) if error.os_error() == Some(Errno::NOMEM) => {
                // A rule such as cgroup_above meets it again and again until there is memory.
                if !self.unasked.was_refused.swap(true, Ordering::Relaxed) {
                    log::error!("{}: {error}; tried again from time to time", due.trigger);
                }
                return DumpOutcome::Refused;
            }
            Err(error) => log::error!("{}: {error}", due.trigger),
        }
        DumpOutcome::Done
    }
}

fn log_dump(report: &DumpReport, trigger: &Trigger) {
    let path = report.largest.path.display();
    let stacks = match report.largest.stacks {
        1 => "1 stack".to_owned(),
        stacks => format!("{stacks} stacks"),
    };
    log::info!("{trigger}: dumped {stacks} to {path}");
}
