//! `[[watch]]`: the rules for automatic dumps.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use memprof_core::{Condition, Threshold, WatchRule};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::amount::SizeOrShare;
use super::value_types::Period;

const MONTH: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Accepted periods of `every`. A dump takes a fraction of a second, so shorter periods would take up much of the
/// program's time.
const EVERY_RANGE: RangeInclusive<Duration> = Duration::from_secs(1)..=MONTH;
const MIN_INTERVAL_RANGE: RangeInclusive<Duration> = Duration::ZERO..=MONTH;
/// Default of `min_interval`, except for `every`.
const DEFAULT_MIN_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum growth in bytes. Smaller changes are noise.
const MIN_GROWTH: u64 = 1 << 20;

/// All rules, in the order of the configuration.
#[derive(Debug, Default)]
pub(super) struct WatchRules(pub(super) Vec<WatchRule>);

/// One table, as written in the configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WatchTable {
    #[serde(deserialize_with = "parse_every")]
    every: Option<Condition>,
    #[serde(deserialize_with = "parse_rss_above")]
    rss_above: Option<Condition>,
    #[serde(deserialize_with = "parse_rss_growth")]
    rss_growth: Option<Condition>,
    #[serde(deserialize_with = "parse_cgroup_above")]
    cgroup_above: Option<Condition>,
    at_exit: bool,
    #[serde(deserialize_with = "parse_min_interval")]
    min_interval: Option<Duration>,
    activate: bool,
}

/// A rule from a table that passed its checks.
#[derive(Debug, Deserialize)]
#[serde(try_from = "WatchTable")]
struct ParsedRule(WatchRule);

impl TryFrom<WatchTable> for ParsedRule {
    type Error = &'static str;

    /// Fails if the table does not have exactly one condition, or if it has both `activate` and `at_exit`. An absent
    /// `min_interval` is 0 for `every`, and [`DEFAULT_MIN_INTERVAL`] for other conditions.
    fn try_from(table: WatchTable) -> Result<Self, &'static str> {
        let at_exit = table.at_exit.then_some(Condition::AtExit);
        let conditions = [
            table.every,
            table.rss_above,
            table.rss_growth,
            table.cgroup_above,
            at_exit,
        ];
        let mut given = conditions.into_iter().flatten();
        let (Some(condition), None) = (given.next(), given.next()) else {
            return Err(
                "a watch rule has exactly one of every, rss_above, rss_growth, cgroup_above, \
                 at_exit = true",
            );
        };
        if table.activate && at_exit.is_some() {
            return Err(
                "activate is of no use at_exit, where it comes too late: set \
                        activate_at_start = true",
            );
        }
        let default = match condition {
            Condition::Every(_) => Duration::ZERO,
            _ => DEFAULT_MIN_INTERVAL,
        };
        Ok(Self(WatchRule {
            condition,
            min_interval: table.min_interval.unwrap_or(default),
            activate: table.activate,
        }))
    }
}

impl<'de> Deserialize<'de> for WatchRules {
    /// Accepts only a list of tables. The error for any other value names this form.
    fn deserialize<D: Deserializer<'de>>(tables: D) -> Result<Self, D::Error> {
        struct Tables;
        impl<'de> Visitor<'de> for Tables {
            type Value = WatchRules;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of tables, [[watch]]; on another program's bus in config=FILE")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut tables: A) -> Result<WatchRules, A::Error> {
                let mut rules = Vec::new();
                while let Some(ParsedRule(rule)) = tables.next_element()? {
                    rules.push(rule);
                }
                Ok(WatchRules(rules))
            }
        }
        tables.deserialize_any(Tables)
    }
}

/// Parses the period of `every`, a duration in [`EVERY_RANGE`]. Never returns `None`, which stands for an absent key.
fn parse_every<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Condition>, D::Error> {
    let period = parse_duration("every", &EVERY_RANGE, value)?;
    Ok(Some(Condition::Every(period)))
}

/// Parses the duration `min_interval`, which is in [`MIN_INTERVAL_RANGE`]. Never returns `None`, which stands for an
/// absent key.
fn parse_min_interval<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Duration>, D::Error> {
    parse_duration("min_interval", &MIN_INTERVAL_RANGE, value).map(Some)
}

/// Parses the threshold of `rss_above`: a size above 0 with a unit, or a percentage from 1 to 100. Never returns
/// `None`, which stands for an absent key.
fn parse_rss_above<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Condition>, D::Error> {
    let threshold = parse_threshold("rss_above", value)?;
    Ok(Some(Condition::RssAbove(threshold)))
}

/// Parses the threshold of `cgroup_above`: a size above 0 with a unit, or a percentage from 1 to 100. Never returns
/// `None`, which stands for an absent key.
fn parse_cgroup_above<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Condition>, D::Error> {
    let threshold = parse_threshold("cgroup_above", value)?;
    Ok(Some(Condition::CgroupAbove(threshold)))
}

/// Parses the step of `rss_growth`, a size of at least 1 MiB with a unit. Never returns `None`, which stands for an
/// absent key.
fn parse_rss_growth<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Condition>, D::Error> {
    let amount = SizeOrShare::deserialize(value)?;
    let bytes = amount
        .size_with_unit("rss_growth")
        .map_err(D::Error::custom)?;
    if bytes < MIN_GROWTH {
        let message = format!("rss_growth = {amount} is less than \"1MiB\"");
        return Err(D::Error::custom(message));
    }
    Ok(Some(Condition::RssGrowth(bytes)))
}

/// Parses a duration in `range`. Errors contain `key`.
fn parse_duration<'de, D: Deserializer<'de>>(
    key: &str,
    range: &RangeInclusive<Duration>,
    value: D,
) -> Result<Duration, D::Error> {
    let period = Period::deserialize(value)?;
    let text = period.text();
    let fault = match humantime::parse_duration(text) {
        Ok(duration) if range.contains(&duration) => return Ok(duration),
        Ok(_) => "is out of range",
        Err(_) => "is not a duration",
    };
    let [low, high] = [range.start(), range.end()].map(|end| humantime::format_duration(*end));
    Err(D::Error::custom(format!(
        "{key} = {text:?} {fault}: for example \"10m\", from {low} to {high}"
    )))
}

/// Parses a size above 0 with a unit, or a percentage from 1 to 100. Errors contain `key`.
fn parse_threshold<'de, D: Deserializer<'de>>(key: &str, value: D) -> Result<Threshold, D::Error> {
    let amount = SizeOrShare::deserialize(value)?;
    let (threshold, is_possible) = match amount.percent() {
        Some(percent) => (Threshold::Percent(percent), (1..=100).contains(&percent)),
        None => {
            let bytes = amount.size_with_unit(key).map_err(D::Error::custom)?;
            (Threshold::Bytes(bytes), bytes > 0)
        }
    };
    if !is_possible {
        let message = format!("{key} = {amount} is neither \"1%\" to \"100%\" nor a size above 0");
        return Err(D::Error::custom(message));
    }
    Ok(threshold)
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn rule(condition: Condition, min_interval: u64) -> WatchRule {
        WatchRule {
            condition,
            min_interval: Duration::from_secs(min_interval),
            activate: false,
        }
    }

    #[test]
    fn rules_of_valid_tables() {
        let check = |table: &str, expected: WatchRule| {
            let config = Config::parse(&format!("[[watch]]\n{table}")).unwrap();
            assert_eq!(config.watch_rules(), [expected], "{table}");
        };
        let every = Condition::Every(Duration::from_secs(600));
        check("every = \"10m\"", rule(every, 0));
        let above = Condition::RssAbove;
        check(
            "rss_above = \"80%\"",
            rule(above(Threshold::Percent(80)), 60),
        );
        check(
            "rss_above = \"4GiB\"",
            rule(above(Threshold::Bytes(4 << 30)), 60),
        );
        check(
            "rss_above = \"1 GB\"",
            rule(above(Threshold::Bytes(1 << 30)), 60),
        );
        check(
            "rss_above = \"4096B\"",
            rule(above(Threshold::Bytes(4096)), 60),
        );
        let growth = Condition::RssGrowth(64 << 20);
        check("rss_growth = \"64MiB\"", rule(growth, 60));
        check(
            "rss_growth = \"65536KiB\"\nmin_interval = \"0s\"",
            rule(growth, 0),
        );
        let cgroup = Condition::CgroupAbove(Threshold::Percent(100));
        check(
            "cgroup_above = \"100%\"\nmin_interval = \"5m\"\nactivate = true",
            WatchRule {
                activate: true,
                ..rule(cgroup, 300)
            },
        );
        check("at_exit = true", rule(Condition::AtExit, 60));
        check(
            "at_exit = false\nevery = \"1s\"",
            rule(Condition::Every(Duration::from_secs(1)), 0),
        );
    }

    #[test]
    fn rules_of_documentation_are_valid() {
        let page = include_str!("../../../../docs/src/watch.md");
        let mut blocks = page
            .split("```")
            .filter_map(|block| block.strip_prefix("toml\n"));
        let block = blocks.find(|block| block.contains("config.watch")).unwrap();
        let config = Config::parse(&block.replace("plugin.config.", "")).unwrap();
        assert_eq!(config.watch_rules().len(), 5);
    }

    #[test]
    fn several_rules_keep_their_order() {
        let config = Config::parse("[[watch]]\nat_exit = true\n[[watch]]\nevery = \"1h\"").unwrap();
        let conditions: Vec<_> = config
            .watch_rules()
            .iter()
            .map(|rule| rule.condition)
            .collect();
        let hour = Condition::Every(Duration::from_secs(3600));
        assert_eq!(conditions, [Condition::AtExit, hour]);
        assert_eq!(Config::parse("").unwrap().watch_rules(), []);
    }

    #[test]
    fn errors_name_key_value_and_valid_values() {
        let check = |table: &str, position: &str, expected: &str| {
            let text = format!("dump_dir = \"/d\"\n[[watch]]\n{table}");
            let error = Config::parse(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(error.contains(position), "{error}");
        };
        let here = "line 3, column";
        let durations = "from 1s to 30days";
        check(
            "every = \"soon\"",
            here,
            "every = \"soon\" is not a duration",
        );
        check("every = \"0s\"", here, durations);
        check(
            "every = \"500ms\"",
            here,
            "every = \"500ms\" is out of range",
        );
        check("every = \"31d\"", here, durations);
        check(
            "every = 600",
            here,
            "a duration in quotes and with its unit",
        );
        let interval = "at_exit = true\nmin_interval = \"-1s\"";
        check(
            interval,
            "line 4, column",
            "min_interval = \"-1s\" is not a duration",
        );
        for key in ["rss_above", "cgroup_above"] {
            for value in ["\"0%\"", "\"101%\"", "\"0B\""] {
                let expected = format!("{key} = {value} is neither \"1%\" to \"100%\" nor a size");
                check(&format!("{key} = {value}"), here, &expected);
            }
            for value in [
                "\"8%0\"",
                "\"300%\"",
                "\"4 parsecs\"",
                "\"\"",
                "\"-4GiB\"",
                "\"99999999999GiB\"",
            ] {
                let expected =
                    format!("{key} = {value} is not a size, for example \"4GiB\" or \"80%\"");
                check(&format!("{key} = {value}"), here, &expected);
            }
            for (value, number) in [("40", "40"), ("0", "0"), ("\"40\"", "40"), ("-1", "-1")] {
                let expected = format!(
                    "{key} = {value} has no unit: for example \"{number}MiB\" or \"{number}%\""
                );
                check(&format!("{key} = {value}"), here, &expected);
            }
            check(&format!("{key} = true"), here, "expected a size such as");
        }
        check(
            "rss_growth = \"10%\"",
            here,
            "rss_growth = \"10%\" is not a size",
        );
        check(
            "rss_growth = 1000",
            here,
            "rss_growth = 1000 has no unit: for example \"1000MiB\"",
        );
        check(
            "rss_growth = \"1000K\"",
            here,
            "rss_growth = \"1000K\" is less than \"1MiB\"",
        );
        check(
            "evry = \"1h\"",
            here,
            "unknown field `evry`, expected one of `every`, `rss_above`",
        );
        let exactly_one = "exactly one of every, rss_above, rss_growth";
        check("activate = true", "line 2, column", exactly_one);
        check("at_exit = false", "line 2, column", exactly_one);
        check(
            "every = \"1h\"\nat_exit = true",
            "line 2, column",
            exactly_one,
        );
        let late = "at_exit = true\nactivate = true";
        check(late, "line 2, column", "set activate_at_start = true");
        let error = Config::parse("watch.every = \"1h\"")
            .unwrap_err()
            .to_string();
        assert!(error.contains("a list of tables, [[watch]]"), "{error}");
    }
}
