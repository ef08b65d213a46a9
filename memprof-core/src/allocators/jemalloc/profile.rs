//! jemalloc's heap profile, written so that every failure is told with its true cause.

use std::io::{self, BufReader};

use memprof_own::StdioGuard;

use super::Jemalloc;
use crate::dumps::heap::{ProfileSummary, summarize};
use crate::dumps::scratch::Scratch;
use crate::error::{Error, ErrorKind, Result};

impl Jemalloc {
    /// Writes a profile into `scratch` and checks it.
    ///
    /// # Errors
    /// jemalloc or the kernel refused; what was written is damaged.
    pub(crate) fn write_profile(&self, scratch: &Scratch) -> Result<ProfileSummary> {
        self.exclude_this_thread();
        // jemalloc opens the path, and writes to the descriptor as the program's threads run.
        let _guard = StdioGuard::acquire()
            .map_err(|errno| Error::io("open a descriptor for the dump", &errno.into()))?;
        let path = scratch.path()?;
        let dumped = self.mallctl.write_path(c"prof.dump", &path);
        dumped.map_err(|errno| {
            write_error(scratch).unwrap_or_else(|| Error::mallctl("prof.dump", errno))
        })?;
        check(scratch)
    }
}

/// The error that tells why the kernel does not let jemalloc write, if that is so.
fn write_error(scratch: &Scratch) -> Option<Error> {
    let errno = scratch.write_errno()?;
    Some(Error::new(ErrorKind::Io, "jemalloc failed to write the dump").errno(errno))
}

fn check(scratch: &Scratch) -> Result<ProfileSummary> {
    let read = |error: io::Error| Error::io("read the dump back", &error);
    let file = scratch.rewind().map_err(read)?;
    let summary = summarize(BufReader::with_capacity(1 << 16, file));
    // jemalloc takes a short write for a whole one, and that may end after any line.
    let refused = match &summary {
        Ok(summary) if !summary.has_mappings => write_error(scratch),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => write_error(scratch),
        Ok(_) | Err(_) => None,
    };
    if let Some(refused) = refused {
        return Err(refused);
    }
    summary.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => Error::new(ErrorKind::Allocator, error.to_string()),
        _ => read(error),
    })
}
