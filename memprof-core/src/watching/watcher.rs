//! The thread that polls the memory while a rule needs it.

use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::dumps::trigger::Trigger;
use crate::error::{Error, Result};
use crate::system::clock::{format_rfc3339, latest_formattable_time};
use crate::watching::high_water_watch::{GdumpLimits, HighWaterWatch};
use crate::watching::memory_reading::MemoryReading;
use crate::watching::rule::{RuleState, WatchRule};
use memprof_messages::{GdumpStatus, Operation, WatchStatus};

/// Time between two readings of the memory. Rules with `every` alone need no readings.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time until the next attempt after lack of memory prevented a dump.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Outcome of a due dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DumpOutcome {
    /// A dump was taken, or failed for a reason that will not change.
    Done,
    /// Sampling was activated instead, or could not be: both count for the rule, which fires again after its minimum
    /// interval.
    Activated,
    /// Another dump was running. The next poll tries again.
    Busy,
    /// Too little memory was left: a dump could have killed the process. A later poll tries again.
    Refused,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DueDump {
    pub trigger: Trigger,
    /// Whether sampling may be activated for it.
    pub activate: bool,
}

/// Rules of one process, and the state of their thread. A forked child gets a new watcher, without rules.
#[derive(Debug)]
pub(crate) struct Watcher {
    pub owner: u32,
    watch: Mutex<WatchState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WatchState {
    rules: Vec<RuleState>,
    gdump: Option<HighWaterWatch>,
    is_polled: bool,
    is_over: bool,
}

impl Watcher {
    /// Creates a watcher for this process, without a thread.
    pub(crate) fn new(rules: &[WatchRule]) -> Arc<Self> {
        let watcher = Self {
            owner: process::id(),
            watch: Mutex::default(),
            changed: Condvar::new(),
        };
        watcher.set_rules(rules);
        Arc::new(watcher)
    }

    /// Replaces the rules. The caller must also call [`start`](Self::start), in case the thread is not running.
    pub(crate) fn set_rules(&self, rules: &[WatchRule]) {
        let now = Instant::now();
        let rules = rules.iter().map(|rule| RuleState::new(*rule, now));
        self.lock().rules = rules.collect();
        self.changed.notify_all();
    }

    /// Starts the polling thread. Does nothing if it is running, or if no rule needs it. The thread calls `enter`
    /// before each reading, and `act` for each due dump.
    ///
    /// # Errors
    /// `Io`: the thread cannot be started.
    pub(crate) fn start(
        self: &Arc<Self>,
        enter: impl Fn() + Send + 'static,
        act: impl Fn(DueDump) -> DumpOutcome + Send + 'static,
    ) -> Result<()> {
        let mut watch = self.lock();
        if watch.is_polled || watch.time_until_reading(Instant::now()).is_none() {
            return Ok(());
        }
        let watcher = Arc::clone(self);
        memprof_own::spawn(c"memprof-watch", move |privileges| {
            let enter = || {
                privileges.limit_to_main_thread();
                enter();
            };
            watcher.run_poll_loop(enter, &act);
        })
        .map_err(|error| {
            Error::io_for_operation(
                Operation::Thread,
                "start the thread that watches the memory",
                &error,
            )
        })?;
        watch.is_polled = true;
        Ok(())
    }

    /// Starts a `gdump`, the watch for high-water marks, with these limits. Replaces a running one. The caller must
    /// also call [`start`](Self::start), in case the thread is not running.
    ///
    /// # Errors
    /// `InvalidArgument`: it would end after the year 9999.
    pub(crate) fn start_gdump(&self, limits: GdumpLimits) -> Result<()> {
        let gdump = HighWaterWatch::new(limits, Instant::now(), SystemTime::now())?;
        self.lock().gdump = Some(gdump);
        self.changed.notify_all();
        Ok(())
    }

    /// Ends the `gdump`, the watch for high-water marks, and returns its last status. `None` if none was running.
    pub(crate) fn stop_gdump(&self) -> Option<GdumpStatus> {
        let ended = self.lock().gdump.take();
        self.changed.notify_all();
        ended.map(|gdump| gdump.status())
    }

    /// Stops the polling thread without waiting for its end.
    pub(crate) fn stop(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// State of the watch for high-water marks. `None` if there is none.
    pub(crate) fn gdump_status(&self) -> Option<GdumpStatus> {
        self.lock().gdump.as_ref().map(HighWaterWatch::status)
    }

    /// State of each rule. Times are those of the system clock.
    pub(crate) fn rules_status(&self) -> Vec<WatchStatus> {
        let (now, clock) = (Instant::now(), SystemTime::now());
        let time_text = |instant: Instant| {
            // The system clock may be set to any value, and an interval may have any length.
            format_rfc3339(match instant.checked_duration_since(now) {
                Some(ahead) => clock
                    .checked_add(ahead)
                    .unwrap_or_else(latest_formattable_time),
                None => clock
                    .checked_sub(now.duration_since(instant))
                    .unwrap_or(SystemTime::UNIX_EPOCH),
            })
        };
        let status = |watched: &RuleState| WatchStatus {
            rule: watched.rule.condition.to_string(),
            fired: watched.fired,
            last_fired: watched.last_fired.map(time_text),
            next: watched.next_due_time().map(|next| time_text(next.max(now))),
        };
        self.lock().rules.iter().map(status).collect()
    }

    /// Body of the polling thread. Calls `enter` and reads the memory when a reading is due, and calls `act` for the
    /// dump of the first rule that fires, until nothing needs to be polled. If the memory cannot be read, logs that
    /// once. Waits [`RETRY_DELAY`] after a refused dump.
    fn run_poll_loop(&self, mut enter: impl FnMut(), act: &impl Fn(DueDump) -> DumpOutcome) {
        let mut is_unreadable = false;
        let mut is_busy = false;
        let mut refused_at: Option<Instant> = None;
        while self.sleep_until_reading(is_unreadable || is_busy || refused_at.is_some()) {
            enter();
            let reading = match MemoryReading::read() {
                Ok(reading) => reading,
                Err(error) => {
                    if !is_unreadable {
                        log::warn!("watch rules wait: {error}");
                    }
                    is_unreadable = true;
                    continue;
                }
            };
            is_unreadable = false;
            let now = Instant::now();
            // The lock is not held while foreign code runs, not even for the log.
            let finished = self.lock().take_finished_gdump(now);
            if let Some(GdumpStatus { taken, .. }) = finished {
                log::info!("gdump is over: it took {taken} dumps");
            }
            let due = self.lock().find_due_dump(&reading, now);
            // A dump that is due now is not lost: a rule fires again at each reading until its dump is recorded.
            if refused_at.is_some_and(|refused| now < refused + RETRY_DELAY) {
                continue;
            }
            let outcome = due.map(|due| catch_panic(|| act(due)));
            if let Some(outcome) = outcome {
                self.lock().record_outcome(outcome, &reading, now);
            }
            is_busy = outcome == Some(DumpOutcome::Busy);
            refused_at = (outcome == Some(DumpOutcome::Refused)).then_some(now);
        }
    }

    /// Sleeps until the next reading is due, or for a whole poll interval if `has_failed`, or until a `gdump` or the
    /// watcher is changed. Returns false if nothing needs to be polled any more: the thread then ends, and may be
    /// started again.
    fn sleep_until_reading(&self, has_failed: bool) -> bool {
        let mut watch = self.lock();
        match watch.time_until_reading(Instant::now()) {
            Some(wait) => {
                let wait = if has_failed { POLL_INTERVAL } else { wait };
                let waited = self.changed.wait_timeout(watch, wait);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                true
            }
            None => {
                watch.is_polled = false;
                false
            }
        }
    }

    /// Locks the state, even after a panic in the polling thread.
    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `act`. A panic, which the panic hook has logged, counts as `Done`, so that it ends neither the thread nor the
/// rule.
fn catch_panic(act: impl FnOnce() -> DumpOutcome) -> DumpOutcome {
    panic::catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|payload| {
        // The payload is leaked, because dropping it runs foreign code, which may panic again.
        std::mem::forget(payload);
        DumpOutcome::Done
    })
}

impl WatchState {
    /// Time until the next reading: [`POLL_INTERVAL`] if a rule or a `gdump` depends on the memory in use, or else the
    /// time until the next rule may fire. `None` if nothing needs to be polled.
    fn time_until_reading(&self, now: Instant) -> Option<Duration> {
        if self.is_over {
            return None;
        }
        let reads_memory = |watched: &RuleState| watched.rule.condition.depends_on_memory();
        let polls = self.gdump.is_some() || self.rules.iter().any(reads_memory);
        let due = self.rules.iter().filter_map(RuleState::next_due_time).min();
        let due = due.map(|due| due.saturating_duration_since(now));
        match due {
            Some(due) if !polls => Some(due),
            _ => polls.then_some(POLL_INTERVAL),
        }
    }

    /// The dump that is due at this reading: that of the first rule that fires, or else one for a new high-water mark.
    /// It requests the activation of sampling if any rule that fires does. `None` if nothing fires.
    fn find_due_dump(&mut self, reading: &MemoryReading, now: Instant) -> Option<DueDump> {
        let mut due = None;
        for watched in &mut self.rules {
            if let Some(bytes) = watched.evaluate(reading, now) {
                let activate = due.is_some_and(|due: DueDump| due.activate) | watched.rule.activate;
                let trigger = Trigger::Rule(watched.rule.condition, bytes);
                let trigger = due.map_or(trigger, |due| due.trigger);
                due = Some(DueDump { trigger, activate });
            }
        }
        let gdump = self.gdump.as_mut();
        if due.is_none() && gdump.is_some_and(|gdump| gdump.is_new_high(reading.rss)) {
            due = Some(DueDump {
                trigger: Trigger::HighWater(reading.rss),
                activate: false,
            });
        }
        due
    }

    /// Removes the `gdump` if it reached a limit, and returns its last status. `None` if it did not, or if there is
    /// none.
    fn take_finished_gdump(&mut self, now: Instant) -> Option<GdumpStatus> {
        let finished = self.gdump.take_if(|gdump| gdump.is_over(now))?;
        Some(finished.status())
    }

    /// Records the outcome for every rule that fires at this reading, because all of them share the dump that
    /// [`find_due_dump`](Self::find_due_dump) returned. A dump also counts for a `gdump` whose mark the reading
    /// exceeds. Records nothing if no dump was taken because of another one or for lack of memory, so the rules fire
    /// again.
    fn record_outcome(&mut self, outcome: DumpOutcome, reading: &MemoryReading, now: Instant) {
        for watched in &mut self.rules {
            match outcome {
                DumpOutcome::Busy | DumpOutcome::Refused => {}
                _ if watched.evaluate(reading, now).is_none() => {}
                DumpOutcome::Done => watched.record_dump(reading, now),
                DumpOutcome::Activated => watched.record_activation(reading, now),
            }
        }
        if let Some(gdump) = &mut self.gdump
            && outcome == DumpOutcome::Done
            && gdump.is_new_high(reading.rss)
        {
            gdump.record_dump(reading.rss);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dumps::trigger::{Condition, Threshold};

    const START_RSS: u64 = 1000;

    fn reading(rss: u64) -> MemoryReading {
        MemoryReading {
            rss,
            available: 1 << 40,
            cgroup: None,
        }
    }

    fn watch(conditions: &[Condition], start: Instant) -> WatchState {
        let rule = |condition: &Condition| WatchRule {
            condition: *condition,
            min_interval: Duration::ZERO,
            activate: false,
        };
        let rules = conditions
            .iter()
            .map(|condition| RuleState::new(rule(condition), start));
        WatchState {
            rules: rules.collect(),
            ..WatchState::default()
        }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn polling_needs_rule_that_reads_memory() {
        let start = Instant::now();
        let check = |conditions: &[Condition], expected: Option<Duration>| {
            assert_eq!(
                watch(conditions, start).time_until_reading(start),
                expected,
                "{conditions:?}"
            );
        };
        let every = Condition::Every(seconds(600));
        check(&[], None);
        check(&[Condition::AtExit], None);
        check(&[every], Some(seconds(600)));
        check(&[every, Condition::Every(seconds(9))], Some(seconds(9)));
        check(&[every, Condition::RssGrowth(1)], Some(POLL_INTERVAL));
        let mut over = watch(&[every], start);
        over.is_over = true;
        assert_eq!(over.time_until_reading(start), None);
        let mut with_gdump = watch(&[every], start);
        let limits = GdumpLimits {
            files: 1,
            duration: seconds(1),
        };
        let gdump = HighWaterWatch::new(limits, start, SystemTime::UNIX_EPOCH);
        with_gdump.gdump = Some(gdump.unwrap());
        assert_eq!(with_gdump.time_until_reading(start), Some(POLL_INTERVAL));
        // Its time is over, and the polling with it.
        assert!(with_gdump.take_finished_gdump(start).is_none());
        assert!(with_gdump.take_finished_gdump(start + seconds(1)).is_some());
        assert_eq!(with_gdump.time_until_reading(start), Some(seconds(600)));
    }

    #[test]
    fn simultaneous_rules_share_one_dump() {
        let start = Instant::now();
        let above = Condition::RssAbove(Threshold::Bytes(START_RSS));
        let mut watch = watch(&[above, Condition::Every(seconds(5))], start);
        let now = start + seconds(5);
        let due = watch.find_due_dump(&reading(START_RSS), now).unwrap();
        assert_eq!(due.trigger, Trigger::Rule(above, START_RSS));
        watch.record_outcome(DumpOutcome::Done, &reading(START_RSS), now);
        let fired: Vec<_> = watch.rules.iter().map(|watched| watched.fired).collect();
        assert_eq!(fired, [1, 1]);
        assert!(watch.find_due_dump(&reading(START_RSS), now).is_none());
    }

    #[test]
    fn due_dump_is_retried_after_busy() {
        let start = Instant::now();
        let mut watch = watch(&[Condition::RssAbove(Threshold::Bytes(START_RSS))], start);
        assert!(watch.find_due_dump(&reading(START_RSS), start).is_some());
        watch.record_outcome(DumpOutcome::Busy, &reading(START_RSS), start);
        let later = start + POLL_INTERVAL;
        assert!(watch.find_due_dump(&reading(START_RSS), later).is_some());
        watch.record_outcome(DumpOutcome::Done, &reading(START_RSS), later);
        assert!(
            watch
                .find_due_dump(&reading(START_RSS), later + POLL_INTERVAL)
                .is_none()
        );
    }

    #[test]
    fn panic_ends_neither_thread_nor_rule() {
        let rule = WatchRule {
            condition: Condition::Every(Duration::from_millis(1)),
            min_interval: Duration::ZERO,
            activate: false,
        };
        let watcher = Watcher::new(&[rule]);
        let (acted, acts) = std::sync::mpsc::sync_channel(0);
        let act = move |_| {
            acted.send(()).unwrap();
            panic!("on purpose");
        };
        watcher.start(|| {}, act).unwrap();
        acts.recv().unwrap();
        acts.recv().unwrap();
        watcher.stop();
    }

    #[test]
    fn thread_of_replaced_rules_ends() {
        let rule = WatchRule {
            condition: Condition::RssAbove(Threshold::Bytes(1)),
            min_interval: Duration::ZERO,
            activate: false,
        };
        let watcher = Watcher::new(&[rule]);
        let (acted, acts) = std::sync::mpsc::channel();
        watcher
            .start(
                || {},
                move |_| {
                    acted.send(()).unwrap();
                    DumpOutcome::Done
                },
            )
            .unwrap();
        acts.recv().unwrap();
        watcher.set_rules(&[]);
        // The closure is dropped with the thread.
        assert!(acts.recv().is_err());
        assert_eq!(watcher.rules_status().len(), 0);
    }

    #[test]
    fn stopped_thread_drops_its_action() {
        let rule = WatchRule {
            condition: Condition::RssAbove(Threshold::Bytes(1)),
            min_interval: Duration::ZERO,
            activate: false,
        };
        let watcher = Watcher::new(&[rule]);
        let (acted, acts) = std::sync::mpsc::channel();
        watcher
            .start(
                || {},
                move |due| {
                    acted.send(due.trigger).unwrap();
                    DumpOutcome::Done
                },
            )
            .unwrap();
        let trigger = acts.recv().unwrap();
        assert_eq!(trigger.kind().name(), "rss-above");
        watcher.stop();
        // The closure is dropped with the thread.
        assert!(acts.recv().is_err());
        let status = watcher.rules_status();
        assert_eq!(
            (status[0].rule.as_str(), status[0].fired),
            ("rss_above = \"1B\"", 1)
        );
        assert!(status[0].last_fired.is_some());
    }
}
