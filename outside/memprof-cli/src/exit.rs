//! Exit codes: one for each outcome that scripts distinguish.

use std::fmt;
use std::process::ExitCode;

use memprof_host::client::ClientError;
use memprof_messages::{Operation, errno_remedy};
use memprof_plugin_abi::Status;
use memprof_plugin_abi::raw::{
    MEMPROF_ABI_MISMATCH, MEMPROF_INVALID_ARGUMENT, MEMPROF_OK, MEMPROF_UNAVAILABLE,
    MEMPROF_UNKNOWN_MESSAGE, MEMPROF_UNSUPPORTED,
};
use rustix::io::Errno;

/// Result of a command: its exit code, or an error.
pub(crate) type Outcome = anyhow::Result<ExitCode>;

/// General failure.
pub(crate) const FAILED: u8 = 1;
/// Invalid command line or message arguments.
pub(crate) const USAGE: u8 = 2;
/// The host or process is unreachable.
pub(crate) const UNREACHABLE: u8 = 3;
/// The process cannot be profiled.
pub(crate) const UNAVAILABLE: u8 = 4;
/// There is no data to show.
pub(crate) const NO_DATA: u8 = 5;
/// ABI of plugin and host, or build IDs of dump and binary, differ.
pub(crate) const MISMATCH: u8 = 6;
/// `memprof test`: the command exceeded its budget.
pub(crate) const OVER_BUDGET: u8 = 7;

/// An error with its own exit code.
#[derive(Debug)]
pub(crate) struct ExitError {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ExitError {}

/// Builds an error with an exit code.
pub(crate) fn with_exit_code(code: u8, message: impl Into<String>) -> anyhow::Error {
    ExitError {
        code,
        message: message.into(),
    }
    .into()
}

/// Joins an error and its causes; a cause that ends the text already is not repeated.
pub(crate) fn error_chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Remedy for an error of the kernel about a file, by the number that `std::io::Error` prints: `(os error 30)`. `None` for
/// other errors, whose texts have a remedy.
pub(crate) fn system_remedy(text: &str) -> Option<String> {
    let (_, number) = text.split_once("(os error ")?;
    let (number, _) = number.split_once(')')?;
    errno_remedy(
        Errno::from_raw_os_error(number.parse().ok()?),
        Operation::File,
    )
}

/// Returns the exit code for an error, by its type; [`FAILED`] for an unknown one.
pub(crate) fn code_of(error: &anyhow::Error) -> ExitCode {
    let code = if let Some(coded) = error.downcast_ref::<ExitError>() {
        coded.code
    } else if let Some(ClientError::Unreachable(_)) = error.downcast_ref::<ClientError>() {
        UNREACHABLE
    } else if let Some(ClientError::Plugin { status, .. }) = error.downcast_ref::<ClientError>() {
        code_of_status(*status)
    } else if let Some(error) = error.downcast_ref::<memprof_report::Error>() {
        crate::report::exit_code(error)
    } else if let Some(ClientError::Refused { .. }) = error.downcast_ref::<ClientError>() {
        USAGE
    } else {
        FAILED
    };
    code.into()
}

/// Returns the exit code for a plugin's status.
pub(crate) fn code_of_status(status: Status) -> u8 {
    match status {
        MEMPROF_OK => 0,
        MEMPROF_UNKNOWN_MESSAGE | MEMPROF_INVALID_ARGUMENT => USAGE,
        MEMPROF_UNSUPPORTED | MEMPROF_UNAVAILABLE => UNAVAILABLE,
        MEMPROF_ABI_MISMATCH => MISMATCH,
        _ => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_is_that_of_printed_errno() {
        let check = |text: &str, part: &str| {
            let remedy = system_remedy(text).unwrap_or_default();
            assert!(
                remedy.contains(part) && part.is_empty() == remedy.is_empty(),
                "{remedy}"
            );
        };
        check(
            "failed to write x: Read-only file system (os error 30)",
            "read-only",
        );
        check(
            "failed to write x: No space left on device (os error 28) at path \"y\"",
            "df -i",
        );
        check(
            "failed to open x: Permission denied (os error 13)",
            "permission",
        );
        check(
            "failed to open x: Too many open files (os error 24)",
            "RLIMIT_NOFILE",
        );
        check(
            "failed to open x: No such file or directory (os error 2)",
            "",
        );
        check("unknown target (os error", "");
        check("the profile is empty", "");
    }
}
