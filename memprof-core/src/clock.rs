//! Times as text.

use std::time::SystemTime;

/// `2026-01-31T12:00:00Z`.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}
