//! Sizes and times as the commands show them.

use std::time::Duration;

use memprof_report::{SampleType, format_amount};

/// Formats a number of bytes with a unit, e.g. `2.00KiB`.
pub(crate) fn format_size(bytes: u64) -> String {
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    format_amount(bytes, SampleType::InuseSpace)
}

/// Returns a duration in milliseconds, cut to whole microseconds.
pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}
