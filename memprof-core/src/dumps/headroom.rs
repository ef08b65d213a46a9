//! Headroom: the memory that this process may still get before the kernel kills it.
//!
//! A dump needs new memory, in pages of a file. Limits on the address space do not count these pages, but the machine
//! and the memory cgroup do.

use std::fmt;

use memmap2::MmapMut;
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::system::cgroup;

/// Headroom that a dump must leave to the program, in bytes: for allocations of the program's threads during the dump,
/// for buffers, and for the text of the mappings.
const RESERVE: u64 = 4 << 20;
/// A running dump is abandoned when the headroom is less than the rest of the dump plus this, in bytes.
const ABANDON_RESERVE: u64 = RESERVE / 2;
/// Upper bound in bytes for the rest of the dump in that comparison: the maximum that an allocator writes before the
/// polling thread runs again.
const MAX_WRITE_AHEAD: u64 = 12 << 20;
/// Maximum memory that each of a dump's two threads needs, in bytes. Checked beforehand, because at a memory limit even
/// a failed allocation of a few bytes would abort the process.
const MEMORY_NEEDED: u64 = 1 << 20;

/// Remaining bytes below one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Headroom {
    bytes: u64,
    limit: HeadroomLimit,
}

/// Owner of a memory limit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HeadroomLimit {
    /// The memory cgroup with this path.
    Cgroup(String),
    Machine,
}

impl fmt::Display for Headroom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Mebibytes(self.bytes);
        match &self.limit {
            HeadroomLimit::Cgroup(path) => write!(f, "the memory cgroup {path} has {bytes} left"),
            HeadroomLimit::Machine => write!(f, "the machine has {bytes} left"),
        }
    }
}

/// Bytes, printed as MiB with one decimal.
struct Mebibytes(u64);

impl fmt::Display for Mebibytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}

/// Fails if allocating `bytes` more would leave less than [`RESERVE`] in the process's cgroup or in the machine.
/// Succeeds if neither limit can be read.
///
/// # Errors
/// `Io` with ENOMEM: names the limit and the remaining bytes.
pub(crate) fn require_headroom(bytes: u64) -> Result<()> {
    check_headroom(least_headroom(), bytes)
}

/// Returns the error with which to abandon a running dump if the process has too little memory left. `rest` is the
/// number of bytes that the dump may still write; at most `MAX_WRITE_AHEAD` of them count. `None` while the headroom
/// covers these bytes and a reserve.
pub(crate) fn current_shortage_error(rest: u64) -> Option<Error> {
    shortage_error(least_headroom(), rest)
}

/// Returns the error with which to abandon a running dump if `nearest`, the least headroom of all limits, is too small:
/// less than [`ABANDON_RESERVE`] plus `rest`. `rest` is the number of bytes that the dump may still write; at most
/// [`MAX_WRITE_AHEAD`] of them count. `None` if the headroom suffices, or without a limit.
fn shortage_error(nearest: Option<Headroom>, rest: u64) -> Option<Error> {
    let nearest =
        nearest.filter(|nearest| nearest.bytes < rest.min(MAX_WRITE_AHEAD) + ABANDON_RESERVE)?;
    Some(out_of_memory_error(format!(
        "the dump was given up, because {nearest} of the memory that this process may have"
    )))
}

/// Fails with ENOMEM if allocating `bytes` more would leave less than [`RESERVE`] of `nearest`, the least headroom of
/// all limits. Succeeds if `nearest` is `None`: no limit is known.
fn check_headroom(nearest: Option<Headroom>, bytes: u64) -> Result<()> {
    match nearest {
        Some(nearest) if nearest.bytes < bytes.saturating_add(RESERVE) => {
            Err(out_of_memory_error(format!(
                "a dump may take {} of memory now, beside the {} that it must leave, and {nearest}",
                Mebibytes(bytes),
                Mebibytes(RESERVE)
            )))
        }
        Some(_) | None => Ok(()),
    }
}

/// `Io` error with ENOMEM, and the remedy to free memory or to sample more coarsely.
fn out_of_memory_error(message: String) -> Error {
    Error::new(ErrorKind::Io, message).with_errno(Errno::NOMEM).with_remedy(
        "free memory, raise the limit, or sample more coarsely (reset sample_interval=4MiB, which \
         drops the samples so far)",
    )
}

/// Memory that this process may still get: that left in its cgroup or in the machine, whichever is less. `None` if
/// neither can be read.
fn least_headroom() -> Option<Headroom> {
    let cgroup = cgroup::least_cgroup_headroom().map(|(path, bytes)| Headroom {
        bytes,
        limit: HeadroomLimit::Cgroup(path),
    });
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = meminfo
        .and_then(|text| parse_mem_available(&text))
        .map(|bytes| Headroom {
            bytes,
            limit: HeadroomLimit::Machine,
        });
    cgroup
        .into_iter()
        .chain(machine)
        .min_by_key(|each| each.bytes)
}

/// `MemAvailable` of `proc_meminfo(5)`, in bytes. `None` if the text lacks it, or if it is not a number of kB.
fn parse_mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Fails if this thread cannot allocate [`MEMORY_NEEDED`] bytes for a dump.
///
/// # Errors
/// `Io` with the errno of mmap(2), usually ENOMEM.
pub(crate) fn require_dump_memory() -> Result<()> {
    require_allocatable(MEMORY_NEEDED)
}

/// Fails if neither mmap(2) nor the allocator can provide `bytes` to this thread. Releases the memory at once.
///
/// # Errors
/// `Io` with the errno of mmap(2), usually ENOMEM.
pub(crate) fn require_allocatable(bytes: u64) -> Result<()> {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    // The kernel is tried first: an allocation would make the allocator grow, which its profile would show.
    let Err(cause) = MmapMut::map_anon(bytes) else {
        return Ok(());
    };
    // The allocator may have free memory even if the kernel provides no more.
    let mut probe = Vec::<u8>::new();
    let reserved = probe.try_reserve_exact(bytes);
    // Keeps the compiler from removing the allocation.
    std::hint::black_box(&probe);
    reserved.map_err(|_| Error::io("find memory for the dump", &cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump_beyond_reserve_is_refused() {
        let check = |left: Option<u64>, bytes, expected: Option<&str>| {
            let least = left.map(|bytes| Headroom {
                bytes,
                limit: HeadroomLimit::Cgroup("/web".to_owned()),
            });
            let refused = check_headroom(least, bytes).err();
            assert_eq!(
                refused.as_ref().and_then(Error::errno),
                expected.map(|_| Errno::NOMEM)
            );
            let message = refused.map_or(String::new(), |error| error.to_string());
            assert!(message.contains(expected.unwrap_or("")), "{message}");
        };
        check(Some(32 << 20), 28 << 20, None);
        let expected = "may take 28.0 MiB of memory now, beside the 4.0 MiB that it must leave, and the memory cgroup /web has 32.0 MiB left: Cannot";
        check(Some((32 << 20) - 1), 28 << 20, Some(expected));
        check(Some(1 << 40), u64::MAX, Some("/web"));
        check(None, 1 << 40, None);
    }

    #[test]
    fn shortage_is_reported_while_rest_still_fits() {
        let check = |left_mib: u64, rest_mib: u64, expected: bool| {
            let least = Headroom {
                bytes: left_mib << 20,
                limit: HeadroomLimit::Machine,
            };
            let given_up = shortage_error(Some(least), rest_mib << 20);
            let is_named = |error: &Error| error.message.contains("the machine has");
            assert_eq!(
                given_up.as_ref().is_some_and(is_named),
                expected,
                "{left_mib} {rest_mib}"
            );
        };
        // As when the dump began: the rest and the reserve are available.
        check(12, 8, false);
        check(10, 8, false);
        check(9, 8, true);
        check(2, 0, false);
        check(1, 0, true);
        check(14, 500, false);
        check(13, 500, true);
        assert_eq!(shortage_error(None, 1 << 40), None);
    }

    #[test]
    fn available_memory_of_machine() {
        assert_eq!(
            parse_mem_available("MemTotal:  9 kB\nMemAvailable:    1234 kB\n"),
            Some(1234 * 1024)
        );
        assert_eq!(parse_mem_available("MemTotal:  9 kB\n"), None);
        let least = least_headroom().unwrap();
        assert!(least.bytes > RESERVE, "{least}");
    }
}
