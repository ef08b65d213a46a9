//! The names of dumps.

use std::time::{Duration, SystemTime};

/// The name of a dump: `<UTC time>.<pid>.<sequence>.<random>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DumpName {
    /// When it was taken, to the second.
    pub taken: SystemTime,
    /// The process that took it.
    pub pid: u32,
    /// The how manieth of this process.
    pub sequence: u32,
    /// Tells apart what the rest does not, as after a restart in a container where every pid is 1.
    pub random: u32,
}

impl DumpName {
    pub(crate) fn parse(id: &str) -> Option<Self> {
        let mut parts = id.split('.');
        let mut part = || parts.next();
        let (stamp, pid, sequence, random) = (part()?, part()?, part()?, part()?);
        let name = Self {
            taken: parse_stamp(stamp)?,
            pid: pid.parse().ok()?,
            sequence: sequence.parse().ok()?,
            random: u32::from_str_radix(random, 16).ok()?,
        };
        // Only what we would write ourselves is ours.
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
        } = self;
        let stamp = humantime::format_rfc3339_seconds(*taken)
            .to_string()
            .replace(['-', ':'], "");
        write!(f, "{stamp}.{pid}.{sequence}.{random:08x}")
    }
}

/// Parses `20261121T111244Z`.
fn parse_stamp(stamp: &str) -> Option<SystemTime> {
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
    fn names_are_read_back() {
        let taken = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_259_564);
        let name = DumpName {
            taken,
            pid: 42,
            sequence: 7,
            random: 0xbeef,
        };
        assert_eq!(name.to_string(), "20261121T111244Z.42.7.0000beef");
        assert_eq!(DumpName::parse(&name.to_string()), Some(name));
    }

    #[test]
    fn foreign_names_are_not_ours() {
        for foreign in [
            "",
            "x",
            "20261121T111244Z.42.7",
            "20261121T111244Z.42.7.beef",
            "20261121T111244Z.+42.7.0000beef",
            "20261121T111244Z.42.7.0000beef.1",
            "20261321T113924Z.42.7.0000beef",
            "../../etc/passwd",
            "jeprof.1.0.f",
        ] {
            assert_eq!(DumpName::parse(foreign), None, "{foreign}");
        }
    }
}
