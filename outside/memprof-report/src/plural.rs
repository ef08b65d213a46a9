//! Counted nouns.

/// Formats `1 sample`, `2 samples`.
pub(crate) fn pluralize(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}
