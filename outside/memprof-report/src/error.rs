//! What can go wrong between bytes and answers.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller can do about an [`Error`]; the program's exit code follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input or the output failed.
    Failed,
    /// The options contradict each other or the input.
    Usage,
    /// The profile holds no sample.
    Empty,
    /// A binary is not the one the profile was taken from.
    BuildIdMismatch,
}

/// An error that names the act and the thing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A line is not what the format says.
    #[error("failed to parse {format} line {line}: {problem}")]
    Line {
        /// The format's name, as in "heap dump".
        format: &'static str,
        /// Counted from 1.
        line: u64,
        /// What was expected and what was found.
        problem: String,
    },
    /// The input ends before its end.
    #[error("the heap dump is truncated: {problem} (--force reads what is there)")]
    Truncated {
        /// What is missing.
        problem: String,
    },
    /// The input is none of the formats that are read.
    #[error(
        "failed to recognise the input: expected a jemalloc or tcmalloc heap dump, a pprof profile \
         or one of these in gzip, found {found}"
    )]
    Unrecognised {
        /// The first bytes, quoted.
        found: String,
    },
    /// A protobuf profile contradicts itself or its schema.
    #[error("failed to parse pprof profile: {problem}")]
    Pprof {
        /// What was expected and what was found.
        problem: String,
    },
    /// A limit for hostile input was passed.
    #[error("the input passes the limit of {limit} {what}")]
    Limit {
        /// What is counted, with its unit.
        what: &'static str,
        /// The most that is accepted.
        limit: u64,
    },
    /// The values cannot be added up.
    #[error("the values overflow: {problem}")]
    Overflow {
        /// Which sum does not fit.
        problem: String,
    },
    /// The profile holds no sample.
    #[error("the profile is empty: {reason}")]
    Empty {
        /// Why, as far as the file tells.
        reason: String,
    },
    /// A binary is not the one the profile was taken from.
    #[error(
        "build id mismatch: the profile was taken from {path} with build id {expected}, \
         {} has {found} (--pid reads the right one of a process that still runs, --binary-root names a directory with it, \
         --force names anyway)",
        file.display()
    )]
    BuildIdMismatch {
        /// The mapping's path.
        path: String,
        /// The build id in the profile, in hex.
        expected: String,
        /// The file that was found instead.
        file: PathBuf,
        /// Its build id, in hex.
        found: String,
    },
    /// One of the inputs cannot be read.
    #[error("{name}: {source}")]
    Of {
        /// Which.
        name: String,
        /// What is wrong with it.
        source: Box<Self>,
    },
    /// The options contradict each other or the input.
    #[error("{0}")]
    Usage(String),
    /// An external program is needed and failed.
    #[error("{program}: {problem}")]
    Program {
        /// The program's name.
        program: &'static str,
        /// What happened, and the remedy.
        problem: String,
    },
    /// Reading or writing failed.
    #[error("failed to {act}")]
    Io {
        /// The act and the thing.
        act: String,
        /// The error of the system call that failed.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Of { source, .. } => source.kind(),
            Self::Usage(_) => ErrorKind::Usage,
            Self::Empty { .. } => ErrorKind::Empty,
            Self::BuildIdMismatch { .. } => ErrorKind::BuildIdMismatch,
            _ => ErrorKind::Failed,
        }
    }

    pub(crate) fn line(format: &'static str, line: u64, problem: impl Into<String>) -> Self {
        Self::Line {
            format,
            line,
            problem: problem.into(),
        }
    }

    pub(crate) fn pprof(problem: impl Into<String>) -> Self {
        Self::Pprof {
            problem: problem.into(),
        }
    }

    pub(crate) fn io(act: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let act = act.into();
        move |source| Self::Io { act, source }
    }
}

/// A writer's failure, while rendering.
impl From<io::Error> for Error {
    fn from(source: io::Error) -> Self {
        Self::Io {
            act: "write the report".into(),
            source,
        }
    }
}

/// Bytes of the input as a message quotes them: printable ASCII, at most 40 of them.
pub(crate) struct Quoted<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 40;
        let (shown, dots) = match self.0.len() {
            0..=SHOWN => (self.0, ""),
            _ => (&self.0[..SHOWN], "…"),
        };
        write!(f, "\"{}{dots}\"", shown.escape_ascii())
    }
}
