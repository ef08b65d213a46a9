//! How full the slabs of jemalloc's are in which objects lie.
#![expect(unsafe_code, reason = "jemalloc follows pointers")]

use std::ffi::CStr;

use rustix::io::Errno;

use crate::allocators::jemalloc::{Bin, Jemalloc};

/// Since jemalloc 5.2; takes no lock.
const BATCH_QUERY: &CStr = c"experimental.utilization.batch_query";

/// What lies around an object (`inspect_extent_util_stats_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Slab {
    /// Objects that it has room for besides.
    pub(super) free: usize,
    /// Objects that it has room for in all; 1 where it is no slab, 0 where nothing is known.
    pub(super) regions: usize,
    /// Its length in bytes.
    pub(super) bytes: usize,
}

impl Slab {
    /// Whether an object of `size` bytes in it is of that class.
    fn is_in_bin(&self, bin: &Bin, size: u64) -> bool {
        let regions = bin.slab_size.checked_div(bin.size);
        let is_alike = (regions, bin.slab_size) == (Some(self.regions as u64), self.bytes as u64);
        is_alike && size <= bin.size
    }

    /// The class of an object of `size` bytes in it, as an index. None where it is no slab, and where the object was
    /// freed since and another thing took its place.
    pub(super) fn bin(&self, bins: &[Bin], size: u64) -> Option<usize> {
        bins.iter().position(|bin| self.is_in_bin(bin, size))
    }

    /// What each of its objects holds of it that is free.
    pub(super) fn free_bytes_for_each(&self, bin: &Bin) -> f64 {
        match self.regions.saturating_sub(self.free) as u64 {
            0 => 0.0,
            given_out => {
                let free = bin.slab_size.saturating_sub(given_out * bin.size);
                free as f64 / given_out as f64
            }
        }
    }
}

/// What the slabs of a class take beyond their objects.
pub(super) fn free_bytes(bin: &Bin) -> u64 {
    let given_out = bin.regions.saturating_mul(bin.size);
    bin.slab_bytes().saturating_sub(given_out)
}

/// Whether it tells how full its slabs are.
pub(super) fn supports_slab_queries(jemalloc: &Jemalloc) -> bool {
    jemalloc.config_stats && jemalloc.mallctl.can_read(BATCH_QUERY)
}

/// All classes as they are now.
///
/// # Errors
/// jemalloc refused.
pub(super) fn bins_now(jemalloc: &Jemalloc) -> Result<Vec<Bin>, Errno> {
    jemalloc.mallctl.write(c"epoch", 1_u64)?;
    jemalloc.bins()
}

/// How full the slab of each object is. Of one that was freed since, what lies there now.
///
/// # Safety
/// This jemalloc gave out each of `objects`.
///
/// # Errors
/// jemalloc refused.
pub(super) unsafe fn query_slabs(
    jemalloc: &Jemalloc,
    objects: &[usize],
    slabs: &mut [Slab],
) -> Result<(), Errno> {
    // SAFETY: inspect.c: finds an address in jemalloc's own tree of addresses, in which whatever was given out
    // has had a leaf ever since, and writes three words for each.
    unsafe { jemalloc.mallctl.query_each(BATCH_QUERY, objects, slabs) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_known_by_its_slab() {
        let bin = |size, slab_size| Bin {
            size,
            regions: 250,
            slabs: 3,
            slab_size,
        };
        let bins = [bin(32, 4096), bin(48, 12288), bin(96, 12288)];
        assert_eq!(free_bytes(&bins[1]), 3 * 12288 - 250 * 48);
        let check = |size, slab: [usize; 3], expected| {
            let [free, regions, bytes] = slab;
            let slab = Slab {
                free,
                regions,
                bytes,
            };
            assert_eq!(slab.bin(&bins, size), expected, "{size} {slab:?}");
        };
        check(40, [9, 256, 12288], Some(1));
        check(48, [0, 256, 12288], Some(1));
        check(40, [0, 128, 12288], Some(2));
        // Freed since, and another took its place.
        check(49, [0, 256, 12288], None);
        check(40, [0, 1, 12288], None);
        check(40, [0, 0, 0], None);
    }

    #[test]
    fn objects_hold_what_is_free_in_equal_parts() {
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
            assert!((slab.free_bytes_for_each(&bin) - expected).abs() < 1e-9);
        };
        check(0, 0.0);
        check(63, 63.0 * 64.0);
        check(32, 64.0);
        // Freed since.
        check(64, 0.0);
    }
}
