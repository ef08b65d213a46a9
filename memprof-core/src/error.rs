//! The error type: what failed, why, and what the operator can do about it.

use std::{fmt, io};

pub use memprof_messages::ErrorKind;
use memprof_messages::{Operation, errno_remedy};
use rustix::io::Errno;

/// A result whose error is [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error that names the action, the object, the cause and, if there is one, the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    /// Kind of the error, for the caller to branch on.
    pub kind: ErrorKind,
    /// Action and object that failed, such as `failed to open /var/lib/x`.
    pub message: String,
    /// Operation that failed, such as `open /var/lib/x`. `None` if memprof refused before it began.
    pub act: Option<String>,
    /// Error of the kernel or the allocator. `None` if memprof itself refused.
    pub source: Option<Cause>,
    /// Remedy: one imperative sentence, empty if nothing helps.
    pub remedy: String,
}

/// Underlying cause of an [`Error`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// Error number of the operating system or the allocator.
    #[error("{}", errno_text(*.0))]
    Errno(Errno),
    /// Error message without a number.
    #[error("{0}")]
    Text(String),
}

impl Error {
    /// Creates an error without a cause or remedy.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            act: None,
            source: None,
            remedy: String::new(),
        }
    }

    /// Sets the remedy, one imperative sentence, in place of an earlier one.
    pub(crate) fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// Appends a remedy to the existing one, or sets it if there is none.
    pub(crate) fn with_further_remedy(self, remedy: &str) -> Self {
        match self.remedy.as_str() {
            "" => self.with_remedy(remedy),
            first => {
                let both = format!("{first}; {remedy}");
                self.with_remedy(both)
            }
        }
    }

    /// Sets the error number of the kernel or the allocator as the cause.
    pub(crate) fn with_errno(mut self, errno: Errno) -> Self {
        self.source = Some(Cause::Errno(errno));
        self
    }

    /// Sets an error of the operating system as the cause: its number, or its text if it has none.
    pub(crate) fn with_cause(mut self, cause: &io::Error) -> Self {
        self.source = Some(match cause.raw_os_error() {
            Some(code) => Cause::Errno(Errno::from_raw_os_error(code)),
            None => Cause::Text(cause.to_string()),
        });
        self
    }

    /// Error of kind `Allocator`: the allocator refused a request.
    pub fn allocator(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Allocator, message)
    }

    /// Error of kind `Io`: the operating system refused `act` on a file. `act` is, for example, `"open /var/lib/x"`.
    pub(crate) fn io(act: &str, cause: &io::Error) -> Self {
        Self::io_for_operation(Operation::File, act, cause)
    }

    /// Error of kind `Io`: the operating system refused `act`. The remedy depends on the errno and on the kind of
    /// `operation`: a file, a thread or a memory file.
    pub(crate) fn io_for_operation(operation: Operation, act: &str, cause: &io::Error) -> Self {
        let error = Self::new(ErrorKind::Io, format!("failed to {act}")).with_cause(cause);
        let remedy = error
            .errno()
            .and_then(|errno| errno_remedy(errno, operation));
        Self {
            act: Some(act.to_owned()),
            remedy: remedy.unwrap_or_default(),
            ..error
        }
    }

    /// Error of kind `Allocator`: jemalloc refused the mallctl `name`.
    pub(crate) fn refused_mallctl(name: &str, errno: Errno) -> Self {
        Self {
            act: Some(format!("mallctl {name}")),
            ..Self::allocator(format!("jemalloc refused {name}")).with_errno(errno)
        }
    }

    /// Error number of the cause. `None` if there is no cause, or if it has no number.
    pub fn errno(&self) -> Option<Errno> {
        match self.source {
            Some(Cause::Errno(errno)) => Some(errno),
            Some(Cause::Text(_)) | None => None,
        }
    }
}

/// Prints message and cause: `failed to open /var/lib/x: No space left on device (ENOSPC)`.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.source {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

/// Text and name of an errno, such as `No space left on device (ENOSPC)`.
fn errno_text(errno: Errno) -> String {
    let text = io::Error::from_raw_os_error(errno.raw_os_error()).to_string();
    // std appends the number, as in ` (os error 28)`.
    let text = text.split(" (os error").next().unwrap_or(&text).to_owned();
    let debug = nix::errno::Errno::from_raw(errno.raw_os_error());
    format!("{text} ({debug:?})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_error_names_act_cause_and_errno() {
        let error = Error::io("open /x", &io::Error::from_raw_os_error(libc::ENOSPC));
        let expected = "failed to open /x: No space left on device (ENOSPC)";
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.errno(), Some(Errno::NOSPC));
        assert_eq!(error.act.as_deref(), Some("open /x"));
    }
}
