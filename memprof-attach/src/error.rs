//! Why the plugin is not in the process.

use std::io;

use memprof_ptrace::Refusal;

/// Why the plugin is not in the process, which goes on as before.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be attached to.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Another memprof is at it.
    #[error("another memprof is attaching to it at this moment; try again")]
    Busy,
    /// Something was refused to it on the way.
    #[error("{0}")]
    Failed(String),
    /// The loader, or the plugin itself, said so.
    #[error("{0}")]
    NotLoaded(String),
    /// A file could not be read or written.
    #[error("{what}: {cause}")]
    Io {
        /// The act that failed, and the file.
        what: String,
        /// Why.
        cause: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |cause| Self::Io { what, cause }
    }
}
