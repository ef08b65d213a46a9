//! The latest sampled allocations, each with the stacks of its allocation and its release, as
//! jemalloc 5.3 keeps them on request (`experimental.prof_recent`).

use std::ffi::CStr;
use std::ops::RangeInclusive;

use rustix::io::Errno;

use crate::allocators::jemalloc::Jemalloc;
use crate::allocators::printout::Printout;
use crate::error::{Error, ErrorKind, Result};
use memprof_messages::{AllocatorKind, RecentAllocations};

const MAX: &CStr = c"experimental.prof_recent.alloc_max";
const DUMP: &CStr = c"experimental.prof_recent.alloc_dump";

/// How many allocations may be kept.
pub const RECENT: RangeInclusive<u64> = 0..=512;

/// The longest report: [`RECENT`] allocations with two of the deepest stacks (128 frames) each.
const LIMIT: usize = 4 << 20;

/// Whether this jemalloc can, and may keep `max`.
///
/// # Errors
/// `Invalid` outside of [`RECENT`]; `Unsupported` where it is too old; `Unavailable` without
/// profiling.
pub(crate) fn require(jemalloc: &Jemalloc, max: Option<u64>) -> Result<()> {
    if let Some(max) = max.filter(|max| !RECENT.contains(max)) {
        let (low, high) = (RECENT.start(), RECENT.end());
        let message = format!("max={max} is out of range {low}..={high}");
        return Err(Error::new(ErrorKind::InvalidArgument, message).remedy("for example max=100"));
    }
    jemalloc.require_profiling()?;
    read_max(jemalloc).map(drop)
}

/// Sets how many are kept, where `max` is given, and reads what was kept so far.
///
/// # Errors
/// `Unavailable` while none are kept; jemalloc refused.
pub(crate) fn take(jemalloc: &Jemalloc, max: Option<u64>) -> Result<RecentAllocations> {
    if let Some(max) = max {
        jemalloc
            .mallctl
            .write(MAX, max as usize)
            .map_err(|errno| Error::mallctl("experimental.prof_recent.alloc_max", errno))?;
    }
    let alloc_max = read_max(jemalloc)?;
    if alloc_max == 0 && max.is_none() {
        let message = "jemalloc keeps no recent allocations yet";
        return Err(Error::new(ErrorKind::Unavailable, message)
            .remedy("send `recent max=100`, let the program run, and send `recent` again"));
    }
    // Reserved before: the callback runs under a lock of jemalloc's.
    let mut printout = Printout::with_capacity(LIMIT)?;
    jemalloc
        .mallctl
        .print_to(DUMP, &mut |piece| printout.push(piece))
        .map_err(|errno| Error::mallctl("experimental.prof_recent.alloc_dump", errno))?;
    Ok(RecentAllocations {
        kind: AllocatorKind::Jemalloc.into(),
        version: jemalloc.identity.version.clone(),
        alloc_max,
        report: printout.into_text(),
    })
}

fn read_max(jemalloc: &Jemalloc) -> Result<i64> {
    match jemalloc.mallctl.read::<usize>(MAX) {
        Ok(max) => Ok(max as i64),
        Err(Errno::NOENT) => {
            let message = format!("{} has no experimental.prof_recent", jemalloc.identity);
            Err(Error::new(ErrorKind::Unsupported, message).remedy("use jemalloc 5.3"))
        }
        Err(errno) => Err(Error::mallctl("experimental.prof_recent.alloc_max", errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::fake::{Behaviour, READERS, fake_mallctl};
    use crate::allocators::jemalloc::JemallocCandidate;
    use crate::allocators::jemalloc::identify;
    use crate::identity::FoundBy;

    struct Old;
    impl Behaviour for Old {}

    struct Off;
    impl Behaviour for Off {
        const OPT_PROF: bool = false;
    }

    fn refusal<B: Behaviour + 'static>(max: Option<u64>) -> Error {
        let candidate = JemallocCandidate {
            mallctl: fake_mallctl::<B>(),
            found_by: FoundBy::Host,
            prefix: None,
            interposed: None,
        };
        require(&identify(candidate, READERS).unwrap(), max).unwrap_err()
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        let too_old = refusal::<Old>(None);
        assert_eq!(too_old.kind, ErrorKind::Unsupported);
        assert!(
            too_old
                .message
                .contains("5.2.1 has no experimental.prof_recent")
        );
        assert_eq!(refusal::<Off>(None).kind, ErrorKind::Unavailable);
        let too_many = refusal::<Old>(Some(513));
        assert_eq!(too_many.message, "max=513 is out of range 0..=512");
    }
}
