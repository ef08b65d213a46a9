//! Compares the samples with the allocator's own total, to detect calls of `malloc` and `free` that no hook saw.
//!
//! If no hook saw the free of a sampled block, the sample stays in the profile and looks like a leak. A profile with
//! more bytes than the allocator holds therefore always comes with a warning.

use std::ops::RangeInclusive;

use crate::dumps::heap::estimate_unsampled_bytes;

/// Number of standard errors by which an estimate must differ from the allocator's total.
const SIGNIFICANT_ERRORS: f64 = 3.0;
/// Minimum of missing bytes to report. Smaller amounts can be caches of threads and memprof's own blocks.
const MIN_MISSING_BYTES: f64 = (4 << 20) as f64;
/// Minimum of missing bytes to report, as a share of the allocator's total.
const MIN_MISSING_SHARE: f64 = 0.05;

/// Bytes in use that the samples represent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SampledBytes {
    estimate: f64,
    /// Variance of the estimate, in square bytes.
    variance: f64,
    /// Upper bound of the bytes that an allocator uses for these objects after rounding up their sizes.
    rounded: f64,
}

/// Bytes in use that the hooks missed; 0 if the difference may be due to chance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnseenBytes {
    /// Bytes in the estimate that the allocator does not hold, because they were freed unseen.
    pub freed: u64,
    /// Bytes allocated since sampling began that no sample represents.
    pub allocated: u64,
}

impl SampledBytes {
    /// Adds `objects` sampled objects with `bytes` in total. Their sizes must be similar, as in a record of one size
    /// class. `interval` is the sample interval in bytes. Does nothing if one of the three is 0.
    ///
    /// The variance is the same as for memprof-report's errors (Horvitz and Thompson).
    pub(super) fn add_objects(&mut self, objects: u64, bytes: u64, interval: u64) {
        if objects == 0 || bytes == 0 || interval == 0 {
            return;
        }
        let estimate = estimate_unsampled_bytes(objects, bytes, interval) as f64;
        let size = bytes as f64 / objects as f64;
        // Not `f64::exp`, which calls the C library's function: a program may replace that.
        let miss_probability = libm::exp(-size / interval as f64);
        self.estimate += estimate;
        self.variance += estimate * estimate * miss_probability / objects as f64;
        self.rounded += estimate * max_block_size(size) / size;
    }

    /// Compares the estimate with the allocator's total, and returns the bytes of calls that the sampler did not see.
    /// `allocated` has the totals before and after the samples were counted, in ascending order. `at_start` is the
    /// total when sampling began; without it, missing allocations are not reported, because they may be older.
    pub(super) fn compare_with_total(
        self,
        allocated: RangeInclusive<u64>,
        at_start: Option<u64>,
    ) -> UnseenBytes {
        let (least, most) = (*allocated.start() as f64, *allocated.end() as f64);
        let error = SIGNIFICANT_ERRORS * self.variance.sqrt();
        let freed = match self.estimate - error > most {
            true => self.estimate - most,
            false => 0.0,
        };
        // Lower bound: each uncertain value is taken as that which leaves the fewest missing bytes. Rounding up the
        // sizes enlarges the error of the estimate by the same factor.
        let missing = at_start.map_or(0.0, |before| {
            let rounding = self.rounded / self.estimate.max(1.0);
            least - before as f64 - self.rounded - error * rounding.max(1.0)
        });
        let is_notable = missing >= MIN_MISSING_BYTES.max(least * MIN_MISSING_SHARE);
        UnseenBytes {
            freed: freed as u64,
            allocated: if is_notable { missing as u64 } else { 0 },
        }
    }
}

/// Maximum size of a block for a request of `size` bytes. Size classes of jemalloc and tcmalloc are at most a quarter
/// larger, small ones at most 16 bytes. glibc's chunks (malloc.c, `MINSIZE`) have a header of 8 bytes, are rounded up
/// to 16, and have at least 32 bytes.
fn max_block_size(size: f64) -> f64 {
    (size * 1.25 + 24.0).max(32.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Samples of 1 KiB at one per 64 KiB, compared with an allocator's total in MiB.
    fn check(mib: u64, allocated: u64, at_start: Option<u64>, expected: UnseenBytes) {
        let mut sampled = SampledBytes::default();
        let objects = mib * MIB / (64 << 10);
        sampled.add_objects(objects, objects * 1024, 64 << 10);
        let allocated = allocated * MIB;
        let found =
            sampled.compare_with_total(allocated..=allocated, at_start.map(|mib| mib * MIB));
        let is_near = |one: u64, other: u64| one.abs_diff(other) <= other / 8;
        assert!(
            is_near(found.freed, expected.freed) && is_near(found.allocated, expected.allocated),
            "{mib} {allocated} {at_start:?}: {found:?}, not {expected:?}"
        );
    }

    #[test]
    fn only_significant_differences_are_reported() {
        let none = UnseenBytes::default();
        let freed = |mib| UnseenBytes {
            freed: mib * MIB,
            ..none
        };
        let missing = |mib| UnseenBytes {
            allocated: mib * MIB,
            ..none
        };
        check(5000, 58, Some(0), freed(4942));
        check(60, 58, Some(0), none);
        check(58, 60, Some(0), none);
        // Within three standard errors: 256 samples have one of a sixteenth.
        check(16, 14, Some(0), none);
        check(16, 4, Some(0), freed(12));
        // What was there before sampling began is not missing.
        check(16, 200, Some(190), none);
        check(16, 200, None, none);
        check(8, 72, Some(0), missing(60));
        check(4, 20, Some(0), missing(13));
        check(1, 4, Some(0), none);
        check(0, 20, Some(0), missing(20));
        check(0, 0, Some(0), none);
    }

    #[test]
    fn small_blocks_with_large_headers_are_not_missing() {
        let mut sampled = SampledBytes::default();
        // 8 bytes requested are 32 bytes of glibc's.
        sampled.add_objects(16 * 64, 16 * 64 * 8, 16 << 10);
        let allocated = 64 * MIB;
        assert_eq!(
            sampled.compare_with_total(allocated..=allocated, Some(0)),
            UnseenBytes::default()
        );
    }

    #[test]
    fn peak_between_two_readings_is_no_unseen_free() {
        let mut sampled = SampledBytes::default();
        sampled.add_objects(1600, 1600 << 10, 64 << 10);
        let found = sampled.compare_with_total(10 * MIB..=110 * MIB, Some(0));
        assert_eq!(found, UnseenBytes::default());
    }
}
