//! Writes jemalloc's heap profile, and reports the true cause of a failure.

use std::io::{self, BufReader};
use std::time::Instant;

use memprof_own::StdioGuard;

use super::Jemalloc;
use crate::dumps::heap::{ProfileSummary, summarize_heap_v2};
use crate::dumps::scratch::Scratch;
use crate::error::{Error, ErrorKind, Result};

impl Jemalloc {
    /// Writes a heap profile to the temporary file `scratch`, and checks it. Excludes the calling thread from profiling
    /// from now on.
    ///
    /// # Errors
    /// jemalloc or the kernel refused, or the written profile is damaged.
    pub(crate) fn write_profile(&self, scratch: &Scratch) -> Result<ProfileSummary> {
        self.exclude_this_thread();
        // jemalloc opens the path while the program's threads run. Its descriptor must not be 0, 1 or 2, because these
        // threads write to those numbers.
        let _guard = StdioGuard::acquire()
            .map_err(|errno| Error::io("open a descriptor for the dump", &errno.into()))?;
        let path = scratch.path()?;
        let start = Instant::now();
        let dumped = self.mallctl.write_path(c"prof.dump", &path);
        let stall = start.elapsed();
        dumped.map_err(|errno| {
            find_write_error(scratch).unwrap_or_else(|| Error::refused_mallctl("prof.dump", errno))
        })?;
        Ok(ProfileSummary {
            stall: Some(stall),
            ..check_profile(scratch)?
        })
    }
}

/// Tries to write to `scratch` as jemalloc did, and returns an `Io` error with the cause if that fails. `None` if the
/// write succeeds, so that the file is not the cause.
fn find_write_error(scratch: &Scratch) -> Option<Error> {
    let cause = scratch.probe_write_error()?;
    Some(Error::new(ErrorKind::Io, "jemalloc failed to write the dump").with_cause(&cause))
}

/// Reads the profile back, checks that it is complete, and summarizes it.
///
/// # Errors
/// `Io`: the profile cannot be read, or the kernel refused a write and jemalloc did not report it. `Allocator`: the
/// profile is malformed.
fn check_profile(scratch: &Scratch) -> Result<ProfileSummary> {
    let read_error = |error: io::Error| Error::io("read the dump back", &error);
    let file = scratch.rewind_file().map_err(read_error)?;
    let summary = summarize_heap_v2(BufReader::with_capacity(1 << 16, file));
    // jemalloc ignores short writes, so the profile may end after any line.
    let write_failure = match &summary {
        // A whole profile ends with the process's mappings.
        Ok(summary) if !summary.has_mappings => find_write_error(scratch),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => find_write_error(scratch),
        Ok(_) | Err(_) => None,
    };
    if let Some(error) = write_failure {
        return Err(error);
    }
    summary.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => Error::new(ErrorKind::Allocator, error.to_string()),
        _ => read_error(error),
    })
}
