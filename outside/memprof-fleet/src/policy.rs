//! Which hosts are dumped, and when. Nothing here looks at a process or a clock.

use std::time::Duration;

use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};

use crate::time::Uptime;
use crate::units::duration;

/// How often the processes of a service are dumped.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServiceRule {
    /// The services' names; `*` is any text.
    pub(crate) name: String,
    /// Between two dumps of one process.
    #[serde(deserialize_with = "period")]
    pub(crate) period: Duration,
    /// The part of the processes that is dumped, from 0 to 1. The same ones each time.
    #[serde(deserialize_with = "share")]
    pub(crate) share: f64,
    /// After a dump no other one is taken on this machine for as many times as long as it took.
    pub(crate) pause: u32,
    /// Whether sampling is switched on where it is off.
    pub(crate) activate: bool,
    /// Programs that are attached to where they run without the plugin, by the names of their files; `*` is
    /// any text. Their sampling is switched on.
    pub(crate) attach: Vec<String>,
}

impl Default for ServiceRule {
    fn default() -> Self {
        Self {
            name: "*".to_owned(),
            period: Duration::from_secs(600),
            share: 1.0,
            pause: 100,
            activate: false,
            attach: Vec::new(),
        }
    }
}

/// The first rule for a service.
pub(crate) fn rule<'r>(rules: &'r [ServiceRule], service: &str) -> Option<&'r ServiceRule> {
    rules.iter().find(|rule| matches_glob(&rule.name, service))
}

impl ServiceRule {
    /// Whether a process belongs to the share.
    pub(crate) fn includes(&self, instance: &str) -> bool {
        is_in_share(instance, self.share)
    }

    /// Whether a process of this program is attached to.
    pub(crate) fn attaches(&self, program: &str) -> bool {
        self.attach.iter().any(|named| matches_glob(named, program))
    }

    /// Whether sampling is switched on where it is off.
    pub(crate) fn activates(&self) -> bool {
        self.activate || !self.attach.is_empty()
    }

    /// Whether a process is due that was dumped, or first seen, at `last`. Each has a phase of its own in
    /// the period, so that a thousand agents that start together do not dump together.
    pub(crate) fn is_due(&self, instance: &str, last: Uptime, now: Uptime) -> bool {
        let period = i64::try_from(self.period.as_millis()).unwrap_or(i64::MAX);
        let phase = (stable_hash(instance) % period.unsigned_abs()).cast_signed();
        let turn = |time: Uptime| (time.0 - phase).div_euclid(period);
        turn(now) > turn(last)
    }

    /// How long the machine rests after a dump that took so long.
    pub(crate) fn pause_after(&self, took: Duration) -> Duration {
        took.saturating_mul(self.pause)
    }
}

/// Whether a process belongs to a share: the same ones each time.
pub(crate) fn is_in_share(instance: &str, share: f64) -> bool {
    share >= 1.0 || hash_fraction(instance) < share
}

/// A number from 0 to 1 that is the same for a text everywhere and always.
pub(crate) fn hash_fraction(text: &str) -> f64 {
    stable_hash(text) as f64 / u64::MAX as f64
}

/// Which of `machines` has a turn: all of them choose the same one, and another one where it is gone
/// (rendezvous hashing).
pub(crate) fn elect<'m>(machines: impl Iterator<Item = &'m str>, turn: &str) -> Option<&'m str> {
    machines.max_by_key(|machine| stable_hash(&format!("{machine} {turn}")))
}

/// A number that is the same for a text everywhere and always.
fn stable_hash(text: &str) -> u64 {
    let digest = Sha256::digest(text);
    u64::from_be_bytes(std::array::from_fn(|at| digest[at]))
}

/// Whether `name` is `pattern`, in which `*` is any text.
fn matches_glob(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(start) else {
        return false;
    };
    let mut ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
    ends.any(|at| matches_glob(rest, &name[at..]))
}

fn period<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let period = duration(deserializer)?;
    let known = Duration::from_secs(1)..=Duration::from_secs(30 * 24 * 3600);
    match known.contains(&period) {
        true => Ok(period),
        false => Err(serde::de::Error::custom("a period is from 1s to 30d")),
    }
}

fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    parse_share(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// `5%` as a number from 0 to 1.
pub(crate) fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.strip_suffix('%').and_then(|text| text.parse().ok());
    let share = share.filter(|share| (0.0..=100.0).contains(share));
    let wrong = || format!("{text:?} is not a share; give 0% to 100%");
    share.map(|share: f64| share / 100.0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_matched() {
        let check = |pattern: &str, name: &str, expected: bool| {
            assert_eq!(matches_glob(pattern, name), expected, "{pattern} {name}");
        };
        check("*", "", true);
        check("cart", "cart", true);
        check("cart", "cart-2", false);
        check("cart-*", "cart-2", true);
        check("*-v*-x", "cart-v2-v3-x", true);
        check("*-v*-x", "cart-v2-v3-y", false);
    }

    #[test]
    fn each_process_is_dumped_once_a_period_and_not_all_at_once() {
        let rule = ServiceRule::default();
        let start = Uptime(1_795_000_000_000);
        let mut by_minute = [0; 10];
        for index in 0..1000 {
            let instance = format!("node/{index}");
            let mut last = start;
            let mut dumps = 0;
            for minute in 0..60 {
                let now = Uptime(start.0 + minute * 60_000);
                if rule.is_due(&instance, last, now) {
                    (last, dumps) = (now, dumps + 1);
                    by_minute[minute as usize % 10] += 1;
                }
            }
            assert!((5..=6).contains(&dumps), "{instance}: {dumps}");
        }
        assert!(
            by_minute.iter().all(|count| (400..800).contains(count)),
            "{by_minute:?}"
        );
    }

    #[test]
    fn machines_take_turns() {
        let machines = ["a", "b", "c"];
        let mut turns = [0; 3];
        for hour in 0..300 {
            let turn = format!("hour={hour}");
            let first = elect(machines.into_iter(), &turn).unwrap();
            assert_eq!(elect(machines.into_iter().rev(), &turn), Some(first));
            turns[machines.iter().position(|one| *one == first).unwrap()] += 1;
            // That another one is gone changes nothing.
            let gone = machines.into_iter().find(|one| *one != first);
            let left = machines.into_iter().filter(|one| Some(*one) != gone);
            assert_eq!(elect(left, &turn), Some(first));
        }
        assert!(turns.iter().all(|turns| *turns > 70), "{turns:?}");
        assert_eq!(elect([].into_iter(), "x"), None);
    }

    #[test]
    fn a_share_is_the_same_part_each_time() {
        let rule = |share| ServiceRule {
            share,
            ..ServiceRule::default()
        };
        let taken =
            |share| (0..10_000).filter(move |index| rule(share).includes(&format!("node/{index}")));
        assert_eq!(taken(0.0).count(), 0);
        assert_eq!(taken(1.0).count(), 10_000);
        let some: Vec<_> = taken(0.05).collect();
        assert!((400..600).contains(&some.len()), "{}", some.len());
        assert!(
            some.iter()
                .all(|index| taken(0.1).any(|other| other == *index))
        );
    }
}
