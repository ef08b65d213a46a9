//! jemalloc's size classes of small objects.

use std::ffi::CString;

use rustix::io::Errno;

use super::Jemalloc;
use crate::allocators::mallctl::Value;

/// Statistics of one size class, merged over all arenas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bin {
    /// Object size in bytes.
    pub size: u64,
    /// Number of allocated objects, including those in thread caches.
    pub regions: u64,
    pub slabs: u64,
    pub slab_size: u64,
}

impl Bin {
    /// Total size of the slabs in bytes, including their free memory.
    pub(crate) fn slab_bytes(&self) -> u64 {
        self.slabs.saturating_mul(self.slab_size)
    }
}

impl Jemalloc {
    /// Reads all size classes of small objects, merged over all arenas, as of the last refresh (`epoch`). Fails with
    /// the errno of the first mallctl that jemalloc refuses.
    pub(crate) fn read_bins(&self) -> Result<Vec<Bin>, Errno> {
        // 4096 stands for all arenas (jemalloc(3), MALLCTL_ARENAS_ALL).
        let size = |name: &str| Ok(self.read_mallctl::<usize>(name)? as u64);
        let bin = |index: u32| {
            Ok(Bin {
                size: size(&format!("arenas.bin.{index}.size"))?,
                regions: size(&format!("stats.arenas.4096.bins.{index}.curregs"))?,
                slabs: size(&format!("stats.arenas.4096.bins.{index}.curslabs"))?,
                slab_size: size(&format!("arenas.bin.{index}.slab_size"))?,
            })
        };
        (0..self.read_mallctl::<u32>("arenas.nbins")?)
            .map(bin)
            .collect()
    }

    /// Reads the integer value of the mallctl `name`. Takes a `str`, because many names contain an index and are
    /// formatted. Fails with EINVAL if the name contains a NUL, or else with jemalloc's errno.
    pub(super) fn read_mallctl<T: Value>(&self, name: &str) -> Result<T, Errno> {
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        self.mallctl.read(&name)
    }
}
