//! Counted nouns.

/// Formats a number with its noun: `1 sample`, `2 samples`. `noun` is the singular.
pub(crate) fn pluralize(count: u64, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
