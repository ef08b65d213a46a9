//! Formats values as cells of a table.

use memprof_report::{SampleType, format_amount};

/// Formats a number of bytes in the largest fitting unit, as `1.50MiB`.
pub(super) fn format_bytes(bytes: i64) -> String {
    format_amount(bytes, SampleType::InuseSpace)
}

/// Formats a difference in bytes with its sign, as `+1.50MiB`.
pub(super) fn format_signed_bytes(value: i64) -> String {
    let sign = if value < 0 { "" } else { "+" };
    format!("{sign}{}", format_bytes(value))
}
