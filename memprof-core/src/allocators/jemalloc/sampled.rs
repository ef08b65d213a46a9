//! The memory cost of sampling. jemalloc puts each sampled small object on separate pages, so that `free` can recognize
//! it. Its statistics count these pages as fragmentation, or as the program's memory.

use std::ffi::CStr;

use rustix::io::Errno;

use super::Jemalloc;
use super::bins::Bin;
use memprof_messages::{HeapTotals, SampledObjects};

/// jemalloc's statistics, merged over all arenas.
#[derive(Clone, Debug, Default)]
struct HeapCounts {
    /// Page size in bytes.
    page: u64,
    /// Padding of each large object in bytes: jemalloc randomizes the object's start within one extra page, against
    /// cache collisions.
    pad: u64,
    interval: u64,
    bins: Vec<Bin>,
    large_bytes: u64,
    large_objects: u64,
    /// Smallest size class of large objects, which jemalloc 5.3.0 uses for sampled objects.
    smallest_large: u64,
    smallest_large_objects: u64,
}

impl Jemalloc {
    /// Estimates the sampled objects and their memory. `None` if jemalloc was started without profiling, or lacks a
    /// statistic. `totals` must have been read just before, so that all counts describe the same moment.
    pub(crate) fn sampled_objects(&self, totals: &HeapTotals) -> Option<SampledObjects> {
        if !self.opt_prof {
            return None;
        }
        let counts = self.read_heap_counts().ok()?;
        Some(estimate_sampled_objects(&counts, totals.active))
    }

    /// Reads the counts for the estimate, as of the last refresh (`epoch`). Fails with the errno of the first mallctl
    /// that jemalloc refuses.
    fn read_heap_counts(&self) -> Result<HeapCounts, Errno> {
        // 4096 stands for all arenas (jemalloc(3), MALLCTL_ARENAS_ALL).
        let size = |name: &str| Ok(self.read_mallctl::<usize>(name)? as u64);
        let bins = self.read_bins();
        let page = size("arenas.page")?;
        let is_on = |name: &CStr| self.mallctl.read_bool(name);
        // A start option since 5.3; a build option before.
        let is_padded = is_on(c"opt.cache_oblivious").or_else(|_| is_on(c"config.cache_oblivious"));
        let allocated = self.read_mallctl::<u64>("stats.arenas.4096.large.nmalloc")?;
        let freed = self.read_mallctl::<u64>("stats.arenas.4096.large.ndalloc")?;
        Ok(HeapCounts {
            page,
            pad: if is_padded? { page } else { 0 },
            interval: 1u64
                .checked_shl(self.lg_sample().ok_or(Errno::NOENT)? as u32)
                .ok_or(Errno::INVAL)?,
            bins: bins?,
            large_bytes: size("stats.arenas.4096.large.allocated")?,
            large_objects: allocated.saturating_sub(freed),
            smallest_large: size("arenas.lextent.0.size")?,
            smallest_large_objects: size("stats.arenas.4096.lextents.0.curlextents")?,
        })
    }
}

/// Upper bound of size/interval in the estimate. Beyond it nearly every object of a class is sampled, and the unsampled
/// ones say nothing about the number of sampled ones.
const MAX_INTERVALS: f64 = 5.0;

/// Estimates the sampled objects from jemalloc's counts and its `active` bytes. Zeros if less than one object is
/// expected. From 5.3.1 on, sampled objects are the active bytes that no other count explains; in earlier releases,
/// they are among the objects of the smallest large size class.
fn estimate_sampled_objects(counts: &HeapCounts, active: u64) -> SampledObjects {
    let in_pages = |size: u64| size.next_multiple_of(counts.page.max(1));
    let (mut objects, mut bytes, mut pages) = (0.0, 0.0, 0.0);
    for bin in &counts.bins {
        // An object stays unsampled with probability e^-(size/interval) (prof.c), so the number of unsampled objects
        // gives that of the sampled ones.
        let intervals = bin.size as f64 / counts.interval.max(1) as f64;
        let sampled = bin.regions as f64 * libm::expm1(intervals.min(MAX_INTERVALS));
        objects += sampled;
        bytes += sampled * bin.size as f64;
        pages += sampled * in_pages(bin.size) as f64;
    }
    if objects < 1.0 {
        return SampledObjects::default();
    }
    let slabs = counts.bins.iter().map(Bin::slab_bytes);
    let slabs = slabs.fold(0, u64::saturating_add);
    let large = counts
        .large_bytes
        .saturating_add(counts.large_objects.saturating_mul(counts.pad));
    // Since 5.3.1, sampled objects are neither in slabs nor among the large objects, so they are the rest of the active
    // bytes.
    let unaccounted = active.saturating_sub(slabs).saturating_sub(large) as f64;
    let laid_out = pages + objects * counts.pad as f64;
    let share = unaccounted / laid_out;
    // In releases before 5.3.1, the share is near 0.
    if share > 0.25 {
        return SampledObjects {
            objects: (objects * share) as u64,
            bytes: (bytes * share) as u64,
            active: unaccounted as u64,
            allocated: 0,
            pages: (pages * share) as u64,
        };
    }
    // Before 5.3.1, sampled objects are among the large objects of the smallest class.
    let share = (counts.smallest_large_objects as f64 / objects).min(1.0);
    let count = (objects * share) as u64;
    SampledObjects {
        objects: count,
        bytes: (bytes * share) as u64,
        active: count.saturating_mul(counts.smallest_large + counts.pad),
        allocated: count.saturating_mul(counts.smallest_large),
        pages: (pages * share) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 18,056 live unsampled objects of 1 KiB, at one sample per 4 KiB: about 5,128 were sampled.
    fn counts() -> HeapCounts {
        HeapCounts {
            page: 4096,
            pad: 4096,
            interval: 4096,
            bins: vec![Bin {
                size: 1024,
                regions: 18_056,
                slabs: 4514,
                slab_size: 4096,
            }],
            smallest_large: 16384,
            ..HeapCounts::default()
        }
    }

    #[test]
    fn unaccounted_pages_are_of_samples() {
        // jemalloc 5.3.1 in `rust_host`: a page and a page of padding for each of 5,138 objects.
        let active = 4514 * 4096 + 5138 * 8192;
        let sampled = estimate_sampled_objects(&counts(), active);
        assert_eq!(sampled.objects, 5138);
        assert_eq!(sampled.bytes, 5138 * 1024);
        assert_eq!(sampled.active, 5138 * 8192);
        assert_eq!((sampled.allocated, sampled.pages), (0, 5138 * 4096));
    }

    #[test]
    fn samples_before_5_3_1_count_as_large() {
        // jemalloc 5.3.0 in `c_host`: 16 KiB for each, and the program's own large objects.
        let large = |objects: u64| HeapCounts {
            large_bytes: objects * 16384,
            large_objects: objects,
            smallest_large_objects: objects,
            ..counts()
        };
        let check = |objects: u64, expected: u64| {
            let active = 4514 * 4096 + objects * 20480;
            let sampled = estimate_sampled_objects(&large(objects), active);
            assert_eq!(sampled.objects, expected);
            assert_eq!(sampled.allocated, expected * 16384);
            assert_eq!(sampled.active, expected * 20480);
        };
        check(5058, 5058);
        check(100_000, 5128);
        check(0, 0);
    }

    #[test]
    fn estimate_without_samples_is_zero() {
        let coarse = HeapCounts {
            interval: 1 << 40,
            ..counts()
        };
        assert_eq!(
            estimate_sampled_objects(&coarse, 4514 * 4096),
            SampledObjects::default()
        );
        assert_eq!(
            estimate_sampled_objects(&HeapCounts::default(), u64::MAX),
            SampledObjects::default()
        );
    }
}
