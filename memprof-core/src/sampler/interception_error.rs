//! Errors of an interception.

use memprof_sampler::SamplerError;
use rustix::io::Errno;

use crate::error::{Error, ErrorKind};

/// `Unsupported` error for a statically linked allocator without hooks.
pub(super) fn statically_linked_error() -> Error {
    let message = "it is linked into the program, whose own calls lead through no slot, and it has no \
                   experimental.hooks.install, as jemalloc 5.2 to 5.3 have it";
    let remedy = format!(
        "`memprof attach {} sampler=memprof` leads the calls of its functions to memprof",
        std::process::id()
    );
    Error::new(ErrorKind::Unsupported, message).with_remedy(remedy)
}

/// `Unavailable` error for an allocator whose entry points are not all patched.
pub(super) fn missing_patches_error() -> Error {
    let message = "not all functions of the allocator begin with memprof's jumps";
    let remedy = format!("`memprof attach {}` writes them", std::process::id());
    Error::new(ErrorKind::Unavailable, message).with_remedy(remedy)
}

/// `Unavailable` error for slots that cannot be patched because the loader's lock is not available.
pub(super) fn loader_lock_error() -> Error {
    let message = "the calls of malloc cannot be patched: the loader's lock is not available";
    Error::new(ErrorKind::Unavailable, message)
}

/// Converts an error of the sampler: no memory to `Io`, a thread that stays inside the sampler to `Busy`.
pub(super) fn convert_sampler_error(error: SamplerError) -> Error {
    match error {
        SamplerError::NoMemory => Error::io("map the sampler's tables", &Errno::NOMEM.into()),
        SamplerError::InUse => Error::new(
            ErrorKind::Busy,
            "a thread has been inside memprof's sampler for a second",
        )
        .with_remedy("try again; a debugger may hold the thread"),
    }
}
