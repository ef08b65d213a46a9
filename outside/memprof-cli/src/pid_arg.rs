//! A process on the command line.

/// A process where no host's name will do.
///
/// # Errors
/// For whoever typed the name of one.
pub(crate) fn parse(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| {
        "a process is named by its number here; `memprof ps --all` lists them".to_owned()
    })
}
