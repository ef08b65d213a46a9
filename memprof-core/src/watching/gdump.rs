//! A dump at each new high-water mark of the resident memory, for a while.
//!
//! jemalloc's own `prof.gdump` writes from inside an allocation, under its locks and by name: a
//! disk that blocks would freeze every thread that allocates, and 40 MB of growth left 9,810
//! files. So high water is watched from outside, and the dumps are ours.

use memprof_messages::GdumpStatus;
use std::time::{Duration, Instant, SystemTime};

/// A new mark is at least so many bytes above the last one.
const SMALLEST_STEP: u64 = 1 << 20;
/// And at least this share (1/100) of it.
const STEP_SHARE: u64 = 100;

/// When it ends by itself: whichever comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GdumpLimits {
    /// So many dumps.
    pub files: u32,
    /// So long.
    pub duration: Duration,
}

/// One watch of the high water.
#[derive(Clone, Debug)]
pub(crate) struct HighWaterWatch {
    limits: GdumpLimits,
    taken: u32,
    ends: Instant,
    until: SystemTime,
    mark: Option<u64>,
}

impl HighWaterWatch {
    pub(crate) fn new(limits: GdumpLimits, now: Instant, clock: SystemTime) -> Self {
        Self {
            limits,
            taken: 0,
            ends: now + limits.duration,
            until: clock + limits.duration,
            mark: None,
        }
    }

    /// Its time is up, or its files.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now >= self.ends || self.taken >= self.limits.files
    }

    /// Whether `rss` is a new mark; it stays one until [`record_dump`](Self::record_dump).
    pub(crate) fn is_new_high(&mut self, rss: u64) -> bool {
        let mark = *self.mark.get_or_insert(rss);
        rss >= mark.saturating_add(SMALLEST_STEP.max(mark / STEP_SHARE))
    }

    /// A dump was taken at `rss`.
    pub(crate) fn record_dump(&mut self, rss: u64) {
        self.taken += 1;
        self.mark = Some(rss);
    }

    pub(crate) fn status(&self) -> GdumpStatus {
        GdumpStatus {
            taken: self.taken,
            files: self.limits.files,
            until: humantime::format_rfc3339_seconds(self.until).to_string(),
            high_water_bytes: self.mark,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn gdump(files: u32, start: Instant) -> HighWaterWatch {
        let limits = GdumpLimits {
            files,
            duration: Duration::from_secs(60),
        };
        HighWaterWatch::new(limits, start, SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn each_new_mark_is_one_dump_and_the_files_end_it() {
        let start = Instant::now();
        let mut gdump = gdump(3, start);
        let steps = [
            (10 * MIB, false),
            (10 * MIB + 1000, false),
            (11 * MIB, true),
            // Lower, and up to the mark again: nothing new.
            (5 * MIB, false),
            (11 * MIB, false),
            (500 * MIB, true),
            // One per cent above the mark.
            (504 * MIB, false),
            (505 * MIB, true),
        ];
        for (rss, expected) in steps {
            assert!(!gdump.is_over(start), "{rss}");
            assert_eq!(gdump.is_new_high(rss), expected, "{rss}");
            if expected {
                // As long as nobody takes it.
                assert!(gdump.is_new_high(rss), "{rss}");
                gdump.record_dump(rss);
            }
        }
        assert!(gdump.is_over(start));
        assert_eq!(gdump.status().taken, 3);
    }

    #[test]
    fn its_time_ends_it() {
        let start = Instant::now();
        let gdump = gdump(3, start);
        assert!(!gdump.is_over(start + Duration::from_secs(59)));
        assert!(gdump.is_over(start + Duration::from_secs(60)));
        assert_eq!(gdump.status().until, "1970-01-01T00:01:00Z");
    }

    #[test]
    fn ten_thousand_marks_are_three_dumps() {
        let start = Instant::now();
        let mut gdump = gdump(3, start);
        for rss in (0..10_000u64).map(|at| at * at * MIB) {
            if !gdump.is_over(start) && gdump.is_new_high(rss) {
                gdump.record_dump(rss);
            }
        }
        assert_eq!(gdump.status().taken, 3);
    }
}
