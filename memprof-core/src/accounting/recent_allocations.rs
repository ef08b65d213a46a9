//! The most recent sampled allocations, each with the stacks of its allocation and its free. jemalloc 5.3 records them
//! on request (`experimental.prof_recent`).

use std::ffi::CStr;
use std::ops::RangeInclusive;

use rustix::io::Errno;

use crate::allocators::jemalloc::Jemalloc;
use crate::allocators::printout::Printout;
use crate::error::{Error, ErrorKind, Result};
use memprof_messages::{AllocatorKind, RecentAllocations};

/// Mallctl for the number of allocations to record.
const ALLOC_MAX: &CStr = c"experimental.prof_recent.alloc_max";
/// Mallctl that prints the recorded allocations.
const ALLOC_DUMP: &CStr = c"experimental.prof_recent.alloc_dump";

/// Accepted numbers of allocations to record.
pub const RECENT_RANGE: RangeInclusive<u64> = 0..=512;

/// Maximum length of a report in bytes: enough for the maximum of [`RECENT_RANGE`], with two stacks of 128 frames each.
const MAX_REPORT: usize = 4 << 20;

/// Fails unless this jemalloc can record recent allocations, and accepts `max` as their number. `None` keeps the number
/// that is set.
///
/// # Errors
/// `InvalidArgument`: `max` is outside of [`RECENT_RANGE`]. `Unsupported`: this jemalloc is too old, or was built
/// without profiling. `Unavailable`: it was started without profiling. `Allocator`: it refused the call.
pub(crate) fn require_recent_allocation_support(
    jemalloc: &Jemalloc,
    max: Option<u64>,
) -> Result<()> {
    if let Some(max) = max.filter(|max| !RECENT_RANGE.contains(max)) {
        let (low, high) = (RECENT_RANGE.start(), RECENT_RANGE.end());
        let message = format!("max={max} is out of range {low}..={high}");
        return Err(
            Error::new(ErrorKind::InvalidArgument, message).with_remedy("for example max=100")
        );
    }
    jemalloc.require_profiling()?;
    read_max_recent_allocations(jemalloc).map(drop)
}

/// Sets the number of allocations to record to `max`, unless it is `None`, and reads the recorded ones.
///
/// # Errors
/// `Unavailable`: jemalloc records none, and `max` is not given. `Unsupported`: this jemalloc is too old. `Allocator`:
/// jemalloc refused. `Io`: no memory for the report.
pub(crate) fn set_max_and_read_recent_allocations(
    jemalloc: &Jemalloc,
    max: Option<u64>,
) -> Result<RecentAllocations> {
    if let Some(max) = max {
        jemalloc
            .mallctl
            .write(ALLOC_MAX, max as usize)
            .map_err(|errno| Error::refused_mallctl("experimental.prof_recent.alloc_max", errno))?;
    }
    let alloc_max = read_max_recent_allocations(jemalloc)?;
    if alloc_max == 0 && max.is_none() {
        let message = "jemalloc keeps no recent allocations yet";
        return Err(Error::new(ErrorKind::Unavailable, message)
            .with_remedy("send `recent max=100`, let the program run, and send `recent` again"));
    }
    // Reserved beforehand: jemalloc holds a lock during the callback, which must not allocate.
    let mut printout = Printout::with_capacity(MAX_REPORT)?;
    jemalloc
        .mallctl
        .print_mallctl(ALLOC_DUMP, &mut |piece| printout.push(piece))
        .map_err(|errno| Error::refused_mallctl("experimental.prof_recent.alloc_dump", errno))?;
    Ok(RecentAllocations {
        kind: AllocatorKind::Jemalloc.into(),
        version: jemalloc.identity.version.clone(),
        alloc_max,
        report: printout.into_text(),
    })
}

/// Maximum number of allocations that jemalloc records; 0 if it records none, and -1 without a limit.
///
/// # Errors
/// `Unsupported`: this jemalloc is too old. `Allocator`: it refused.
fn read_max_recent_allocations(jemalloc: &Jemalloc) -> Result<i64> {
    match jemalloc.mallctl.read::<usize>(ALLOC_MAX) {
        Ok(max) => Ok(max as i64),
        Err(Errno::NOENT) => {
            let message = format!("{} has no experimental.prof_recent", jemalloc.identity);
            Err(Error::new(ErrorKind::Unsupported, message).with_remedy("use jemalloc 5.3"))
        }
        Err(errno) => Err(Error::refused_mallctl(
            "experimental.prof_recent.alloc_max",
            errno,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::fake::{Behaviour, READERS, fake_mallctl};
    use crate::allocators::jemalloc::JemallocCandidate;
    use crate::allocators::jemalloc::identify_jemalloc;
    use crate::identity::FoundBy;

    struct FakeWithoutRecent;
    impl Behaviour for FakeWithoutRecent {}

    struct ProfOffFake;
    impl Behaviour for ProfOffFake {
        const OPT_PROF: bool = false;
    }

    fn require_error<B: Behaviour + 'static>(max: Option<u64>) -> Error {
        let candidate = JemallocCandidate {
            mallctl: fake_mallctl::<B>(),
            found_by: FoundBy::Host,
            prefix: None,
            interposed: None,
        };
        require_recent_allocation_support(&identify_jemalloc(candidate, READERS).unwrap(), max)
            .unwrap_err()
    }

    #[test]
    fn unsupported_requests_are_refused_with_reason() {
        let too_old = require_error::<FakeWithoutRecent>(None);
        assert_eq!(too_old.kind, ErrorKind::Unsupported);
        assert!(
            too_old
                .message
                .contains("5.2.1 has no experimental.prof_recent")
        );
        assert_eq!(
            require_error::<ProfOffFake>(None).kind,
            ErrorKind::Unavailable
        );
        let too_many = require_error::<FakeWithoutRecent>(Some(513));
        assert_eq!(too_many.message, "max=513 is out of range 0..=512");
    }
}
