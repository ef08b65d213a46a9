//! Points in time, as milliseconds since 1970 in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Point in time, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Instant(pub(crate) i64);

/// Point in time for waiting: milliseconds since the machine started, including suspend (`CLOCK_BOOTTIME`).
/// Setting the wall clock does not change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Uptime(pub(crate) i64);

/// Hour of a file, which names its folders in the store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Hour {
    /// Date, as `2026-11-21`.
    pub(crate) date: String,
    /// Hour, as `07`.
    pub(crate) hour: String,
}

/// Milliseconds of a day.
const DAY_MS: i64 = 24 * HOUR_MS;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const MINUTE_MS: i64 = 60 * 1000;

impl Instant {
    /// Returns the current time of the wall clock.
    pub(crate) fn now() -> Self {
        Self::from_system_time(SystemTime::now())
    }

    /// Converts a system time. A time before 1970 becomes 1970, one that is too late the largest possible.
    pub(crate) fn from_system_time(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    /// Returns the time that is `length` earlier, or the smallest possible one.
    pub(crate) fn minus(self, length: Duration) -> Self {
        let length = i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(length))
    }

    /// Formats the time as `2026-11-21T14:30:00.000Z`, limited to the years 1970 to 9999.
    pub(crate) fn to_rfc3339(self) -> String {
        // The last millisecond of 9999, the last year of RFC 3339.
        let ms = self.0.clamp(0, 253_402_300_799_999).unsigned_abs();
        humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
    }

    /// Returns the date and hour, in UTC, that contain this time.
    pub(crate) fn hour(self) -> Hour {
        let text = self.to_rfc3339();
        Hour {
            date: text[..10].to_owned(),
            hour: text[11..13].to_owned(),
        }
    }
}

impl Uptime {
    /// Returns the time since the machine started, including the time in which it was suspended.
    pub(crate) fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Self(now.tv_sec * 1000 + now.tv_nsec / 1_000_000)
    }

    /// Returns the time that has passed since `earlier`; 0 if `earlier` is the later point.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0).max(0).unsigned_abs())
    }

    /// Returns the time that is `length` later, or the largest possible one.
    pub(crate) fn plus(self, length: Duration) -> Self {
        let length = i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(length))
    }
}

impl Hour {
    /// Returns the folders of the hour's files in the store, as `date=2026-11-21/hour=07`.
    pub(crate) fn directory(&self) -> String {
        format!("date={}/hour={}", self.date, self.hour)
    }

    /// Returns the first millisecond of the hour. `None` if the fields are no valid date and hour.
    pub(crate) fn start(&self) -> Option<Instant> {
        let text = format!("{}T{}:00:00Z", self.date, self.hour);
        humantime::parse_rfc3339(&text)
            .ok()
            .map(Instant::from_system_time)
    }

    /// Returns the first millisecond after the hour. `None` if the fields are no valid date and hour.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.start().map(|start| Instant(start.0 + HOUR_MS))
    }
}

/// Parses the time of `--at`, in UTC: `14:30` of the last 24 hours, an RFC 3339 time, `2h` or `2h ago`. The error says
/// what is expected.
pub(crate) fn parse_instant(text: &str) -> Result<Instant, String> {
    parse_instant_at(text, Instant::now())
}

/// Parses a time of day or an age relative to `now`, or an absolute time, all in UTC. A time of day that is still to
/// come today means that of yesterday. The error says what is expected.
fn parse_instant_at(text: &str, now: Instant) -> Result<Instant, String> {
    let expected = "expected a time in UTC: 14:30, 2026-11-21T14:30:00Z, or 2h for two hours ago";
    let ago = text.strip_suffix(" ago").unwrap_or(text);
    if let Ok(ago) = humantime::parse_duration(ago) {
        return Ok(now.minus(ago));
    }
    if let Ok(time) = humantime::parse_rfc3339_weak(text) {
        return Ok(Instant::from_system_time(time));
    }
    let (hour, minute) = text.split_once(':').ok_or(expected)?;
    let number = |text: &str, limit: i64| {
        let number = text.parse::<i64>().ok();
        number.filter(|number| (0..limit).contains(number))
    };
    let (hour, minute) = number(hour, 24).zip(number(minute, 60)).ok_or(expected)?;
    let today = now.0 - now.0.rem_euclid(DAY_MS);
    let time = today + hour * HOUR_MS + minute * MINUTE_MS;
    Ok(Instant(if time > now.0 { time - DAY_MS } else { time }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_at_accepts_clock_duration_and_date() {
        let now = Instant(1_795_000_000_000);
        assert_eq!(now.to_rfc3339(), "2026-11-18T11:06:40.000Z");
        let check = |text: &str, expected: &str| {
            let found = parse_instant_at(text, now).map(Instant::to_rfc3339);
            assert_eq!(found.unwrap_or_else(|error| error), expected, "{text}");
        };
        check("10:00", "2026-11-18T10:00:00.000Z");
        check("14:30", "2026-11-17T14:30:00.000Z");
        check("2h", "2026-11-18T09:06:40.000Z");
        check("2h ago", "2026-11-18T09:06:40.000Z");
        check("2026-11-01 05:00:00", "2026-11-01T05:00:00.000Z");
        let expected =
            "expected a time in UTC: 14:30, 2026-11-21T14:30:00Z, or 2h for two hours ago";
        check("25:00", expected);
    }

    #[test]
    fn hour_names_its_directory() {
        let hour = Instant(1_795_000_000_000).hour();
        assert_eq!(hour.directory(), "date=2026-11-18/hour=11");
        assert_eq!(hour.end().unwrap().to_rfc3339(), "2026-11-18T12:00:00.000Z");
        assert_eq!(Instant(i64::MAX).hour().date, "9999-12-31");
    }
}
