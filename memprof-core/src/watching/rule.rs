//! Rules that take a dump by themselves: a rule, a reading and an instant make a decision.
//!
//! Edge-triggered: a threshold that was passed fires once, and again only after the value fell
//! clearly below it. No clock and no process here; see [`watcher`](crate::watching::watcher) for both.

use std::time::{Duration, Instant};

use crate::dumps::trigger::Condition;
use crate::watching::memory_reading::MemoryReading;

/// A threshold fires again once the value fell this share (1/20) below it.
const HYSTERESIS: u64 = 20;

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchRule {
    /// When to dump.
    pub condition: Condition,
    /// At least so long between two dumps of this rule.
    pub min_interval: Duration,
    /// Where sampling is off, it is switched on in place of the first dump.
    pub activate: bool,
}

/// A rule and what it has seen so far.
#[derive(Clone, Debug)]
pub(crate) struct RuleState {
    pub rule: WatchRule,
    pub fired: u64,
    pub last_fired: Option<Instant>,
    since: Instant,
    is_armed: bool,
    /// From where growth counts.
    mark: Option<u64>,
}

impl RuleState {
    pub(crate) fn new(rule: WatchRule, now: Instant) -> Self {
        Self {
            rule,
            fired: 0,
            last_fired: None,
            since: now,
            is_armed: true,
            mark: None,
        }
    }

    /// The bytes for which the rule wants a dump now. It goes on to want it until
    /// [`record_dump`](Self::record_dump).
    pub(crate) fn evaluate(&mut self, reading: &MemoryReading, now: Instant) -> Option<u64> {
        let wanted = match self.rule.condition {
            Condition::Every(_) => Some(reading.rss),
            Condition::RssAbove(threshold) => {
                self.crossed(reading.rss, threshold.bytes(reading.available))
            }
            Condition::CgroupAbove(threshold) => {
                let usage = reading.cgroup?.usage_bytes;
                self.crossed(usage, threshold.bytes(reading.available))
            }
            Condition::RssGrowth(step) => self.grown_by(reading.rss, step),
            Condition::AtExit => None,
        };
        wanted.filter(|_| self.next().is_some_and(|next| now >= next))
    }

    /// The earliest instant at which the rule may fire.
    pub(crate) fn next(&self) -> Option<Instant> {
        let rested = |last: Instant| last + self.rule.min_interval;
        match self.rule.condition {
            Condition::Every(period) => {
                Some(self.last_fired.unwrap_or(self.since) + period.max(self.rule.min_interval))
            }
            Condition::AtExit => None,
            _ => Some(self.last_fired.map_or(self.since, rested)),
        }
    }

    /// A dump was taken.
    pub(crate) fn record_dump(&mut self, reading: &MemoryReading, now: Instant) {
        self.activate(reading, now);
        self.is_armed = false;
    }

    /// Sampling was switched on; the dump comes when the rule has rested and still wants it.
    pub(crate) fn activate(&mut self, reading: &MemoryReading, now: Instant) {
        self.fired += 1;
        self.last_fired = Some(now);
        self.mark = Some(reading.rss);
    }

    fn crossed(&mut self, value: u64, threshold: u64) -> Option<u64> {
        if value < threshold - threshold / HYSTERESIS {
            self.is_armed = true;
        }
        (self.is_armed && value >= threshold).then_some(value)
    }

    fn grown_by(&mut self, rss: u64, step: u64) -> Option<u64> {
        let mark = self.mark.get_or_insert(rss);
        // Only a fall by a whole step counts, so that the value cannot swing about the mark.
        if rss.saturating_add(step) <= *mark {
            *mark = rss;
        }
        (rss >= mark.saturating_add(step)).then_some(rss)
    }
}

#[cfg(test)]
mod tests {
    use memprof_messages::Cgroup;

    use super::*;
    use crate::dumps::trigger::Threshold;

    /// A second of the injected clock, resident bytes, and what is to happen.
    type Step = (u64, u64, &'static str);

    /// Plays `steps` to a rule. 1000 bytes are available, and the cgroup uses ten times RSS.
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
                }),
            };
            let now = start + Duration::from_secs(*second);
            let found = match watched.evaluate(&reading, now) {
                Some(_) if *expected == "busy" => "busy",
                Some(_) if *expected == "activated" => {
                    watched.activate(&reading, now);
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
    fn every_counts_from_the_start_and_then_from_the_last() {
        let every = Condition::Every(Duration::from_secs(10));
        let steps = [
            (0, 5, ""),
            (9, 5, ""),
            (10, 5, "fires"),
            (19, 5, ""),
            // A dump ran: it is made up for at the next poll.
            (20, 5, "busy"),
            (21, 5, "fires"),
            (30, 5, ""),
            // The machine slept: one dump, not three.
            (61, 5, "fires"),
            (62, 5, ""),
        ];
        check(every, 0, &steps);
        check(every, 15, &[(10, 5, ""), (15, 5, "fires"), (25, 5, "")]);
    }

    #[test]
    fn a_threshold_fires_once_until_the_value_fell_clearly() {
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
    fn a_threshold_that_is_passed_again_too_early_waits() {
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
    fn growth_counts_from_the_last_dump() {
        let steps = [
            (0, 100, ""),
            (1, 149, ""),
            (2, 150, "busy"),
            (3, 155, "fires"),
            (4, 204, ""),
            (5, 205, "fires"),
            // A fall of less than a step does not move the mark, a deeper one does.
            (6, 156, ""),
            (7, 254, ""),
            (8, 155, ""),
            (9, 204, ""),
            (10, 205, "fires"),
        ];
        check(Condition::RssGrowth(50), 0, &steps);
    }

    #[test]
    fn an_activation_leaves_the_rule_armed() {
        let steps = [
            (0, 800, "activated"),
            (9, 800, ""),
            (10, 800, "fires"),
            (20, 800, ""),
        ];
        check(Condition::RssAbove(Threshold::Bytes(800)), 10, &steps);
    }

    #[test]
    fn an_exit_is_no_matter_of_polling() {
        check(Condition::AtExit, 0, &[(0, 1, ""), (9999, 9999, "")]);
    }

    #[test]
    fn without_a_cgroup_its_rule_is_quiet() {
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
    fn per_cent_of_very_much_do_not_overflow() {
        let check = |percent: u8, available: u64, expected: u64| {
            assert_eq!(Threshold::Percent(percent).bytes(available), expected);
        };
        check(100, u64::MAX, 18_446_744_073_709_551_600);
        check(80, 1 << 30, 858_993_440);
        check(1, 100, 1);
    }
}
