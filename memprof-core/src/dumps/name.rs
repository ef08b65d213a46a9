//! The file names of dumps.

use std::time::{Duration, SystemTime};

use memprof_messages::{ProfileKind, TriggerKind};

/// File name suffixes of profiles other than heap profiles.
const KIND_SUFFIXES: [(&str, ProfileKind); 2] = [
    (".growth", ProfileKind::Growth),
    (".pinned", ProfileKind::Pinned),
];

/// The name of a dump: `<UTC time>.<pid>.<sequence>.<random>.<trigger>.<rss>kib`, with a suffix if it is not a heap
/// profile. Names from earlier versions end with the random number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DumpName {
    /// Time at which the dump was taken, to the second.
    pub taken: SystemTime,
    /// Process that took the dump.
    pub pid: u32,
    /// Sequence number of the dump in this process, from 1.
    pub sequence: u32,
    /// Random number that keeps names unique if the other parts repeat, for example after a restart in a container
    /// where every pid is 1.
    pub random: u32,
    /// Trigger and resident memory. `None` in names from earlier versions.
    pub cause: Option<DumpCause>,
    /// Profile kind: heap, growth or pinned.
    pub kind: ProfileKind,
}

/// Reason for a dump, and the size of the process at that time, as the dump's name records them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DumpCause {
    /// Kind of the [`Trigger`](crate::Trigger).
    pub trigger: TriggerKind,
    /// Resident memory in KiB, as the kernel counts it.
    pub rss_kib: u64,
}

impl DumpName {
    /// Parses a name without its extension. `None` if [`Display`](std::fmt::Display) would not produce exactly this
    /// text.
    pub(crate) fn parse(id: &str) -> Option<Self> {
        let mut kinds = KIND_SUFFIXES.into_iter();
        let with_suffix = kinds.find_map(|(end, kind)| Some((id.strip_suffix(end)?, kind)));
        let (rest, kind) = with_suffix.unwrap_or((id, ProfileKind::Heap));
        let mut parts = rest.split('.');
        let mut part = || parts.next();
        let (stamp, pid, sequence, random) = (part()?, part()?, part()?, part()?);
        let cause = match part() {
            Some(trigger) => Some(DumpCause {
                trigger: trigger.parse().ok()?,
                rss_kib: part()?.strip_suffix("kib")?.parse().ok()?,
            }),
            None => None,
        };
        let name = Self {
            taken: parse_time_stamp(stamp)?,
            pid: pid.parse().ok()?,
            sequence: sequence.parse().ok()?,
            random: u32::from_str_radix(random, 16).ok()?,
            cause,
            kind,
        };
        // Only names that memprof itself would write are accepted, because accepted files may be deleted.
        (name.to_string() == id).then_some(name)
    }
}

impl std::fmt::Display for DumpName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            taken,
            pid,
            sequence,
            random,
            cause,
            kind,
        } = self;
        let stamp = humantime::format_rfc3339_seconds(*taken)
            .to_string()
            .replace(['-', ':'], "");
        write!(f, "{stamp}.{pid}.{sequence}.{random:08x}")?;
        if let Some(DumpCause { trigger, rss_kib }) = cause {
            write!(f, ".{trigger}.{rss_kib}kib")?;
        }
        let end = KIND_SUFFIXES.iter().find(|(_, known)| known == kind);
        end.map_or(Ok(()), |(end, _)| f.write_str(end))
    }
}

/// Parses a time such as `20261121T111244Z`. `None` if the digits are no valid time, or if the time is not after the
/// epoch. Does not check the letters `T` and `Z`, because [`DumpName::parse`] compares the whole text.
fn parse_time_stamp(stamp: &str) -> Option<SystemTime> {
    let part = |range| stamp.get(range);
    let (year, month, day) = (part(0..4)?, part(4..6)?, part(6..8)?);
    let (hour, minute, second) = (part(9..11)?, part(11..13)?, part(13..15)?);
    let text = format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z");
    let time = humantime::parse_rfc3339(&text).ok()?;
    (time >= SystemTime::UNIX_EPOCH + Duration::from_secs(1)).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_names_parse_to_same_value() {
        let taken = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_259_564);
        let name = DumpName {
            taken,
            pid: 42,
            sequence: 7,
            random: 0xbeef,
            cause: None,
            kind: ProfileKind::Heap,
        };
        assert_eq!(name.to_string(), "20261121T111244Z.42.7.0000beef");
        assert_eq!(DumpName::parse(&name.to_string()), Some(name.clone()));
        let name = DumpName {
            cause: Some(DumpCause {
                trigger: TriggerKind::RssAbove,
                rss_kib: 3_355_443,
            }),
            ..name
        };
        let text = "20261121T111244Z.42.7.0000beef.rss-above.3355443kib";
        assert_eq!(name.to_string(), text);
        assert_eq!(DumpName::parse(text), Some(name.clone()));
        for (end, kind) in KIND_SUFFIXES {
            let name = DumpName {
                kind,
                ..name.clone()
            };
            assert_eq!(name.to_string(), format!("{text}{end}"));
            assert_eq!(DumpName::parse(&name.to_string()), Some(name));
        }
    }

    #[test]
    fn foreign_names_are_rejected() {
        for foreign in [
            "",
            "x",
            "20261121T111244Z.42.7",
            "20261121T111244Z.42.7.beef",
            "20261121T111244Z.+42.7.0000beef",
            "20261121T111244Z.42.7.0000beef.1",
            "20261121T111244Z.42.7.0000beef.message",
            "20261121T111244Z.42.7.0000beef.message.9",
            "20261121T111244Z.42.7.0000beef.message.09kib",
            "20261121T111244Z.42.7.0000beef.message.-9kib",
            "20261121T111244Z.42.7.0000beef.message.9kib.x",
            "20261121T111244Z.42.7.0000beef.rumour.9kib",
            "20261121T111244Z.42.7.0000beef.growth.growth",
            "20261121T111244Z.42.7.0000beef.growth.9kib",
            "20261121T111244Z.42.7.0000beef.../etc.9kib",
            "20261321T113924Z.42.7.0000beef",
            "../../etc/passwd",
            "jeprof.1.0.f",
        ] {
            assert_eq!(DumpName::parse(foreign), None, "{foreign}");
        }
    }
}
