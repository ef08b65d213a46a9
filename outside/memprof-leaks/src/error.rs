//! Why nothing can be said of a process.

use std::io;
use std::time::Duration;

use memprof_ptrace::Refusal;

/// Why a process was not looked into. Each says it as a sentence whose subject is the process, which goes on as
/// before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What every tracer is refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The copy of its page tables is estimated to take too long.
    #[error(
        "would be stopped for about {} ms, more than the {} ms that are allowed (--max-pause)",
        .estimate.as_millis(), .limit.as_millis()
    )]
    LongPause {
        /// How long, estimated.
        estimate: Duration,
        /// How long it may.
        limit: Duration,
    },
    /// Some thread did not stop in time; all go on.
    #[error(
        "did not stop within {} ms: thread {thread} is in uninterruptible sleep (state D), or the machine is busy",
        .limit.as_millis()
    )]
    StopTooLong {
        /// The thread that did not.
        thread: u32,
        /// How long all may stand still.
        limit: Duration,
    },
    /// No thread has a stack that is known to be one, or all are about to take signals.
    #[error("has no thread that could make the copy: {0}")]
    NoThread(&'static str),
    /// The machine promises no more memory than it has.
    #[error(
        "cannot be copied: vm.overcommit_memory is 2, and its {} MiB of private memory are more than the {} MiB \
         that may still be promised", .needed >> 20, .left >> 20
    )]
    Overcommit {
        /// Private writable memory, in bytes.
        needed: u64,
        /// What is left of `CommitLimit`, in bytes.
        left: u64,
    },
    /// Its cgroup may have no further process.
    #[error(
        "cannot be copied: cgroup {cgroup} already has {limit} processes, its limit (pids.max)"
    )]
    PidsLimit {
        /// The cgroup's path.
        cgroup: String,
        /// `pids.max` of that cgroup.
        limit: u64,
    },
    /// What it writes while the snapshot is read is copied, and its cgroup has no room for that.
    #[error(
        "cannot be copied: {place} has {} MiB left, and {} MiB may be needed for pages that are written meanwhile",
        .left >> 20, .needed >> 20
    )]
    Headroom {
        /// Its cgroup, or the machine.
        place: String,
        /// In bytes.
        left: u64,
        /// In bytes.
        needed: u64,
    },
    /// What is to be kept of it takes too much memory of this program.
    #[error(
        "takes about {} MiB to look at, more than the {} MiB that memprof may take (--max-memory)",
        .needed >> 20, .limit >> 20
    )]
    Memory {
        /// In bytes, as far as it was counted.
        needed: u64,
        /// In bytes.
        limit: u64,
    },
    /// clone(2) made no child.
    #[error("could not be copied: {}", not_cloned_reason(.0))]
    NotCloned(io::Error),
    /// No allocator whose heap can be searched.
    #[error("has no heap that can be searched: {0}")]
    NoHeap(String),
    /// No profiler knows the stack of an object.
    #[error("has no object whose stack is known: no profiler in it holds a sample")]
    NoSamples,
    /// The kernel refused something else.
    #[error("{what}: {cause}")]
    Io {
        /// The act and the thing.
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

    /// What to do about it, where anything can be done.
    pub fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::Refused(refusal) => return refusal.remedy(),
            Self::LongPause { estimate, .. } => {
                format!(
                    "allow it by --max-pause {}ms",
                    estimate.as_millis() * 3 / 2 + 1
                )
            }
            Self::StopTooLong { .. } | Self::NoThread(_) => "try again".to_owned(),
            Self::Overcommit { .. } => {
                "run `sysctl vm.overcommit_memory=0`, and set it back afterwards".to_owned()
            }
            Self::PidsLimit { .. } => "raise pids.max of its cgroup by one".to_owned(),
            Self::Headroom { .. } => {
                "raise the limit, or look at a process that has less memory".to_owned()
            }
            Self::Memory { needed, .. } => {
                format!("allow it by --max-memory {}MiB", (needed >> 20) * 3 / 2 + 1)
            }
            Self::NoHeap(_) => {
                "memprof can search heaps of glibc's malloc (2.27 and newer) and of jemalloc 5.3"
                    .to_owned()
            }
            Self::NoSamples => "run `memprof attach` and `memprof activate`, and ask again when it has allocated more; \
                                or choose by --class or --size"
                .to_owned(),
            Self::NotCloned(_) | Self::Io { .. } => return None,
        };
        Some(remedy)
    }

    /// The exit code of `memprof`: 3 where the process is out of reach, 4 where it is left alone, 5 where there is
    /// nothing to show.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(refusal) => refusal.exit_code(),
            Self::Io { .. } => 1,
            Self::NoSamples => 5,
            _ => 4,
        }
    }
}

fn not_cloned_reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => {
            "its user has as many processes as it may (RLIMIT_NPROC), or its cgroup has (pids.max)"
                .to_owned()
        }
        Some(libc::ESRCH) => "it was killed".to_owned(),
        Some(_) => format!("clone(2) failed in it: {error}"),
        None => "its thread did not reach clone(2) in time; try again".to_owned(),
    }
}
