//! Parser of a pid argument.

/// Parses a pid, where the name of a host is not allowed.
///
/// # Errors
/// The text is not a number.
pub(crate) fn parse(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| {
        "a process is named by its number here; `memprof ps --all` lists them".to_owned()
    })
}
