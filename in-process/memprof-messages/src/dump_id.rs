//! Ids of kept dumps.

/// Time and process that the id of a kept dump contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpId {
    /// Time when the dump was taken: RFC 3339, UTC, to the second.
    pub taken: String,
    /// Id of the process that wrote it.
    pub pid: u32,
}

impl DumpId {
    /// Parses an id that `dump` or `list` returned, such as `20261121T111244Z.42.7.0000beef.message.9kib`. `None` if
    /// the id does not begin with a time and a pid.
    pub fn parse(id: &str) -> Option<Self> {
        let mut parts = id.split('.');
        let (stamp, pid) = (parts.next()?, parts.next()?);
        let (date, time) = stamp.strip_suffix('Z')?.split_once('T')?;
        let digits = |text: &str, length| {
            text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !digits(date, 8) || !digits(time, 6) {
            return None;
        }
        let (year, month, day) = (&date[..4], &date[4..6], &date[6..]);
        let (hour, minute, second) = (&time[..2], &time[2..4], &time[4..]);
        Some(Self {
            taken: format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z"),
            pid: pid.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump_id_contains_time_and_pid() {
        let id = DumpId::parse("20261121T111244Z.42.7.0000beef.message.9kib").unwrap();
        assert_eq!((&*id.taken, id.pid), ("2026-11-21T11:12:44Z", 42));
        for other in [
            "",
            "x",
            "20261121T111244Z",
            "2026112T1112445Z.42",
            "20261121T111244Z.x",
        ] {
            assert_eq!(DumpId::parse(other), None, "{other}");
        }
    }
}
