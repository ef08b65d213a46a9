//! Automatic dumps: by watch rules, at new high-water marks, and at the program's exit.

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
use crate::watching::high_water_watch::GdumpLimits;
use crate::watching::memory_reading::read_rss;
use crate::watching::rule::WatchRule;
use crate::watching::watcher::{DueDump, DumpOutcome, Watcher};
use memprof_messages::{
    DumpReport, GdumpResult, GdumpStatus, OnOff, ProfileKind, Profiling, WatchStatus,
};

/// Maximum time that the exiting thread waits for the exit dump.
const EXIT_DUMP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two attempts to take the exit dump while another dump runs.
const BUSY_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The watcher and the exit dump of a process.
#[derive(Debug, Default)]
pub(super) struct AutomaticDumps {
    watcher: Mutex<Option<Arc<Watcher>>>,
    /// Not protected by a lock, because the exiting thread may hold any lock.
    exit_dump: OnceLock<ExitDump>,
    /// Set after lack of memory prevented a rule's dump, so that this is logged only once.
    was_refused: AtomicBool,
}

impl AutomaticDumps {
    /// The watcher of this process. `None` if there is none. Also `None` in a forked child, which inherits the rules
    /// but not the thread.
    fn watcher(&self) -> Option<Arc<Watcher>> {
        let watcher = lock(&self.watcher).clone();
        watcher.filter(|watcher| watcher.owner == process::id())
    }

    /// The watcher of this process. Creates one without rules if there is none.
    fn get_or_create_watcher(&self) -> Arc<Watcher> {
        self.watcher().unwrap_or_else(|| {
            // Created without the lock, which a child that is forked meanwhile would inherit.
            let fresh = Watcher::new(&[]);
            let mut stored = lock(&self.watcher);
            match &*stored {
                // Of another thread, which created it meanwhile.
                Some(known) if known.owner == fresh.owner => Arc::clone(known),
                _ => Arc::clone(stored.insert(fresh)),
            }
        })
    }

    /// Stops the watcher thread and cancels the exit dump.
    pub(super) fn stop(&self) {
        if let Some(watcher) = lock(&self.watcher).take() {
            watcher.stop();
        }
        if let Some(exit_dump) = self.exit_dump.get() {
            exit_dump.cancel();
        }
    }
}

impl Profiler {
    /// Replaces the watch rules, and starts the threads that they need: the watcher's, and the one that takes a dump at
    /// the exit. An exit dump that earlier rules requested stays. Warns if a rule needs a memory cgroup and none can be
    /// read.
    ///
    /// # Errors
    /// `Io`: the thread of the watcher or of the exit dump cannot be started.
    pub fn set_watch_rules(self: &Arc<Self>, rules: &[WatchRule]) -> Result<()> {
        let reads_cgroup = |rule: &WatchRule| matches!(rule.condition, Condition::CgroupAbove(_));
        if rules.iter().any(reads_cgroup) && cgroup::read_current_cgroup().is_none() {
            log::warn!("cgroup_above never fires: no memory cgroup of this process can be read");
        }
        let watcher = self.automatic_dumps.get_or_create_watcher();
        watcher.set_rules(rules);
        if rules.iter().any(|rule| rule.condition == Condition::AtExit) {
            self.prepare_exit_dump()?;
        }
        self.start_watcher(&watcher)
    }

    /// Starts to dump at each new high-water mark of the resident memory, within `limits`. Turns off jemalloc's
    /// built-in dumps of that kind, with a warning. Also warns while profiling is inactive.
    ///
    /// # Errors
    /// The reason why profiling is impossible. `InvalidArgument`: the watch would end after the year 9999. `Io`: the
    /// watcher thread cannot be started.
    pub fn start_gdump(self: &Arc<Self>, limits: GdumpLimits) -> Result<GdumpResult> {
        self.allocators.search_if_changed(&self.settings);
        if let Some(reason) = self.allocators.default_unprofilable_reason() {
            return Err(reason.into());
        }
        let watcher = self.automatic_dumps.get_or_create_watcher();
        watcher.start_gdump(limits)?;
        self.start_watcher(&watcher)?;
        let mut warnings = self.stop_builtin_gdump()?;
        let status = self.status();
        let inactive = (status.profiling != Profiling::Active).then(|| {
            "profiling is inactive: the dumps hold only what was sampled before and still lives; \
             send `activate`"
                .to_owned()
        });
        Ok(GdumpResult {
            state: OnOff::On.into(),
            gdump: watcher.gdump_status(),
            warnings: {
                warnings.extend(inactive);
                warnings
            },
        })
    }

    /// Stops the dumps at high-water marks: memprof's, and jemalloc's built-in ones, which the host may have enabled at
    /// its start.
    ///
    /// # Errors
    /// `Allocator`: jemalloc refused.
    pub fn stop_gdump(&self) -> Result<GdumpResult> {
        let last_status = self
            .automatic_dumps
            .watcher()
            .and_then(|watcher| watcher.stop_gdump());
        Ok(GdumpResult {
            state: OnOff::Off.into(),
            gdump: last_status,
            warnings: self.stop_builtin_gdump()?,
        })
    }

    /// Stops jemalloc's built-in dumps at high-water marks. Returns a warning for each jemalloc that had them enabled.
    ///
    /// # Errors
    /// `Allocator`: jemalloc refused.
    fn stop_builtin_gdump(&self) -> Result<Vec<String>> {
        let mut warnings = Vec::new();
        for jemalloc in jemallocs(&self.allocators.all_backends()) {
            if jemalloc.stop_builtin_gdump()? {
                warnings.push(format!(
                    "{}'s own prof.gdump was on, and is off now",
                    jemalloc.identity
                ));
            }
        }
        Ok(warnings)
    }

    /// Stops the watcher thread, and takes the dump of an `at_exit` rule unless it was taken already. For the end of
    /// the plugin.
    pub fn shut_down(&self) {
        if let Some(watcher) = self.automatic_dumps.watcher() {
            watcher.stop();
        }
        self.take_exit_dump();
    }

    /// Takes the dump of an `at_exit` rule, and waits up to five seconds for it. Does nothing without such a rule. For
    /// the program's exit: the calling thread allocates nothing and takes no lock, because a signal may have
    /// interrupted it anywhere.
    pub fn take_exit_dump(&self) {
        if let Some(exit_dump) = self.automatic_dumps.exit_dump.get() {
            exit_dump.run_work(EXIT_DUMP_TIMEOUT);
        }
    }

    /// Starts the thread that will take the exit dump. If an earlier call started one, that one stays, and the new
    /// thread ends at once.
    ///
    /// # Errors
    /// `Io`: the thread cannot be started.
    fn prepare_exit_dump(self: &Arc<Self>) -> Result<()> {
        // A weak reference: the thread must not keep the profiler alive when the host ends.
        let profiler = Arc::downgrade(self);
        let exit_dump = ExitDump::start_thread(move || {
            if let Some(profiler) = profiler.upgrade() {
                profiler.exclude_this_thread();
                profiler.dump_at_exit();
            }
        })?;
        // If there is an earlier exit dump, it stays, because its thread does the same.
        drop(self.automatic_dumps.exit_dump.set(exit_dump));
        Ok(())
    }

    /// Takes the exit dump. Retries for up to [`EXIT_DUMP_TIMEOUT`] while another dump runs. Errors are only logged.
    fn dump_at_exit(&self) {
        let start = Instant::now();
        let trigger = Trigger::Rule(Condition::AtExit, read_rss().unwrap_or(0));
        loop {
            match self.dump(None, ProfileKind::Heap, trigger) {
                Err(error)
                    if error.kind == ErrorKind::Busy && start.elapsed() < EXIT_DUMP_TIMEOUT =>
                {
                    thread::sleep(BUSY_RETRY_INTERVAL);
                }
                Err(error) => return log::error!("no dump at the exit: {error}"),
                Ok(report) => return log_dump(&report, &trigger),
            }
        }
    }

    /// State of each watch rule, for `status`. Empty without rules.
    pub(super) fn watch_status(&self) -> Vec<WatchStatus> {
        self.automatic_dumps
            .watcher()
            .map_or(Vec::new(), |watcher| watcher.rules_status())
    }

    /// State of the watch for high-water marks. `None` while none is running.
    pub(super) fn gdump_status(&self) -> Option<GdumpStatus> {
        self.automatic_dumps.watcher()?.gdump_status()
    }

    /// Starts the watcher thread if its rules, or a watch for high-water marks, need it.
    ///
    /// # Errors
    /// `Io`: the thread cannot be started.
    fn start_watcher(self: &Arc<Self>, watcher: &Arc<Watcher>) -> Result<()> {
        // A weak reference: the thread must not keep the profiler alive when the host ends.
        let profiler = Arc::downgrade(self);
        let entering = Arc::downgrade(self);
        let enter = move || {
            if let Some(profiler) = entering.upgrade() {
                profiler.exclude_this_thread();
            }
        };
        watcher.start(enter, move |due| match profiler.upgrade() {
            Some(profiler) => profiler.handle_due_dump(due),
            None => DumpOutcome::Done,
        })
    }

    /// Takes a due dump. If the rule requests it and sampling is off, activates sampling instead, without a dump. The
    /// result requests another attempt if a dump is running or memory is short. Other errors are only logged.
    fn handle_due_dump(self: &Arc<Self>, due: DueDump) -> DumpOutcome {
        let activates = due.activate && self.status().profiling == Profiling::Inactive;
        let (acted, outcome) = match activates {
            true => {
                let activated = self.activate(ActivateOptions::default());
                let acted = activated.map(|_| log::info!("profiling is active: {}", due.trigger));
                (acted, DumpOutcome::Activated)
            }
            false => {
                let dumped = self.dump(None, ProfileKind::Heap, due.trigger);
                let acted = dumped.map(|report| log_dump(&report, &due.trigger));
                (acted, DumpOutcome::Done)
            }
        };
        let was_refused = &self.automatic_dumps.was_refused;
        match acted {
            Ok(()) => was_refused.store(false, Ordering::Relaxed),
            Err(error) if error.kind == ErrorKind::Busy => return DumpOutcome::Busy,
            Err(error) if error.errno() == Some(Errno::NOMEM) => {
                // Logged only once: without memory, a rule such as cgroup_above is refused again and again.
                if !was_refused.swap(true, Ordering::Relaxed) {
                    log::error!("{}: {error}; tried again from time to time", due.trigger);
                }
                return DumpOutcome::Refused;
            }
            Err(error) => log::error!("{}: {error}", due.trigger),
        }
        outcome
    }
}

/// Logs an automatic dump: its trigger, and the number of stacks and the path of its largest file.
fn log_dump(report: &DumpReport, trigger: &Trigger) {
    let path = report.largest.path.display();
    let stacks = match report.largest.stacks {
        1 => "1 stack".to_owned(),
        stacks => format!("{stacks} stacks"),
    };
    log::info!("{trigger}: dumped {stacks} to {path}");
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::allocators::fake::{Behaviour, fake_mallctl};
    use crate::profiler::tests::new_profiler;

    /// A jemalloc without memory.
    struct ExhaustedFake;
    impl Behaviour for ExhaustedFake {
        const ACTIVATION_STATUS: i32 = libc::ENOMEM;
    }

    #[test]
    fn simultaneous_first_calls_get_one_watcher() {
        for _ in 0..200 {
            let dumps = AutomaticDumps::default();
            let started = AtomicU32::new(0);
            let get = || {
                started.fetch_add(1, Ordering::Relaxed);
                // A barrier would wake one thread too late.
                while started.load(Ordering::Relaxed) < 2 {
                    std::hint::spin_loop();
                }
                dumps.get_or_create_watcher()
            };
            let (one, other) = thread::scope(|scope| {
                let one = scope.spawn(get);
                (get(), one.join().unwrap())
            });
            assert!(Arc::ptr_eq(&one, &other));
        }
    }

    #[test]
    fn activation_that_lacks_memory_is_tried_again() {
        let (profiler, _directory) = new_profiler(Some(fake_mallctl::<ExhaustedFake>()));
        let outcome = profiler.handle_due_dump(DueDump {
            trigger: Trigger::HighWater(1),
            activate: true,
        });
        assert_eq!(outcome, DumpOutcome::Refused);
    }
}
