//! jemalloc's heap profile, written so that every failure is told with its true cause.

use std::io::{self, BufReader};

use memprof_own::StdioGuard;

use super::Jemalloc;
use crate::dumps::heap::{Summary, summarize};
use crate::dumps::scratch::Scratch;
use crate::error::{Error, ErrorKind, Result};

impl Jemalloc {
    /// Writes a profile into `scratch` and checks it.
    ///
    /// # Errors
    /// jemalloc or the kernel refused; what was written is damaged.
    pub(crate) fn dump_into(&self, scratch: &Scratch) -> Result<Summary> {
        self.leave_this_thread_out();
        // jemalloc opens the path, and writes to the descriptor as the program's threads run.
        let _guard = StdioGuard::acquire()
            .map_err(|errno| Error::io("open a descriptor for the dump", &errno.into()))?;
        let path = scratch.path()?;
        let dumped = self.mallctl.write_path(c"prof.dump", &path);
        dumped.map_err(|errno| {
            not_written(scratch).unwrap_or_else(|| Error::mallctl("prof.dump", errno))
        })?;
        check(scratch)
    }
}

/// The error that tells why the kernel does not let jemalloc write, if that is so.
fn not_written(scratch: &Scratch) -> Option<Error> {
    let errno = scratch.why_not_writable()?;
    Some(Error::new(ErrorKind::Io, "jemalloc failed to write the dump").errno(errno))
}

fn check(scratch: &Scratch) -> Result<Summary> {
    let read = |error: io::Error| Error::io("read the dump back", &error);
    let file = scratch.rewound().map_err(read)?;
    let summary = summarize(BufReader::with_capacity(1 << 16, file));
    // jemalloc takes a short write for a whole one, and that may end after any line.
    let refused = match &summary {
        Ok(summary) if !summary.has_mappings => not_written(scratch),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => not_written(scratch),
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
