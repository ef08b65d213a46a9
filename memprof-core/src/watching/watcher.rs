//! The thread that looks at the memory now and then, while there is a rule that needs it.

use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::dumps::trigger::Trigger;
use crate::error::{Error, Result};
use crate::watching::gdump::{GdumpLimits, HighWaterWatch};
use crate::watching::memory_reading::MemoryReading;
use crate::watching::rule::{RuleState, WatchRule};
use memprof_messages::{GdumpStatus, WatchStatus};

/// Between two looks at the memory; a rule `every` alone needs none.
const POLL: Duration = Duration::from_millis(500);
/// Before the next try of a dump that was refused for want of memory.
const LATER: Duration = Duration::from_secs(10);

/// What came of a rule that fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DumpOutcome {
    /// A dump was taken, or refused for a reason that another try does not mend.
    Done,
    /// Sampling was switched on instead.
    Activated,
    /// A dump was running: the next poll tries again.
    Busy,
    /// So little memory was left that a dump could have ended the process: tried again later.
    Refused,
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueDump {
    pub trigger: Trigger,
    /// Sampling may be switched on for it.
    pub activate: bool,
}

/// The rules of one process. A forked child has its own, which is empty.
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
    pub(crate) fn new(rules: &[WatchRule]) -> Arc<Self> {
        let now = Instant::now();
        let rules = rules
            .iter()
            .map(|rule| RuleState::new(*rule, now))
            .collect();
        Arc::new(Self {
            owner: process::id(),
            watch: Mutex::new(WatchState {
                rules,
                ..WatchState::default()
            }),
            changed: Condvar::new(),
        })
    }

    /// Starts the thread if there is something to poll for and none runs. `enter` is run on it
    /// before each look; `act` does what is due.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(
        self: &Arc<Self>,
        enter: impl Fn() + Send + 'static,
        act: impl Fn(DueDump) -> DumpOutcome + Send + 'static,
    ) -> Result<()> {
        let mut watch = self.lock();
        if watch.is_polled || watch.sleep_until_due(Instant::now()).is_none() {
            return Ok(());
        }
        let watcher = Arc::clone(self);
        memprof_own::spawn(c"memprof-watch", move |privileges| {
            let enter = || {
                privileges.match_main_thread();
                enter();
            };
            watcher.poll(enter, &act);
        })
        .map_err(|error| Error::io("start the thread that watches the memory", &error))?;
        watch.is_polled = true;
        Ok(())
    }

    /// Begins a `gdump`, in place of one that runs.
    pub(crate) fn set_gdump(&self, limits: GdumpLimits) {
        self.lock().gdump = Some(HighWaterWatch::new(
            limits,
            Instant::now(),
            SystemTime::now(),
        ));
        self.changed.notify_all();
    }

    /// Ends the `gdump`; tells how far it came.
    pub(crate) fn stop_gdump(&self) -> Option<GdumpStatus> {
        let ended = self.lock().gdump.take();
        self.changed.notify_all();
        ended.map(|gdump| gdump.status())
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    pub(crate) fn gdump_status(&self) -> Option<GdumpStatus> {
        self.lock().gdump.as_ref().map(HighWaterWatch::status)
    }

    pub(crate) fn status(&self) -> Vec<WatchStatus> {
        let (now, clock) = (Instant::now(), SystemTime::now());
        let text = |instant: Instant| {
            let time = match instant.checked_duration_since(now) {
                Some(ahead) => clock.checked_add(ahead),
                None => clock.checked_sub(now.duration_since(instant)),
            };
            // The clock may have been set to anything.
            let time = time
                .unwrap_or(SystemTime::UNIX_EPOCH)
                .max(SystemTime::UNIX_EPOCH);
            humantime::format_rfc3339_seconds(time).to_string()
        };
        let status = |watched: &RuleState| WatchStatus {
            rule: watched.rule.condition.to_string(),
            fired: watched.fired,
            last_fired: watched.last_fired.map(text),
            next: watched.next().map(|next| text(next.max(now))),
        };
        self.lock().rules.iter().map(status).collect()
    }

    fn poll(&self, mut enter: impl FnMut(), act: &impl Fn(DueDump) -> DumpOutcome) {
        let mut is_blind = false;
        let mut is_busy = false;
        let mut refused: Option<Instant> = None;
        while self.sleep_until_due(is_blind || is_busy || refused.is_some()) {
            enter();
            let reading = match MemoryReading::take() {
                Ok(reading) => reading,
                Err(error) => {
                    if !is_blind {
                        log::warn!("watch rules wait: {error}");
                    }
                    is_blind = true;
                    continue;
                }
            };
            is_blind = false;
            let now = Instant::now();
            // Nothing foreign, the log neither, runs while the lock is held.
            let ended = self.lock().gdump_over(now);
            if let Some(GdumpStatus { taken, .. }) = ended {
                log::info!("gdump is over: it took {taken} dumps");
            }
            let due = self.lock().due(&reading, now);
            if refused.is_some_and(|at| now < at + LATER) {
                continue;
            }
            let outcome = due.map(|due| catch_panic(|| act(due)));
            if let Some(outcome) = outcome {
                self.lock().record_outcome(outcome, &reading, now);
            }
            is_busy = outcome == Some(DumpOutcome::Busy);
            refused = (outcome == Some(DumpOutcome::Refused)).then_some(now);
        }
    }

    /// Sleeps until the next look is due, which is not at once when the last one came to nothing.
    /// False when there is nothing to poll for any more.
    fn sleep_until_due(&self, came_to_nothing: bool) -> bool {
        let mut watch = self.lock();
        match watch.sleep_until_due(Instant::now()) {
            Some(rest) => {
                let rest = if came_to_nothing { POLL } else { rest };
                let waited = self.changed.wait_timeout(watch, rest);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                true
            }
            None => {
                watch.is_polled = false;
                false
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A panic, which the hook has logged, ends neither the thread nor the rule.
fn catch_panic(act: impl FnOnce() -> DumpOutcome) -> DumpOutcome {
    panic::catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|payload| {
        // Dropping a payload runs foreign code, which may panic again.
        std::mem::forget(payload);
        DumpOutcome::Done
    })
}

impl WatchState {
    /// How long nothing needs to be looked at; None: there is nothing to poll for.
    fn sleep_until_due(&self, now: Instant) -> Option<Duration> {
        if self.is_over {
            return None;
        }
        let reads_memory = |watched: &RuleState| watched.rule.condition.reads_memory();
        let polls = self.gdump.is_some() || self.rules.iter().any(reads_memory);
        let due = self.rules.iter().filter_map(RuleState::next).min();
        let due = due.map(|due| due.saturating_duration_since(now));
        match due {
            Some(due) if !polls => Some(due),
            _ => polls.then_some(POLL),
        }
    }

    /// The first thing to do, and what it is done for.
    fn due(&mut self, reading: &MemoryReading, now: Instant) -> Option<DueDump> {
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

    /// Ends a `gdump` whose time or files are up.
    fn gdump_over(&mut self, now: Instant) -> Option<GdumpStatus> {
        let ended = self.gdump.take_if(|gdump| gdump.is_over(now))?;
        Some(ended.status())
    }

    /// Everything that wanted the dump has it: what [`due`](Self::due) judged at `now`.
    fn record_outcome(&mut self, outcome: DumpOutcome, reading: &MemoryReading, now: Instant) {
        for watched in &mut self.rules {
            match outcome {
                DumpOutcome::Busy | DumpOutcome::Refused => {}
                _ if watched.evaluate(reading, now).is_none() => {}
                DumpOutcome::Done => watched.record_dump(reading, now),
                DumpOutcome::Activated => watched.activate(reading, now),
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
    fn nothing_is_polled_without_a_rule_that_needs_it() {
        let start = Instant::now();
        let check = |conditions: &[Condition], expected: Option<Duration>| {
            assert_eq!(
                watch(conditions, start).sleep_until_due(start),
                expected,
                "{conditions:?}"
            );
        };
        let every = Condition::Every(seconds(600));
        check(&[], None);
        check(&[Condition::AtExit], None);
        check(&[every], Some(seconds(600)));
        check(&[every, Condition::Every(seconds(9))], Some(seconds(9)));
        check(&[every, Condition::RssGrowth(1)], Some(POLL));
        let mut over = watch(&[every], start);
        over.is_over = true;
        assert_eq!(over.sleep_until_due(start), None);
        let mut with_gdump = watch(&[every], start);
        let limits = GdumpLimits {
            files: 1,
            duration: seconds(1),
        };
        with_gdump.gdump = Some(HighWaterWatch::new(limits, start, SystemTime::UNIX_EPOCH));
        assert_eq!(with_gdump.sleep_until_due(start), Some(POLL));
        // Its time is over, and with it the poll.
        assert!(with_gdump.gdump_over(start).is_none());
        assert!(with_gdump.gdump_over(start + seconds(1)).is_some());
        assert_eq!(with_gdump.sleep_until_due(start), Some(seconds(600)));
    }

    #[test]
    fn rules_that_are_due_at_once_share_one_dump() {
        let start = Instant::now();
        let above = Condition::RssAbove(Threshold::Bytes(START_RSS));
        let mut watch = watch(&[above, Condition::Every(seconds(5))], start);
        let now = start + seconds(5);
        let due = watch.due(&reading(START_RSS), now).unwrap();
        assert_eq!(due.trigger, Trigger::Rule(above, START_RSS));
        watch.record_outcome(DumpOutcome::Done, &reading(START_RSS), now);
        let fired: Vec<_> = watch.rules.iter().map(|watched| watched.fired).collect();
        assert_eq!(fired, [1, 1]);
        assert!(watch.due(&reading(START_RSS), now).is_none());
    }

    #[test]
    fn what_meets_a_running_dump_is_not_lost() {
        let start = Instant::now();
        let mut watch = watch(&[Condition::RssAbove(Threshold::Bytes(START_RSS))], start);
        assert!(watch.due(&reading(START_RSS), start).is_some());
        watch.record_outcome(DumpOutcome::Busy, &reading(START_RSS), start);
        let later = start + POLL;
        assert!(watch.due(&reading(START_RSS), later).is_some());
        watch.record_outcome(DumpOutcome::Done, &reading(START_RSS), later);
        assert!(watch.due(&reading(START_RSS), later + POLL).is_none());
    }

    #[test]
    fn a_panic_ends_neither_the_thread_nor_the_rule() {
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
    fn the_thread_acts_and_ends() {
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
        // The closure goes with the thread.
        assert!(acts.recv().is_err());
        let status = watcher.status();
        assert_eq!(
            (status[0].rule.as_str(), status[0].fired),
            ("rss_above = \"1B\"", 1)
        );
        assert!(status[0].last_fired.is_some());
    }
}
