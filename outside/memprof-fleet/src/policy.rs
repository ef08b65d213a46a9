//! Policy: which hosts are dumped, and when. This module is pure: process keys and times are arguments.

use std::time::Duration;

use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};

use crate::time::Uptime;
use crate::units::deserialize_duration;

/// Rule for the processes of some services.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServiceRule {
    /// Pattern of the services' names, in which `*` is any text.
    pub(crate) name: String,
    /// Time between two dumps of one process.
    #[serde(deserialize_with = "deserialize_period")]
    pub(crate) period: Duration,
    /// Fraction of the processes that is dumped, from 0 to 1. The same processes are selected each time.
    #[serde(deserialize_with = "deserialize_share")]
    pub(crate) share: f64,
    /// Length of the pause on this machine after a dump, in multiples of the dump's duration.
    pub(crate) pause: u32,
    /// Whether sampling is enabled where it is off.
    pub(crate) activate: bool,
    /// Patterns of program file names, in which `*` is any text. Processes of these programs without the
    /// plugin are attached to, and sampling is enabled in them.
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

/// Returns the first rule whose name pattern matches the service. `None` if there is no such rule.
pub(crate) fn rule_for<'r>(rules: &'r [ServiceRule], service: &str) -> Option<&'r ServiceRule> {
    rules.iter().find(|rule| matches_glob(&rule.name, service))
}

impl ServiceRule {
    /// Returns whether a process, given by its key, is in the rule's share.
    pub(crate) fn includes_process(&self, instance: &str) -> bool {
        is_in_share(instance, self.share)
    }

    /// Returns whether to attach to processes of a program, given by its file name.
    pub(crate) fn attaches_to(&self, program: &str) -> bool {
        self.attach.iter().any(|named| matches_glob(named, program))
    }

    /// Returns whether to enable sampling where it is off: the rule says so, or it names programs to attach to.
    pub(crate) fn enables_sampling(&self) -> bool {
        self.activate || !self.attach.is_empty()
    }

    /// Returns whether a process, given by its key, is due for a dump: `now` is in a later period than `last`, the time
    /// of its last dump or of its discovery. The periods of each process start at a phase of its own, so that a
    /// thousand agents that start together do not dump together.
    pub(crate) fn is_due(&self, instance: &str, last: Uptime, now: Uptime) -> bool {
        let period = i64::try_from(self.period.as_millis()).unwrap_or(i64::MAX);
        let phase = (stable_hash(instance) % period.unsigned_abs()).cast_signed();
        let period_number = |time: Uptime| (time.0 - phase).div_euclid(period);
        period_number(now) > period_number(last)
    }

    /// Returns the pause of the machine after a dump that took `elapsed`: a multiple of that time.
    pub(crate) fn pause_after(&self, elapsed: Duration) -> Duration {
        elapsed.saturating_mul(self.pause)
    }
}

/// Returns whether a process, given by its key, is in a share from 0 to 1. The same processes are selected each time.
pub(crate) fn is_in_share(instance: &str, share: f64) -> bool {
    share >= 1.0 || hash_fraction(instance) < share
}

/// Returns a stable hash of the text as a number from 0 to 1.
pub(crate) fn hash_fraction(text: &str) -> f64 {
    stable_hash(text) as f64 / u64::MAX as f64
}

/// Elects one of the machines for a task. All machines that know the same others elect the same one; if it is gone,
/// they elect another one (rendezvous hashing). `None` if there are no machines.
pub(crate) fn elect_machine<'m>(
    machines: impl Iterator<Item = &'m str>,
    task: &str,
) -> Option<&'m str> {
    machines.max_by_key(|machine| stable_hash(&format!("{machine} {task}")))
}

/// Returns a hash of the text that is equal on all machines and in all versions: the first 8 bytes of its SHA-256.
fn stable_hash(text: &str) -> u64 {
    let digest = Sha256::digest(text);
    u64::from_be_bytes(std::array::from_fn(|index| digest[index]))
}

/// Returns whether a name matches a pattern, in which `*` is any text.
fn matches_glob(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(start) else {
        return false;
    };
    let mut ends = name
        .char_indices()
        .map(|(index, _)| index)
        .chain([name.len()]);
    ends.any(|index| matches_glob(rest, &name[index..]))
}

/// Deserializes a period, from 1 second to 30 days. The error says what is valid.
fn deserialize_period<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let period = deserialize_duration(deserializer)?;
    let valid = Duration::from_secs(1)..=Duration::from_secs(30 * 24 * 3600);
    match valid.contains(&period) {
        true => Ok(period),
        false => Err(serde::de::Error::custom("a period is from 1s to 30d")),
    }
}

/// Deserializes a share such as `5%` to a number from 0 to 1. The error says what is expected.
fn deserialize_share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    parse_share(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// Parses a share such as `5%` to a number from 0 to 1. The error says what is expected.
pub(crate) fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.strip_suffix('%').and_then(|text| text.parse().ok());
    let share = share.filter(|share| (0.0..=100.0).contains(share));
    let invalid = || format!("{text:?} is not a share; give 0% to 100%");
    share.map(|share: f64| share / 100.0).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glob_matches_any_text_at_asterisk() {
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
    fn dumps_of_processes_are_spread_over_the_period() {
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
    fn elections_are_spread_and_stable() {
        let machines = ["a", "b", "c"];
        let mut turns = [0; 3];
        for hour in 0..300 {
            let task = format!("hour={hour}");
            let first = elect_machine(machines.into_iter(), &task).unwrap();
            assert_eq!(
                elect_machine(machines.into_iter().rev(), &task),
                Some(first)
            );
            turns[machines.iter().position(|one| *one == first).unwrap()] += 1;
            // The election does not change if another machine is gone.
            let gone = machines.into_iter().find(|one| *one != first);
            let remaining = machines.into_iter().filter(|one| Some(*one) != gone);
            assert_eq!(elect_machine(remaining, &task), Some(first));
        }
        assert!(turns.iter().all(|turns| *turns > 70), "{turns:?}");
        assert_eq!(elect_machine([].into_iter(), "x"), None);
    }

    #[test]
    fn share_selects_same_processes_each_time() {
        let rule = |share| ServiceRule {
            share,
            ..ServiceRule::default()
        };
        let selected = |share| {
            (0..10_000).filter(move |index| rule(share).includes_process(&format!("node/{index}")))
        };
        assert_eq!(selected(0.0).count(), 0);
        assert_eq!(selected(1.0).count(), 10_000);
        let some: Vec<_> = selected(0.05).collect();
        assert!((400..600).contains(&some.len()), "{}", some.len());
        assert!(
            some.iter()
                .all(|index| selected(0.1).any(|other| other == *index))
        );
    }
}
