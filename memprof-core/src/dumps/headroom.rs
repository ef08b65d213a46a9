//! How much memory this process may still have before the kernel ends it.
//!
//! What a dump takes is memory that the process did not have before: pages of a file, which no
//! limit on its address space counts, but the machine and the memory cgroup do.

use std::fmt;

use memmap2::MmapMut;
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::system::cgroup;

/// What a dump leaves to the program at the least: for what its threads allocate meanwhile, for
/// buffers, and for the mappings' text.
const RESERVE: u64 = 4 << 20;
/// Below what the rest of a dump takes, and this, a dump that runs is given up.
const FLOOR: u64 = RESERVE / 2;
/// The most of that rest: what an allocator writes while the thread that looks does not get its turn.
const AHEAD: u64 = 12 << 20;
/// What a dump may need on each of its two threads, at the most. Beyond a limit on memory, a
/// failed allocation of a few bytes would end the process.
const MEMORY_NEEDED: u64 = 1 << 20;

/// What is left.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Headroom {
    bytes: u64,
    of: HeadroomLimit,
}

/// Whose limit it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HeadroomLimit {
    /// The memory cgroup of that path.
    Cgroup(String),
    Machine,
}

impl fmt::Display for Headroom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Mebibytes(self.bytes);
        match &self.of {
            HeadroomLimit::Cgroup(path) => write!(f, "the memory cgroup {path} has {bytes} left"),
            HeadroomLimit::Machine => write!(f, "the machine has {bytes} left"),
        }
    }
}

/// Bytes, as MiB.
struct Mebibytes(u64);

impl fmt::Display for Mebibytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}

/// Fails where the process may not have `bytes` more.
///
/// # Errors
/// `Memory`: whose limit it is, and what is left.
pub(crate) fn require(bytes: u64) -> Result<()> {
    require_in(nearest_limit(), bytes)
}

/// Why a dump that runs and may take `rest` bytes more must be given up, if it must.
pub(crate) fn shortage(rest: u64) -> Option<Error> {
    shortage_error(nearest_limit(), rest)
}

fn shortage_error(least: Option<Headroom>, rest: u64) -> Option<Error> {
    let least = least.filter(|least| least.bytes < rest.min(AHEAD) + FLOOR)?;
    Some(refusal(format!(
        "the dump was given up, because {least} of the memory that this process may have"
    )))
}

fn require_in(least: Option<Headroom>, bytes: u64) -> Result<()> {
    match least {
        Some(least) if least.bytes < bytes.saturating_add(RESERVE) => Err(refusal(format!(
            "a dump may take {} of memory now, beside the {} that it must leave, and {least}",
            Mebibytes(bytes),
            Mebibytes(RESERVE)
        ))),
        Some(_) | None => Ok(()),
    }
}

fn refusal(message: String) -> Error {
    Error::new(ErrorKind::Io, message).errno(Errno::NOMEM).remedy(
        "free memory, raise the limit, or sample more coarsely (reset sample_interval=4MiB, which \
         drops the samples so far)",
    )
}

/// The nearest limit; none where nothing can be read.
fn nearest_limit() -> Option<Headroom> {
    let cgroup = cgroup::current_headroom().map(|(path, bytes)| Headroom {
        bytes,
        of: HeadroomLimit::Cgroup(path),
    });
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = meminfo
        .and_then(|text| available(&text))
        .map(|bytes| Headroom {
            bytes,
            of: HeadroomLimit::Machine,
        });
    cgroup
        .into_iter()
        .chain(machine)
        .min_by_key(|each| each.bytes)
}

/// `MemAvailable` of `proc_meminfo(5)`, in bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Fails where this thread cannot have the memory that a dump takes.
///
/// # Errors
/// ENOMEM.
pub(crate) fn require_memory() -> Result<()> {
    require_memory_for(MEMORY_NEEDED)
}

/// Fails where this thread cannot have that many bytes.
///
/// # Errors
/// ENOMEM.
pub(crate) fn require_memory_for(bytes: u64) -> Result<()> {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    // From the kernel: the allocator would grow for the question, and its profile would tell so.
    let Err(cause) = MmapMut::map_anon(bytes) else {
        return Ok(());
    };
    // What it has no more the allocator may have.
    let mut probe = Vec::<u8>::new();
    let reserved = probe.try_reserve_exact(bytes);
    // Without it the compiler may leave the whole allocation out.
    std::hint::black_box(&probe);
    reserved.map_err(|_| Error::io("find memory for the dump", &cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_leaves_the_reserve() {
        let check = |left: Option<u64>, bytes, expected: Option<&str>| {
            let least = left.map(|bytes| Headroom {
                bytes,
                of: HeadroomLimit::Cgroup("/web".to_owned()),
            });
            let refused = require_in(least, bytes).err();
            assert_eq!(
                refused.as_ref().and_then(Error::os_error),
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
    fn a_dump_is_given_up_while_its_rest_still_fits() {
        let check = |left_mib: u64, rest_mib: u64, expected: bool| {
            let least = Headroom {
                bytes: left_mib << 20,
                of: HeadroomLimit::Machine,
            };
            let given_up = shortage_error(Some(least), rest_mib << 20);
            let is_named = |error: &Error| error.message.contains("the machine has");
            assert_eq!(
                given_up.as_ref().is_some_and(is_named),
                expected,
                "{left_mib} {rest_mib}"
            );
        };
        // As it began: the rest and the reserve are left.
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
    fn memory_of_the_machine() {
        assert_eq!(
            available("MemTotal:  9 kB\nMemAvailable:    1234 kB\n"),
            Some(1234 * 1024)
        );
        assert_eq!(available("MemTotal:  9 kB\n"), None);
        let least = nearest_limit().unwrap();
        assert!(least.bytes > RESERVE, "{least}");
    }
}
