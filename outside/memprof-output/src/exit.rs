//! Exit codes that memprof's programs have in common, and the end of `main`.

use std::fmt;
use std::process::ExitCode;

use memprof_messages::{Operation, errno_remedy};
use rustix::io::Errno;

use crate::{print_stderr, stdout};

/// Exit code: general failure.
pub const FAILED: u8 = 1;
/// Exit code: the command line, the environment or the configuration is invalid.
pub const USAGE: u8 = 2;
/// Exit code: the host, process, store or server is unreachable.
pub const UNREACHABLE: u8 = 3;
/// Exit code: there is no data to show.
pub const NO_DATA: u8 = 5;

/// An error with its own exit code.
#[derive(Debug)]
pub struct ExitError {
    code: u8,
    message: String,
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ExitError {}

/// Builds an error with the text `message` that ends a command with the exit code `code`.
pub fn with_exit_code(code: u8, message: impl Into<String>) -> anyhow::Error {
    ExitError {
        code,
        message: message.into(),
    }
    .into()
}

/// Returns the exit code of the first [`ExitError`] among an error and its causes, outermost first. `None` if there is
/// none.
pub fn exit_code_of_error(error: &anyhow::Error) -> Option<u8> {
    let mut causes = error.chain();
    causes.find_map(|cause| Some(cause.downcast_ref::<ExitError>()?.code))
}

/// Joins the texts of an error and its causes with `: `, outermost first. Leaves out a cause whose text already ends
/// the joined text: some errors quote their cause.
pub fn error_chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Returns the text of an error with its causes. Appends a remedy if the text contains an errno that has one for file
/// operations.
pub fn error_text(error: &anyhow::Error) -> String {
    let text = error_chain(error);
    let remedy = printed_errno_remedy(&text).map(|remedy| format!("; {remedy}"));
    format!("{text}{}", remedy.unwrap_or_default())
}

/// Returns the remedy for a failed file operation. Finds the errno in an error's text, as `std::io::Error` prints it:
/// `(os error 30)`. `None` if the text has no errno, or if there is no remedy for it.
fn printed_errno_remedy(text: &str) -> Option<String> {
    let (_, number) = text.split_once("(os error ")?;
    let (number, _) = number.split_once(')')?;
    errno_remedy(
        Errno::from_raw_os_error(number.parse().ok()?),
        Operation::File,
    )
}

/// Ends a command: prints its error, if there is one, to stderr, and returns the exit code of this program. The code is
/// that of `outcome`, or the result of `code_of` for an error. A success becomes a failure if printed text was lost, as
/// on a full disk: a script would take an empty file for the result.
pub fn finish_command(
    outcome: anyhow::Result<ExitCode>,
    code_of: impl FnOnce(&anyhow::Error) -> ExitCode,
) -> ExitCode {
    match outcome {
        Ok(ExitCode::SUCCESS) if !stdout::is_stdout_complete() => FAILED.into(),
        Ok(code) => code,
        Err(error) => {
            print_stderr(&format!("memprof: {}", error_text(&error)));
            code_of(&error)
        }
    }
}

/// Prints the help, the version or the error that the parser of the command line returns in place of arguments. Returns
/// the exit code, which is a failure too if the help or version is lost, e.g. on a full disk.
pub fn print_parser_output(error: &clap::Error) -> ExitCode {
    // No failure if only the reader of the help went away, or if an error's text is lost.
    let is_lost = match error.print() {
        Err(lost) if !error.use_stderr() => lost.kind() != std::io::ErrorKind::BrokenPipe,
        _ => false,
    };
    let code = u8::try_from(error.exit_code()).unwrap_or(FAILED);
    if is_lost { FAILED } else { code }.into()
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn code_is_that_of_the_first_cause_that_has_one() {
        let check = |error: anyhow::Error, expected| {
            assert_eq!(exit_code_of_error(&error), expected, "{error:#}");
        };
        check(with_exit_code(NO_DATA, "no profile"), Some(NO_DATA));
        let caused = Err::<(), _>(with_exit_code(UNREACHABLE, "refused"));
        check(caused.context("the store").unwrap_err(), Some(UNREACHABLE));
        // A connection that breaks is no reader of stdout that went away.
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        check(broken.into(), None);
    }

    #[test]
    fn remedy_is_that_of_printed_errno() {
        let check = |text: &str, part: &str| {
            let remedy = printed_errno_remedy(text).unwrap_or_default();
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
