//! What can go wrong, and what the operator can do about it.

use std::{fmt, io};

pub use memprof_messages::ErrorKind;
use rustix::io::Errno;

use crate::limit;

/// A result whose error is [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error that names the act, the thing, the cause and, where there is one, the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    /// For the caller to branch on.
    pub kind: ErrorKind,
    /// What happened, naming the thing: `failed to open /var/lib/x`.
    pub message: String,
    /// What was being done when it failed: `open /var/lib/x`; none where it was refused before anything
    /// was done.
    pub act: Option<String>,
    /// Why, where somebody else said so.
    pub source: Option<Cause>,
    /// What would help; empty when nothing is known.
    pub remedy: String,
}

/// What an [`Error`] comes from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The operating system's or the allocator's error number.
    #[error("{}", describe(*.0))]
    Errno(Errno),
    /// An error without a number.
    #[error("{0}")]
    Text(String),
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            act: None,
            source: None,
            remedy: String::new(),
        }
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// That remedy, unless there is one.
    pub(crate) fn or_remedy(self, remedy: &str) -> Self {
        match self.remedy.is_empty() {
            true => self.remedy(remedy),
            false => self,
        }
    }

    pub(crate) fn errno(mut self, errno: Errno) -> Self {
        self.source = Some(Cause::Errno(errno));
        self
    }

    /// The allocator refused, in the words of `message`.
    pub fn allocator(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Allocator, message)
    }

    /// The operating system refused `act`, for example `"open /var/lib/x"`. Where it met a limit, the remedy is to
    /// raise that.
    pub(crate) fn io(act: &str, cause: &io::Error) -> Self {
        let source = match cause.raw_os_error() {
            Some(code) => Cause::Errno(Errno::from_raw_os_error(code)),
            None => Cause::Text(cause.to_string()),
        };
        let limit = match source {
            Cause::Errno(errno) => limit::remedy(errno),
            Cause::Text(_) => None,
        };
        Self {
            act: Some(act.to_owned()),
            source: Some(source),
            remedy: limit.unwrap_or_default(),
            ..Self::new(ErrorKind::Io, format!("failed to {act}"))
        }
    }

    /// jemalloc refused the control of that name.
    pub(crate) fn mallctl(name: &str, errno: Errno) -> Self {
        Self {
            act: Some(format!("mallctl {name}")),
            ..Self::allocator(format!("jemalloc refused {name}")).errno(errno)
        }
    }

    /// The number in its source.
    pub fn os_error(&self) -> Option<Errno> {
        match self.source {
            Some(Cause::Errno(errno)) => Some(errno),
            Some(Cause::Text(_)) | None => None,
        }
    }
}

/// `failed to open /var/lib/x: No space left on device (ENOSPC)`
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.source {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

/// An errno with its name: `No space left on device (ENOSPC)`.
fn describe(errno: Errno) -> String {
    let text = io::Error::from_raw_os_error(errno.raw_os_error()).to_string();
    let text = text.split(" (os error").next().unwrap_or(&text).to_owned();
    let debug = nix::errno::Errno::from_raw(errno.raw_os_error());
    format!("{text} ({debug:?})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_io_error_names_act_cause_and_errno() {
        let error = Error::io("open /x", &io::Error::from_raw_os_error(libc::ENOSPC));
        let expected = "failed to open /x: No space left on device (ENOSPC)";
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.os_error(), Some(Errno::NOSPC));
        assert_eq!(error.act.as_deref(), Some("open /x"));
    }
}
