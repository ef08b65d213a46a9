//! Counted nouns.

/// Formats a number with its noun: `1 sample`, `2 samples`. `what` is the singular.
pub(crate) fn pluralize(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}
