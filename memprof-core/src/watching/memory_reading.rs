//! The memory values that watch rules evaluate. Reading them takes a few microseconds.

use memprof_messages::Cgroup;

use crate::error::{Error, ErrorKind, Result};
use crate::system::cgroup;

/// Memory of this process at one moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryReading {
    /// Resident memory.
    pub rss: u64,
    /// Available memory: the limit of the process's cgroup or the machine's memory, whichever is smaller.
    pub available: u64,
    /// Usage and limit of the process's cgroup. `None` if it cannot be read.
    pub cgroup: Option<Cgroup>,
}

impl MemoryReading {
    /// Reads the values of this moment: the resident memory, the available memory (the cgroup's limit or the machine's
    /// memory, whichever is smaller), and the cgroup.
    ///
    /// # Errors
    /// `Io`: `/proc/thread-self/statm` cannot be read.
    pub(crate) fn read() -> Result<Self> {
        let cgroup = cgroup::read_current_cgroup();
        let limit = cgroup.and_then(|cgroup| cgroup.limit_bytes);
        let machine = rustix::system::sysinfo();
        let machine = machine.totalram.saturating_mul(machine.mem_unit.into());
        Ok(Self {
            rss: read_rss()?,
            available: limit.map_or(machine, |limit| limit.min(machine)),
            cgroup,
        })
    }
}

/// Reads the resident bytes of this process.
///
/// # Errors
/// `Io`: `/proc/thread-self/statm` cannot be read, or has no such number.
pub(crate) fn read_rss() -> Result<u64> {
    const STATM: &str = "/proc/thread-self/statm";
    let statm = std::fs::read_to_string(STATM)
        .map_err(|error| Error::io(&format!("read {STATM}"), &error))?;
    // proc_pid_statm(5): the total size, then the resident size, in pages.
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    let pages: u64 =
        pages.ok_or_else(|| Error::new(ErrorKind::Io, format!("{STATM} says {statm:?}")))?;
    Ok(pages * memprof_own::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rss_is_below_available_memory() {
        let reading = MemoryReading::read().unwrap();
        assert!(reading.rss > 100_000, "{reading:?}");
        assert!(reading.rss < reading.available, "{reading:?}");
    }
}
