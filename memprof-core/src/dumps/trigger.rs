//! Triggers: the reasons to take a dump.

use std::fmt;
use std::time::Duration;

use memprof_messages::{TriggerKind, format_size};

/// Reason for a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A message requested it.
    Message,
    /// A watch rule fired. The number is that of the resident bytes, or of the cgroup's bytes for `CgroupAbove`.
    Rule(Condition, u64),
    /// `gdump`: the resident memory, in bytes, exceeded its last high-water mark.
    HighWater(u64),
}

/// Condition under which a watch rule takes a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// This time has passed since the last dump.
    Every(Duration),
    /// Resident memory exceeds the threshold. A percentage refers to the cgroup's limit, or to the machine's memory if
    /// there is no limit.
    RssAbove(Threshold),
    /// Resident memory grew by this many bytes since the rule's last dump, or since the rule was set.
    RssGrowth(u64),
    /// The memory cgroup's usage exceeds the threshold. A percentage refers to the same limit as in `RssAbove`.
    CgroupAbove(Threshold),
    /// The program exits, normally or by a signal that it handles.
    AtExit,
}

/// Amount of memory at which a rule fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// Absolute number of bytes.
    Bytes(u64),
    /// Percentage of the available memory, 1 to 100.
    Percent(u8),
}

impl Threshold {
    /// Converts the threshold to bytes. A percentage refers to `available` bytes, and an absolute number ignores them.
    pub(crate) fn to_bytes(self, available: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            // Divides first, because `available` may be near `u64::MAX`.
            Self::Percent(percent) => available / 100 * u64::from(percent),
        }
    }
}

impl Condition {
    /// Whether the condition depends on the memory in use, so that the watcher must poll it.
    pub(crate) fn depends_on_memory(&self) -> bool {
        match self {
            Self::Every(_) | Self::AtExit => false,
            Self::RssAbove(_) | Self::RssGrowth(_) | Self::CgroupAbove(_) => true,
        }
    }
}

impl Trigger {
    /// The kind that dump names and messages report.
    pub(crate) fn kind(&self) -> TriggerKind {
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
    fn trigger_text_names_rule_and_bytes() {
        let check = |trigger: Trigger, word: &str, text: &str| {
            assert_eq!(trigger.kind().name(), word);
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
