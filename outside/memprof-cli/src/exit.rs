//! Exit codes: one for each outcome that scripts distinguish.

use std::process::ExitCode;

use memprof_host::client::ClientError;
pub(crate) use memprof_output::{FAILED, NO_DATA, UNREACHABLE, USAGE, error_chain, with_exit_code};
use memprof_plugin_abi::Status;
use memprof_plugin_abi::raw::{
    MEMPROF_ABI_MISMATCH, MEMPROF_INVALID_ARGUMENT, MEMPROF_OK, MEMPROF_UNAVAILABLE,
    MEMPROF_UNKNOWN_MESSAGE, MEMPROF_UNSUPPORTED,
};
use memprof_report::ErrorKind;

/// Result of a command: its exit code, or an error.
pub(crate) type Outcome = anyhow::Result<ExitCode>;

/// The process cannot be profiled.
pub(crate) const UNAVAILABLE: u8 = 4;
/// ABI of plugin and host, or build IDs of dump and binary, differ.
pub(crate) const MISMATCH: u8 = 6;
/// `memprof test`: the command exceeded its budget.
pub(crate) const OVER_BUDGET: u8 = 7;

/// Returns the exit code of this program for an error that ends a command: the one that the error carries, else one for
/// the error's type.
pub(crate) fn code_of_error(error: &anyhow::Error) -> ExitCode {
    code_number_of_error(error).into()
}

/// Returns the exit code for an error as a number: the one that the error carries, else one for the error's type.
/// [`FAILED`] for an error of unknown type.
pub(crate) fn code_number_of_error(error: &anyhow::Error) -> u8 {
    if let Some(code) = memprof_output::exit_code_of_error(error) {
        code
    } else if let Some(ClientError::Unreachable(_)) = error.downcast_ref::<ClientError>() {
        UNREACHABLE
    } else if let Some(ClientError::Plugin { status, .. }) = error.downcast_ref::<ClientError>() {
        code_of_status(*status)
    } else if let Some(error) = error.downcast_ref::<memprof_report::Error>() {
        report_exit_code(error)
    } else if let Some(ClientError::Refused { .. }) = error.downcast_ref::<ClientError>() {
        USAGE
    } else {
        FAILED
    }
}

/// Returns the exit code for an error of a report, by its kind.
fn report_exit_code(error: &memprof_report::Error) -> u8 {
    match error.kind() {
        ErrorKind::Usage => USAGE,
        ErrorKind::Empty => NO_DATA,
        ErrorKind::BuildIdMismatch => MISMATCH,
        _ => FAILED,
    }
}

/// Returns the exit code for the status with which a plugin replies (`MEMPROF_…` of the plugin ABI).
pub(crate) fn code_of_status(status: Status) -> u8 {
    match status {
        MEMPROF_OK => 0,
        MEMPROF_UNKNOWN_MESSAGE | MEMPROF_INVALID_ARGUMENT => USAGE,
        MEMPROF_UNSUPPORTED | MEMPROF_UNAVAILABLE => UNAVAILABLE,
        MEMPROF_ABI_MISMATCH => MISMATCH,
        _ => FAILED,
    }
}
