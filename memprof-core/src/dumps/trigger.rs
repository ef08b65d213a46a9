//! Why a dump is taken.

use std::fmt;
use std::time::Duration;

use memprof_messages::{TriggerKind, format_size};

/// Why a dump is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Somebody asked.
    Message,
    /// A watch rule, and the bytes that it saw: resident ones, or those of the cgroup.
    Rule(Condition, u64),
    /// `gdump`: the resident bytes passed their last high-water mark.
    HighWater(u64),
}

/// When to dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// So often.
    Every(Duration),
    /// Resident memory passes this; per cent are of the cgroup's limit, or else the machine's
    /// memory.
    RssAbove(Threshold),
    /// Resident memory grew by so many bytes since this rule's last dump, or its start.
    RssGrowth(u64),
    /// What the memory cgroup uses passes this; per cent as for `RssAbove`.
    CgroupAbove(Threshold),
    /// The program ends, by itself or by a signal that it handles.
    AtExit,
}

/// The amount of memory at which a rule fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// So many bytes.
    Bytes(u64),
    /// So many per cent of what there is, 1 to 100.
    Percent(u8),
}

impl Threshold {
    /// `available` is what per cent are of.
    pub(crate) fn bytes(self, available: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            // Divided first: what is available may be near the largest number.
            Self::Percent(percent) => available / 100 * u64::from(percent),
        }
    }
}

impl Condition {
    /// Whether it needs a look at memory now and then.
    pub(crate) fn reads_memory(&self) -> bool {
        match self {
            Self::Every(_) | Self::AtExit => false,
            Self::RssAbove(_) | Self::RssGrowth(_) | Self::CgroupAbove(_) => true,
        }
    }
}

impl Trigger {
    pub(crate) fn word(&self) -> TriggerKind {
        match self {
            Self::Message => TriggerKind::Message,
            Self::Rule(Condition::Every(_), _) => TriggerKind::Every,
            Self::Rule(Condition::RssAbove(_), _) => TriggerKind::RssAbove,
            Self::Rule(Condition::RssGrowth(_), _) => TriggerKind::RssGrowth,
            Self::Rule(Condition::CgroupAbove(_), _) => TriggerKind::CgroupAbove,
            Self::HighWater(_) => TriggerKind::Gdump,
            Self::Rule(Condition::AtExit, _) => TriggerKind::AtExit,
        }
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message => f.write_str("message"),
            Self::Rule(condition, bytes) => write!(f, "{condition} at {bytes} bytes"),
            Self::HighWater(bytes) => write!(f, "gdump at {bytes} bytes"),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every(period) => {
                write!(f, "every = \"{}\"", humantime::format_duration(*period))
            }
            Self::RssAbove(threshold) => write!(f, "rss_above = {threshold}"),
            Self::RssGrowth(bytes) => write!(f, "rss_growth = \"{}\"", format_size(*bytes)),
            Self::CgroupAbove(threshold) => write!(f, "cgroup_above = {threshold}"),
            Self::AtExit => f.write_str("at_exit = true"),
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "\"{}\"", format_size(*bytes)),
            Self::Percent(percent) => write!(f, "\"{percent}%\""),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn triggers_name_the_rule_and_what_it_saw() {
        let check = |trigger: Trigger, word: &str, text: &str| {
            assert_eq!(trigger.word().name(), word);
            assert_eq!(trigger.to_string(), text);
        };
        let rule = |condition| Trigger::Rule(condition, 7);
        check(Trigger::Message, "message", "message");
        let ten_minutes = Condition::Every(Duration::from_secs(600));
        check(rule(ten_minutes), "every", "every = \"10m\" at 7 bytes");
        check(
            rule(Condition::RssAbove(Threshold::Percent(80))),
            "rss-above",
            "rss_above = \"80%\" at 7 bytes",
        );
        check(
            rule(Condition::RssGrowth(64)),
            "rss-growth",
            "rss_growth = \"64B\" at 7 bytes",
        );
        check(
            rule(Condition::CgroupAbove(Threshold::Bytes(9))),
            "cgroup-above",
            "cgroup_above = \"9B\" at 7 bytes",
        );
        check(Trigger::HighWater(7), "gdump", "gdump at 7 bytes");
        check(
            rule(Condition::AtExit),
            "at-exit",
            "at_exit = true at 7 bytes",
        );
    }
}
