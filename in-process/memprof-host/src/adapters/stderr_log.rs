//! Standard error of a program as its log.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use memprof_own::with_program_stderr;
use rustix::fs::fstat;
use rustix::io::{Errno, writev};

/// Destination of log lines: never a file that the program has opened under the number of standard error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LogDestination {
    /// Standard error at the program's start, by device and inode. `None` if it was closed.
    StartupStderr(Option<(u64, u64)>),
    /// The current standard error. This program replaces it, but only by its log.
    #[cfg(feature = "adapter-postgres")]
    Redirected,
}

impl LogDestination {
    /// Returns the current standard error as a destination. Must run on a thread of the program, because memprof's
    /// threads may have another descriptor table.
    pub(super) fn startup_stderr() -> Self {
        Self::from_stderr(io::stderr())
    }

    /// Returns the destination of a program that starts with `stderr`, which is remembered by its device and inode.
    fn from_stderr(stderr: impl AsFd) -> Self {
        let stat = fstat(stderr).ok();
        Self::StartupStderr(stat.map(|stat| (stat.st_dev, stat.st_ino)))
    }

    /// Writes a line: `memprof: `, `level` and `text`. Drops it if the program has replaced its standard error, except
    /// for a program that redirects it to its log. Allocates nothing.
    pub(super) fn write_line(self, level: &str, text: &str) {
        with_program_stderr(|stderr| {
            let is_log = match self {
                Self::StartupStderr(_) => self == Self::from_stderr(stderr),
                #[cfg(feature = "adapter-postgres")]
                Self::Redirected => true,
            };
            if is_log {
                let parts =
                    ["memprof: ", level, text, "\n"].map(|part| IoSlice::new(part.as_bytes()));
                // A failure of standard error cannot be reported anywhere.
                let _: Result<usize, Errno> = writev(stderr, &parts);
            }
        });
    }
}
