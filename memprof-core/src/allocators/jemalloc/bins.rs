//! jemalloc's classes of small objects.

use std::ffi::CString;

use rustix::io::Errno;

use super::Jemalloc;
use crate::allocators::mallctl::Value;

/// One class, merged over all arenas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bin {
    /// The size of its objects.
    pub size: u64,
    /// Objects that are given out, those in the caches of threads too.
    pub regions: u64,
    pub slabs: u64,
    pub slab_size: u64,
}

impl Bin {
    /// The memory of its slabs, in bytes.
    pub(crate) fn slab_bytes(&self) -> u64 {
        self.slabs.saturating_mul(self.slab_size)
    }
}

impl Jemalloc {
    /// All classes, as of the last `epoch`.
    pub(crate) fn bins(&self) -> Result<Vec<Bin>, Errno> {
        // 4096 stands for all arenas (jemalloc.3, MALLCTL_ARENAS_ALL).
        let size = |name: &str| Ok(self.numbered::<usize>(name)? as u64);
        let bin = |at: u32| {
            Ok(Bin {
                size: size(&format!("arenas.bin.{at}.size"))?,
                regions: size(&format!("stats.arenas.4096.bins.{at}.curregs"))?,
                slabs: size(&format!("stats.arenas.4096.bins.{at}.curslabs"))?,
                slab_size: size(&format!("arenas.bin.{at}.slab_size"))?,
            })
        };
        (0..self.numbered::<u32>("arenas.nbins")?)
            .map(bin)
            .collect()
    }

    pub(super) fn numbered<T: Value>(&self, name: &str) -> Result<T, Errno> {
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        self.mallctl.read(&name)
    }
}
