//! What can go wrong, and what the operator can do about it.

use std::io;

use rustix::io::Errno;

/// A result whose error is [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The kinds of trouble that a caller treats differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument or a setting is out of range or names nothing.
    Invalid,
    /// This allocator cannot do it.
    Unsupported,
    /// It could work, but not in this process as it was started.
    Unavailable,
    /// A dump is running.
    Busy,
    /// The allocator refused.
    Allocator,
    /// The operating system refused.
    Io,
    /// So little memory is left for the process that it would be ended.
    Memory,
    /// A defect of memprof's.
    Internal,
}

/// An error that names the act, the thing, the cause and, where there is one, the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// For the caller to branch on.
    pub kind: ErrorKind,
    /// What happened.
    pub message: String,
    /// What would help; empty when nothing is known.
    pub remedy: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            remedy: String::new(),
        }
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// The allocator refused, in the words of `message`.
    pub fn allocator(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Allocator, message)
    }

    /// The operating system refused `act`, for example `"open /var/lib/x"`.
    pub(crate) fn io(act: &str, cause: &io::Error) -> Self {
        let cause = match cause.raw_os_error() {
            Some(code) => describe(Errno::from_raw_os_error(code)),
            None => cause.to_string(),
        };
        Self::new(ErrorKind::Io, format!("failed to {act}: {cause}"))
    }

    /// jemalloc refused the control of that name.
    pub(crate) fn mallctl(name: &str, errno: Errno) -> Self {
        Self::new(
            ErrorKind::Allocator,
            format!("jemalloc refused {name}: {}", describe(errno)),
        )
    }
}

/// An errno with its name: `No space left on device (ENOSPC)`.
pub(crate) fn describe(errno: Errno) -> String {
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
        assert_eq!(
            error.to_string(),
            "failed to open /x: No space left on device (ENOSPC)"
        );
    }
}
