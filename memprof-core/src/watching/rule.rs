//! Watch rules. Given a memory reading and a time, a rule decides whether a dump is due.
//!
//! Rules are edge-triggered: a rule fires once when its threshold is crossed, and again only after the value fell
//! clearly below it. This module reads neither the clock nor the memory; [`watcher`](crate::watching::watcher) does.

use std::time::{Duration, Instant};

use crate::dumps::trigger::Condition;
use crate::watching::memory_reading::MemoryReading;

/// Divisor of the hysteresis: a threshold can fire again after the value fell 1/20 below it.
const HYSTERESIS_DIVISOR: u64 = 20;

/// A watch rule from the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchRule {
    /// Condition under which a dump is taken.
    pub condition: Condition,
    /// Minimum time between two dumps of this rule.
    pub min_interval: Duration,
    /// Whether the rule activates sampling if it is off. The activation replaces the rule's first dump.
    pub activate: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct RuleState {
    pub rule: WatchRule,
    pub fired: u64,
    pub last_fired: Option<Instant>,
    start: Instant,
    is_armed: bool,
    /// Resident bytes from which growth is measured.
    baseline: Option<u64>,
}

impl RuleState {
    /// State of a rule that is set at `now`: it is armed, and has not fired.
    pub(crate) fn new(rule: WatchRule, now: Instant) -> Self {
        Self {
            rule,
            fired: 0,
            last_fired: None,
            start: now,
            is_armed: true,
            baseline: None,
        }
    }

    /// Bytes at which the rule fires for this reading at `now`. `None` if it does not fire. Arms a threshold again once
    /// its value has fallen more than 1/20 below it. The same reading fires again until a dump or an activation is
    /// recorded.
    pub(crate) fn evaluate(&mut self, reading: &MemoryReading, now: Instant) -> Option<u64> {
        let fired_at = match self.rule.condition {
            Condition::Every(_) => Some(reading.rss),
            Condition::RssAbove(threshold) => {
                self.value_if_crossed(reading.rss, threshold.to_bytes(reading.available))
            }
            Condition::CgroupAbove(threshold) => {
                let usage = reading.cgroup?.usage_bytes;
                self.value_if_crossed(usage, threshold.to_bytes(reading.available))
            }
            Condition::RssGrowth(step) => self.rss_if_grown(reading.rss, step),
            Condition::AtExit => None,
        };
        fired_at.filter(|_| self.next_due_time().is_some_and(|next| now >= next))
    }

    /// Earliest time at which the rule may fire. `None` if it fires only at the exit, or if its interval is so long that
    /// the clock never gets there.
    pub(crate) fn next_due_time(&self) -> Option<Instant> {
        let min_interval = self.rule.min_interval;
        match (self.rule.condition, self.last_fired) {
            (Condition::Every(period), last) => {
                let last = last.unwrap_or(self.start);
                last.checked_add(period.max(min_interval))
            }
            (Condition::AtExit, _) => None,
            (_, Some(last)) => last.checked_add(min_interval),
            (_, None) => Some(self.start),
        }
    }

    /// Records that a dump was taken for the rule at `now`, and disarms the rule: a threshold fires again only after
    /// the value fell more than 1/20 below it.
    pub(crate) fn record_dump(&mut self, reading: &MemoryReading, now: Instant) {
        self.record_activation(reading, now);
        self.is_armed = false;
    }

    /// Records that sampling was activated for the rule instead of a dump. The rule stays armed, so the dump follows
    /// after the minimum interval.
    pub(crate) fn record_activation(&mut self, reading: &MemoryReading, now: Instant) {
        self.fired += 1;
        self.last_fired = Some(now);
        self.baseline = Some(reading.rss);
    }

    /// Returns `value` if it is at or above `threshold` and the rule is armed. Otherwise `None`. A rule is armed before
    /// its first dump, and again once the value has fallen more than 1/20 below the threshold.
    fn value_if_crossed(&mut self, value: u64, threshold: u64) -> Option<u64> {
        if value < threshold - threshold / HYSTERESIS_DIVISOR {
            self.is_armed = true;
        }
        (self.is_armed && value >= threshold).then_some(value)
    }

    /// Returns `rss` if it is at least `step` bytes above the baseline. Otherwise `None`. The baseline is the first
    /// value, or the value at the last dump or activation. It also follows a fall of at least `step` bytes.
    fn rss_if_grown(&mut self, rss: u64, step: u64) -> Option<u64> {
        let baseline = self.baseline.get_or_insert(rss);
        // The baseline also follows a fall, but only by a whole step, so that values that swing around it do not fire.
        if rss.saturating_add(step) <= *baseline {
            *baseline = rss;
        }
        (rss >= baseline.saturating_add(step)).then_some(rss)
    }
}

#[cfg(test)]
mod tests {
    use memprof_messages::Cgroup;

    use super::*;
    use crate::dumps::trigger::Threshold;

    /// Second of the test's clock, resident bytes, and the expected outcome.
    type Step = (u64, u64, &'static str);

    /// Evaluates the rule at each of `steps`. 1000 bytes are available, and the cgroup's usage is ten times RSS.
    fn check(condition: Condition, min_interval: u64, steps: &[Step]) {
        let start = Instant::now();
        let rule = WatchRule {
            condition,
            min_interval: Duration::from_secs(min_interval),
            activate: false,
        };
        let mut watched = RuleState::new(rule, start);
        for (second, rss, expected) in steps {
            let reading = MemoryReading {
                rss: *rss,
                available: 1000,
                cgroup: Some(Cgroup {
                    usage_bytes: rss * 10,
                    limit_bytes: None,
                    file_cache_bytes: None,
                    shared_bytes: None,
                }),
            };
            let now = start + Duration::from_secs(*second);
            let found = match watched.evaluate(&reading, now) {
                Some(_) if *expected == "busy" => "busy",
                Some(_) if *expected == "activated" => {
                    watched.record_activation(&reading, now);
                    "activated"
                }
                Some(_) => {
                    watched.record_dump(&reading, now);
                    "fires"
                }
                None => "",
            };
            assert_eq!(found, *expected, "{condition:?} at {second} s, {rss} bytes");
        }
    }

    #[test]
    fn every_fires_from_start_then_from_last_dump() {
        let every = Condition::Every(Duration::from_secs(10));
        let steps = [
            (0, 5, ""),
            (9, 5, ""),
            (10, 5, "fires"),
            (19, 5, ""),
            // A dump was running: the rule fires at the next poll.
            (20, 5, "busy"),
            (21, 5, "fires"),
            (30, 5, ""),
            // After a suspension of the machine the rule fires once, not three times.
            (61, 5, "fires"),
            (62, 5, ""),
        ];
        check(every, 0, &steps);
        check(every, 15, &[(10, 5, ""), (15, 5, "fires"), (25, 5, "")]);
    }

    #[test]
    fn threshold_fires_again_after_clear_fall() {
        let steps = [
            (0, 799, ""),
            (1, 800, "fires"),
            (2, 900, ""),
            (3, 790, ""),
            (4, 801, ""),
            (5, 759, ""),
            (6, 800, "fires"),
        ];
        check(Condition::RssAbove(Threshold::Percent(80)), 0, &steps);
        check(Condition::RssAbove(Threshold::Bytes(800)), 0, &steps);
        let tenth = steps.map(|(second, rss, expected)| (second, rss / 10, expected));
        let cgroup = Condition::CgroupAbove(Threshold::Bytes(800));
        check(cgroup, 0, &tenth[..3]);
    }

    #[test]
    fn threshold_waits_for_min_interval() {
        let steps = [
            (0, 800, "fires"),
            (1, 100, ""),
            (2, 800, ""),
            (10, 850, "fires"),
            (30, 850, ""),
        ];
        check(Condition::RssAbove(Threshold::Bytes(800)), 10, &steps);
        let passing = [(0, 800, "fires"), (1, 100, ""), (2, 800, ""), (3, 100, "")];
        check(Condition::RssAbove(Threshold::Bytes(800)), 10, &passing);
    }

    #[test]
    fn growth_is_measured_from_last_dump() {
        let steps = [
            (0, 100, ""),
            (1, 149, ""),
            (2, 150, "busy"),
            (3, 155, "fires"),
            (4, 204, ""),
            (5, 205, "fires"),
            // A fall by less than a step does not move the baseline, a deeper one does.
            (6, 156, ""),
            (7, 254, ""),
            (8, 155, ""),
            (9, 204, ""),
            (10, 205, "fires"),
        ];
        check(Condition::RssGrowth(50), 0, &steps);
    }

    #[test]
    fn activation_keeps_rule_armed() {
        let steps = [
            (0, 800, "activated"),
            (9, 800, ""),
            (10, 800, "fires"),
            (20, 800, ""),
        ];
        check(Condition::RssAbove(Threshold::Bytes(800)), 10, &steps);
    }

    #[test]
    fn interval_beyond_the_clock_never_ends() {
        check(
            Condition::Every(Duration::MAX),
            0,
            &[(0, 5, ""), (9999, 5, "")],
        );
        let steps = [(0, 800, "fires"), (1, 100, ""), (9999, 800, "")];
        let above = Condition::RssAbove(Threshold::Bytes(800));
        check(above, u64::MAX, &steps);
    }

    #[test]
    fn at_exit_never_fires_when_polled() {
        check(Condition::AtExit, 0, &[(0, 1, ""), (9999, 9999, "")]);
    }

    #[test]
    fn cgroup_rule_without_cgroup_never_fires() {
        let start = Instant::now();
        let rule = WatchRule {
            condition: Condition::CgroupAbove(Threshold::Bytes(1)),
            min_interval: Duration::ZERO,
            activate: false,
        };
        let reading = MemoryReading {
            rss: 9,
            available: 9,
            cgroup: None,
        };
        assert_eq!(RuleState::new(rule, start).evaluate(&reading, start), None);
    }

    #[test]
    fn percent_of_huge_amount_does_not_overflow() {
        let check = |percent: u8, available: u64, expected: u64| {
            assert_eq!(Threshold::Percent(percent).to_bytes(available), expected);
        };
        check(100, u64::MAX, 18_446_744_073_709_551_600);
        check(80, 1 << 30, 858_993_440);
        check(1, 100, 1);
    }
}
