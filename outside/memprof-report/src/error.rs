//! Errors of reading and rendering profiles.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Class of an [`Error`], by what the caller can do; determines the program's exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Reading the input or writing the output failed.
    Failed,
    /// The options contradict each other or the input.
    Usage,
    /// The profile has no samples.
    Empty,
    /// A binary has another build id than the profile's.
    BuildIdMismatch,
}

/// Error that names the failed act and its object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A line breaks the format's rules.
    #[error("failed to parse {format} line {line}: {problem}")]
    Line {
        /// Name of the format, as in "heap dump".
        format: &'static str,
        /// Line number, from 1.
        line: u64,
        /// Expected and found text.
        problem: String,
    },
    /// The input is truncated.
    #[error("the heap dump is truncated: {problem} (--force reads what is there)")]
    Truncated {
        /// The missing part.
        problem: String,
    },
    /// The input has no known format.
    #[error(
        "failed to recognise the input: expected a heap dump of jemalloc, tcmalloc or Go, a pprof profile \
         or one of these in gzip, found {found}"
    )]
    Unrecognised {
        /// First bytes, quoted.
        found: String,
    },
    /// A protobuf profile contradicts itself or its schema.
    #[error("failed to parse pprof profile: {problem}")]
    Pprof {
        /// Expected and found text.
        problem: String,
    },
    /// The input exceeds a limit of [`Limits`](crate::Limits).
    #[error("the input passes the limit of {limit} {what}")]
    Limit {
        /// Counted items, or their unit.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// A sum of values overflows.
    #[error("the values overflow: {problem}")]
    Overflow {
        /// The sum that does not fit.
        problem: String,
    },
    /// The profile has no samples.
    #[error("the profile is empty: {reason}")]
    Empty {
        /// Reason, as far as the file shows it.
        reason: String,
    },
    /// A binary has another build id than the profile's.
    #[error(
        "build id mismatch: the profile was taken from {path} with build id {expected}, \
         {} has {found} (--pid reads the right one of a process that still runs, --binary-root names a directory with it, \
         --force names anyway)",
        file.display()
    )]
    BuildIdMismatch {
        /// Path of the mapping.
        path: String,
        /// Build id in the profile, in hex.
        expected: String,
        /// File that was found instead.
        file: PathBuf,
        /// Build id of that file, in hex.
        found: String,
    },
    /// An input cannot be read.
    #[error("{name}: {source}")]
    Input {
        /// File name of the input.
        name: String,
        /// The error in it.
        source: Box<Self>,
    },
    /// The options contradict each other or the input.
    #[error("{0}")]
    Usage(String),
    /// A required external program failed.
    #[error("{program}: {problem}")]
    Program {
        /// Name of the program.
        program: &'static str,
        /// Failure and remedy.
        problem: String,
    },
    /// Reading or writing failed.
    #[error("failed to {act}")]
    Io {
        /// The failed act and its object.
        act: String,
        /// Error of the failed system call.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Returns whether the cause is an input in no known format.
    pub fn is_unrecognised(&self) -> bool {
        match self {
            Self::Unrecognised { .. } => true,
            Self::Input { source, .. } => source.is_unrecognised(),
            _ => false,
        }
    }

    /// Returns the class of the error; for an error in a named input, that of its cause.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Input { source, .. } => source.kind(),
            Self::Usage(_) => ErrorKind::Usage,
            Self::Empty { .. } => ErrorKind::Empty,
            Self::BuildIdMismatch { .. } => ErrorKind::BuildIdMismatch,
            _ => ErrorKind::Failed,
        }
    }

    /// Error for a malformed line; `line` is its number from 1, `format` names the file format.
    pub(crate) fn malformed_line(
        format: &'static str,
        line: u64,
        problem: impl Into<String>,
    ) -> Self {
        Self::Line {
            format,
            line,
            problem: problem.into(),
        }
    }

    /// Error for a malformed protobuf profile.
    pub(crate) fn malformed_pprof(problem: impl Into<String>) -> Self {
        Self::Pprof {
            problem: problem.into(),
        }
    }

    /// Returns a function for `map_err` that wraps an I/O error. `act` is the act that failed, as in "read the
    /// profile".
    pub(crate) fn failed_to(act: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let act = act.into();
        move |source| Self::Io { act, source }
    }
}

impl From<io::Error> for Error {
    /// Converts an I/O error of writing the report; `Error::failed_to` converts those of other acts.
    fn from(source: io::Error) -> Self {
        Self::Io {
            act: "write the report".into(),
            source,
        }
    }
}

/// Formats input bytes for a message: printable ASCII, at most 40 bytes.
pub(crate) struct Quoted<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_BYTES: usize = 40;
        let (shown, dots) = match self.0.len() {
            0..=MAX_BYTES => (self.0, ""),
            _ => (&self.0[..MAX_BYTES], "…"),
        };
        write!(f, "\"{}{dots}\"", shown.escape_ascii())
    }
}
