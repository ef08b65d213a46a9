//! Times as text.

use std::time::SystemTime;

/// Formats `time` as `2026-01-31T12:00:00Z`, to the second.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}
