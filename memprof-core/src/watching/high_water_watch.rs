//! Dumps at each new high-water mark of the resident memory, for a limited time.
//!
//! jemalloc's own `prof.gdump` writes to a named file from inside an allocation, under its locks. A blocking disk would
//! freeze every thread that allocates, and the number of files has no bound: a growth by 40 MB left 9,810 of them. So
//! memprof polls the high water and takes its own dumps.

use memprof_messages::GdumpStatus;
use std::time::{Duration, Instant, SystemTime};

use crate::error::Result;
use crate::system::clock::{end_of_time_limit, format_rfc3339};

/// Minimum distance between a new mark and the last one, in bytes.
const MIN_STEP: u64 = 1 << 20;
/// Minimum distance between a new mark and the last one, as a divisor of the last one.
const STEP_DIVISOR: u64 = 100;

/// Limits of the watch. It ends when the first one is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GdumpLimits {
    /// Maximum number of dumps.
    pub files: u32,
    /// Maximum duration.
    pub duration: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct HighWaterWatch {
    limits: GdumpLimits,
    dump_count: u32,
    deadline: Instant,
    end_time: SystemTime,
    high_water: Option<u64>,
}

impl HighWaterWatch {
    /// Starts a watch at `now`; `clock` is the system clock's time at that moment.
    ///
    /// # Errors
    /// `InvalidArgument`: it would end after the year 9999.
    pub(crate) fn new(limits: GdumpLimits, now: Instant, clock: SystemTime) -> Result<Self> {
        let end_time = end_of_time_limit(clock, limits.duration)?;
        Ok(Self {
            limits,
            dump_count: 0,
            // The monotonic clock reaches further.
            deadline: now + limits.duration,
            end_time,
            high_water: None,
        })
    }

    /// Whether the time limit has passed, or the maximum number of dumps is reached.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now >= self.deadline || self.dump_count >= self.limits.files
    }

    /// Whether `rss` is above the high-water mark by at least 1 MiB and 1 % of it. Stays true until
    /// [`record_dump`](Self::record_dump). The first value becomes the mark.
    pub(crate) fn is_new_high(&mut self, rss: u64) -> bool {
        let mark = *self.high_water.get_or_insert(rss);
        rss >= mark.saturating_add(MIN_STEP.max(mark / STEP_DIVISOR))
    }

    /// Records that a dump was taken at `rss` bytes, which becomes the new mark.
    pub(crate) fn record_dump(&mut self, rss: u64) {
        self.dump_count += 1;
        self.high_water = Some(rss);
    }

    /// Progress and limits of the watch, for messages.
    pub(crate) fn status(&self) -> GdumpStatus {
        GdumpStatus {
            taken: self.dump_count,
            files: self.limits.files,
            until: format_rfc3339(self.end_time),
            high_water_bytes: self.high_water,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const MIB: u64 = 1 << 20;

    fn gdump(files: u32, start: Instant) -> HighWaterWatch {
        let limits = GdumpLimits {
            files,
            duration: Duration::from_secs(60),
        };
        HighWaterWatch::new(limits, start, SystemTime::UNIX_EPOCH).unwrap()
    }

    #[test]
    fn duration_beyond_the_clock_is_refused() {
        let limits = GdumpLimits {
            files: 3,
            duration: Duration::MAX,
        };
        let refused = HighWaterWatch::new(limits, Instant::now(), SystemTime::UNIX_EPOCH);
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{refused}");
    }

    #[test]
    fn one_dump_per_mark_until_dump_limit() {
        let start = Instant::now();
        let mut gdump = gdump(3, start);
        let steps = [
            (10 * MIB, false),
            (10 * MIB + 1000, false),
            (11 * MIB, true),
            // A lower value, and the mark again: no new mark.
            (5 * MIB, false),
            (11 * MIB, false),
            (500 * MIB, true),
            // One percent above the mark.
            (504 * MIB, false),
            (505 * MIB, true),
        ];
        for (rss, expected) in steps {
            assert!(!gdump.is_over(start), "{rss}");
            assert_eq!(gdump.is_new_high(rss), expected, "{rss}");
            if expected {
                // Until a dump is recorded.
                assert!(gdump.is_new_high(rss), "{rss}");
                gdump.record_dump(rss);
            }
        }
        assert!(gdump.is_over(start));
        assert_eq!(gdump.status().taken, 3);
    }

    #[test]
    fn watch_ends_after_its_duration() {
        let start = Instant::now();
        let gdump = gdump(3, start);
        assert!(!gdump.is_over(start + Duration::from_secs(59)));
        assert!(gdump.is_over(start + Duration::from_secs(60)));
        assert_eq!(gdump.status().until, "1970-01-01T00:01:00Z");
    }

    #[test]
    fn dump_limit_holds_for_ten_thousand_marks() {
        let start = Instant::now();
        let mut gdump = gdump(3, start);
        for rss in (0..10_000u64).map(|step| step * step * MIB) {
            if !gdump.is_over(start) && gdump.is_new_high(rss) {
                gdump.record_dump(rss);
            }
        }
        assert_eq!(gdump.status().taken, 3);
    }
}
