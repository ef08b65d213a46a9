//! What a watch rule is judged by: a few microseconds' worth of the kernel's figures.

use memprof_messages::Cgroup;

use crate::error::{Error, ErrorKind, Result};
use crate::system::cgroup;

/// One look at the memory of this process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryReading {
    /// Resident.
    pub rss: u64,
    /// What the process could have: its cgroup's limit, or else the machine's memory.
    pub available: u64,
    /// Its cgroup, where it can be read.
    pub cgroup: Option<Cgroup>,
}

impl MemoryReading {
    /// Looks.
    ///
    /// # Errors
    /// `/proc/thread-self/statm` cannot be read.
    pub(crate) fn take() -> Result<Self> {
        let cgroup = cgroup::read_current();
        let limit = cgroup.and_then(|cgroup| cgroup.limit_bytes);
        let machine = rustix::system::sysinfo();
        let machine = machine.totalram.saturating_mul(machine.mem_unit.into());
        Ok(Self {
            rss: rss()?,
            available: limit.map_or(machine, |limit| limit.min(machine)),
            cgroup,
        })
    }
}

/// The resident bytes of this process.
///
/// # Errors
/// `/proc/thread-self/statm` cannot be read.
pub(crate) fn rss() -> Result<u64> {
    const STATM: &str = "/proc/thread-self/statm";
    let statm = std::fs::read_to_string(STATM)
        .map_err(|error| Error::io(&format!("read {STATM}"), &error))?;
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    let pages: u64 =
        pages.ok_or_else(|| Error::new(ErrorKind::Io, format!("{STATM} says {statm:?}")))?;
    Ok(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_resident_and_within_what_it_could_have() {
        let reading = MemoryReading::take().unwrap();
        assert!(reading.rss > 100_000, "{reading:?}");
        assert!(reading.rss < reading.available, "{reading:?}");
    }
}
