//! Queries the occupancy of the jemalloc slabs that contain given objects.
#![expect(unsafe_code, reason = "jemalloc follows pointers")]

use std::ffi::CStr;

use rustix::io::Errno;

use crate::allocators::jemalloc::{Bin, Jemalloc};

/// Mallctl that reports on slabs, since jemalloc 5.2. It takes no lock.
const BATCH_QUERY: &CStr = c"experimental.utilization.batch_query";

/// Slab that contains an object (`inspect_extent_util_stats_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Slab {
    /// Number of free objects.
    pub(super) free: usize,
    /// Number of objects, allocated or free; 1 for an extent that is not a slab, 0 if jemalloc does not know the
    /// address.
    pub(super) regions: usize,
    /// Length in bytes.
    pub(super) bytes: usize,
}

impl Slab {
    /// Whether this can be a slab of size class `bin` that contains an object of `size` bytes.
    fn can_be_in_bin(&self, bin: &Bin, size: u64) -> bool {
        let regions = bin.slab_size.checked_div(bin.size);
        let has_same_layout =
            (regions, bin.slab_size) == (Some(self.regions as u64), self.bytes as u64);
        has_same_layout && size <= bin.size
    }

    /// Index of the size class in `bins`, for an object of `size` bytes in this slab. `None` if this is not a slab, or
    /// if the object was freed and its memory is used for another class.
    pub(super) fn find_bin(&self, bins: &[Bin], size: u64) -> Option<usize> {
        bins.iter().position(|bin| self.can_be_in_bin(bin, size))
    }

    /// Free bytes of the slab divided by the number of its allocated objects; 0 if it has no objects.
    pub(super) fn free_bytes_per_object(&self, bin: &Bin) -> f64 {
        match self.regions.saturating_sub(self.free) as u64 {
            0 => 0.0,
            allocated => {
                let free = bin.slab_size.saturating_sub(allocated * bin.size);
                free as f64 / allocated as f64
            }
        }
    }
}

/// Bytes in the slabs of a size class that no object uses.
pub(super) fn bin_free_bytes(bin: &Bin) -> u64 {
    let allocated = bin.regions.saturating_mul(bin.size);
    bin.slab_bytes().saturating_sub(allocated)
}

/// Whether this jemalloc reports the occupancy of its slabs.
pub(super) fn supports_slab_queries(jemalloc: &Jemalloc) -> bool {
    jemalloc.config_stats && jemalloc.mallctl.has_mallctl(BATCH_QUERY)
}

/// Refreshes and reads the counts of the size classes.
///
/// # Errors
/// jemalloc refused.
pub(super) fn read_current_bins(jemalloc: &Jemalloc) -> Result<Vec<Bin>, Errno> {
    jemalloc.mallctl.write(c"epoch", 1_u64)?;
    jemalloc.read_bins()
}

/// Queries the slabs that contain `objects`, which are addresses, and writes them to `slabs`, which must have the same
/// length. If an object was freed in the meantime, its result describes what is at the address now.
///
/// # Safety
/// This jemalloc allocated each of `objects`.
///
/// # Errors
/// jemalloc refused.
pub(super) unsafe fn query_slabs(
    jemalloc: &Jemalloc,
    objects: &[usize],
    slabs: &mut [Slab],
) -> Result<(), Errno> {
    // SAFETY: inspect.c: jemalloc looks the address up in its own tree, in which every address it ever allocated has a
    // leaf, and writes three words per address. The caller guarantees that this jemalloc allocated each object.
    unsafe {
        jemalloc
            .mallctl
            .query_addresses(BATCH_QUERY, objects, slabs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bin_is_recognized_by_slab_layout() {
        let bin = |size, slab_size| Bin {
            size,
            regions: 250,
            slabs: 3,
            slab_size,
        };
        let bins = [bin(32, 4096), bin(48, 12288), bin(96, 12288)];
        assert_eq!(bin_free_bytes(&bins[1]), 3 * 12288 - 250 * 48);
        let check = |size, slab: [usize; 3], expected| {
            let [free, regions, bytes] = slab;
            let slab = Slab {
                free,
                regions,
                bytes,
            };
            assert_eq!(slab.find_bin(&bins, size), expected, "{size} {slab:?}");
        };
        check(40, [9, 256, 12288], Some(1));
        check(48, [0, 256, 12288], Some(1));
        check(40, [0, 128, 12288], Some(2));
        // The object was freed and its memory reused.
        check(49, [0, 256, 12288], None);
        check(40, [0, 1, 12288], None);
        check(40, [0, 0, 0], None);
    }

    #[test]
    fn free_bytes_per_object_are_equal_parts() {
        let bin = Bin {
            size: 64,
            slab_size: 4096,
            ..Bin::default()
        };
        let check = |free, expected: f64| {
            let slab = Slab {
                free,
                regions: 64,
                bytes: 4096,
            };
            assert!((slab.free_bytes_per_object(&bin) - expected).abs() < 1e-9);
        };
        check(0, 0.0);
        check(63, 63.0 * 64.0);
        check(32, 64.0);
        // The object was freed in the meantime.
        check(64, 0.0);
    }
}
