//! Errors of an analysis.

use std::io;
use std::time::Duration;

use memprof_ptrace::Refusal;
use memprof_report::{SampleType, format_amount};

/// Reason why a process was not analyzed. Each text continues a sentence whose subject is the process. The
/// process runs on as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A check of memprof-ptrace refused the process to every tracer.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Copying its page tables is estimated to take too long.
    #[error(
        "would be stopped for about {} ms, more than the {} ms that are allowed (--max-pause)",
        .estimate.as_millis(), .limit.as_millis()
    )]
    LongPause {
        /// Estimated pause.
        estimate: Duration,
        /// Allowed pause (`--max-pause`).
        limit: Duration,
    },
    /// A thread did not stop in time. All threads were resumed.
    #[error(
        "did not stop within {} ms: thread {thread} is in uninterruptible sleep (state D), or the machine is busy",
        .limit.as_millis()
    )]
    StopTooLong {
        /// Id of that thread.
        thread: u32,
        /// Allowed pause (`--max-pause`).
        limit: Duration,
    },
    /// No thread can make the copy: none has a stack that is known to be one, or all are about to handle
    /// signals.
    #[error("has no thread that could make the copy: {0}")]
    NoThread(&'static str),
    /// The kernel's commit limit rules the copy out (`vm.overcommit_memory` is 2).
    #[error(
        "cannot be copied: vm.overcommit_memory is 2, and its {} of private memory are more than the {} that \
         may still be promised", format_bytes(*.needed), format_bytes(*.available)
    )]
    Overcommit {
        /// Private writable memory, in bytes.
        needed: u64,
        /// Rest of `CommitLimit`, in bytes.
        available: u64,
    },
    /// The copy would exceed the process limit of its cgroup.
    #[error(
        "cannot be copied: cgroup {cgroup} already has {limit} processes, its limit (pids.max)"
    )]
    PidsLimit {
        /// Path of the cgroup.
        cgroup: String,
        /// `pids.max` of that cgroup.
        limit: u64,
    },
    /// The cgroup or the machine has too little memory for the pages that the process writes while its copy
    /// exists: the kernel duplicates each.
    #[error(
        "cannot be copied: {limiter} has {} left, and {} may be needed for pages that are written meanwhile",
        format_bytes(*.available), format_bytes(*.needed)
    )]
    Headroom {
        /// Path of the cgroup, or "the machine".
        limiter: String,
        /// Available memory, in bytes.
        available: u64,
        /// Memory that may be needed, in bytes.
        needed: u64,
    },
    /// The copy was killed, as memprof or the kernel does where memory runs out.
    #[error("could not be searched: its copy was ended, perhaps because memory was running out")]
    CopyEnded,
    /// The analysis needs more of memprof's own memory than its budget.
    #[error(
        "takes about {} to look at, more than the {} that memprof may take (--max-memory)",
        format_bytes(*.needed), format_bytes(*.limit)
    )]
    Memory {
        /// Needed memory so far, in bytes.
        needed: u64,
        /// Budget, in bytes.
        limit: u64,
    },
    /// Its fork would wait for the program that serves its memory.
    #[error(
        "cannot be copied: its memory is served by userfaultfd(2), whose server each fork waits for \
         (UFFD_FEATURE_EVENT_FORK), or which is not found"
    )]
    ForkEvents,
    /// clone(2) failed in the process, or did not return.
    #[error("could not be copied: {}", not_cloned_reason(.0))]
    NotCloned(io::Error),
    /// No allocator with a heap that memprof can read.
    #[error("has no heap that can be searched: {0}")]
    NoHeap(String),
    /// The process is an emulator, such as qemu-user: memprof could only read the emulator's own heap.
    #[error("is an emulator that executes {program}, whose heap memprof does not look at")]
    Emulated {
        /// Path of the program.
        program: String,
    },
    /// No interpreter of Python whose layout is known.
    #[error("is no Python whose objects memprof can read (CPython 3.8 to 3.14 with the GIL)")]
    NoPython,
    /// No object of the heap has a sample of a profiler.
    #[error("has no object whose stack is known: no profiler in it holds a sample")]
    NoSamples,
    /// Another system call failed.
    #[error("{action}: {cause}")]
    Io {
        /// Action and object of the failed call.
        action: String,
        /// Error of the call.
        cause: io::Error,
    },
}

/// Formats a number of bytes as reports do, e.g. `1.50MiB`.
fn format_bytes(bytes: u64) -> String {
    format_amount(
        i64::try_from(bytes).unwrap_or(i64::MAX),
        SampleType::InuseSpace,
    )
}

impl Error {
    /// Returns a function, for `map_err`, that converts an I/O error to [`Error::Io`] with this action.
    pub(crate) fn with_action(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |cause| Self::Io { action, cause }
    }

    /// Whether the reason of the error may be that the process is about to end or to execute another program.
    pub(crate) fn may_be_exit_or_exec(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.may_be_exit_or_exec(),
            Self::StopTooLong { .. }
            | Self::NoThread(_)
            | Self::NotCloned(_)
            | Self::NoHeap(_)
            | Self::CopyEnded
            | Self::Io { .. } => true,
            _ => false,
        }
    }

    /// Remedy: an imperative sentence. `None` if memprof knows none.
    pub fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::Refused(refusal) => return refusal.remedy(),
            Self::LongPause { estimate, .. } => {
                // Allow half more, because the next estimate may be higher; 1 rounds up.
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
            Self::Headroom { .. } | Self::CopyEnded => {
                "raise the limit, or look at a process that has less memory".to_owned()
            }
            Self::Memory { needed, .. } => {
                // Allow half more, because `needed` is only the memory needed so far; 1 rounds up.
                format!("allow it by --max-memory {}MiB", (needed >> 20) * 3 / 2 + 1)
            }
            Self::NoHeap(_) => {
                "memprof can search heaps of glibc's malloc (2.27 and newer) and of jemalloc 5.3"
                    .to_owned()
            }
            Self::Emulated { .. } => {
                "run the program without the emulator, on a machine of its kind".to_owned()
            }
            Self::NoSamples => "run `memprof attach` and `memprof activate`, and ask again when it has allocated more; \
                                or choose by --class or --size"
                .to_owned(),
            Self::NoPython | Self::ForkEvents | Self::NotCloned(_) | Self::Io { .. } => {
                return None;
            }
        };
        Some(remedy)
    }

    /// Exit code of `memprof`: 3 if the process cannot be reached, 5 if there is nothing to show, and 4 if it could not
    /// be analyzed for another reason. Never 1, which says that objects are leaked (`leaks --fail`).
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(refusal) => refusal.exit_code(),
            Self::NoSamples => 5,
            _ => 4,
        }
    }
}

/// Reason why clone(2) made no copy. An error without errno is a timeout.
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
