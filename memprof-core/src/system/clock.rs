//! Times of the system clock, as messages have them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, ErrorKind, Result};

/// Last second of the year 9999, in seconds since 1970: in RFC 3339, a year has four digits.
const LAST_SECOND: u64 = 253_402_300_799;

/// Latest time that can be formatted.
pub(crate) fn latest_formattable_time() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(LAST_SECOND)
}

/// Formats a time as `2026-01-31T12:00:00Z`, to the second. A time before 1970 or after the year 9999 counts as the
/// nearest time in between.
pub(crate) fn format_rfc3339(time: SystemTime) -> String {
    let time = time.clamp(UNIX_EPOCH, latest_formattable_time());
    humantime::format_rfc3339_seconds(time).to_string()
}

/// Adds the duration of a time limit to its start.
///
/// # Errors
/// `InvalidArgument`: the sum is after the year 9999.
pub(crate) fn end_of_time_limit(start: SystemTime, duration: Duration) -> Result<SystemTime> {
    let end = start.checked_add(duration);
    end.filter(|end| *end <= latest_formattable_time())
        .ok_or_else(|| {
            let duration = humantime::format_duration(duration);
            let message = format!("a time limit of {duration} ends after the year 9999");
            Error::new(ErrorKind::InvalidArgument, message).with_remedy("choose a shorter one")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_without_rfc3339_form_are_clamped() {
        let check = |time: Option<SystemTime>, expected: &str| {
            assert_eq!(format_rfc3339(time.unwrap()), expected);
        };
        let second = Duration::from_secs(1);
        check(UNIX_EPOCH.checked_sub(second), "1970-01-01T00:00:00Z");
        check(Some(UNIX_EPOCH + second), "1970-01-01T00:00:01Z");
        check(Some(latest_formattable_time()), "9999-12-31T23:59:59Z");
        check(
            latest_formattable_time().checked_add(second),
            "9999-12-31T23:59:59Z",
        );
    }

    #[test]
    fn limit_ends_in_the_year_9999_at_the_latest() {
        let rest = Duration::from_secs(LAST_SECOND);
        assert_eq!(
            end_of_time_limit(UNIX_EPOCH, rest),
            Ok(latest_formattable_time())
        );
        for duration in [rest + Duration::from_secs(1), Duration::MAX] {
            let refused = end_of_time_limit(UNIX_EPOCH, duration).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{refused}");
        }
    }
}
