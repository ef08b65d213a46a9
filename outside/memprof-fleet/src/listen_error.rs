//! Errors of listening for HTTP.

use memprof_http::ListenError;
use memprof_output::{USAGE, with_exit_code};

/// Converts an error of listening. If other machines could reach the address, the error has exit code 2, and ends in
/// `remedy`, because not every server has the options of a command line; `None` is for one that has.
pub(crate) fn listen_error(error: ListenError, remedy: Option<&str>) -> anyhow::Error {
    match (error, remedy) {
        (ListenError::Exposed(address), Some(remedy)) => with_exit_code(
            USAGE,
            format!("{address} can be reached by other machines: {remedy}"),
        ),
        (error @ ListenError::Exposed(_), None) => with_exit_code(USAGE, error.to_string()),
        (error, _) => error.into(),
    }
}
