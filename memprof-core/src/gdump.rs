//! A dump at each new high-water mark of the resident memory, for a while.
//!
//! jemalloc's own `prof.gdump` writes from inside an allocation, under its locks and by name: a
//! disk that blocks would freeze every thread that allocates, and 40 MB of growth left 9,810
//! files. So high water is watched from outside, and the dumps are ours.

use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

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

/// What `gdump` is doing, as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GdumpStatus {
    /// Dumps taken so far.
    pub taken: u32,
    /// It ends after so many.
    pub files: u32,
    /// It ends then at the latest: RFC 3339, UTC.
    pub until: String,
    /// The highest resident bytes so far; absent before the first look.
    pub high_water_bytes: Option<u64>,
}

/// One watch of the high water.
#[derive(Clone, Debug)]
pub(crate) struct Gdump {
    limits: GdumpLimits,
    taken: u32,
    ends: Instant,
    until: SystemTime,
    mark: Option<u64>,
}

/// What to do after a look at the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Wait,
    Dump,
    Over,
}

impl Gdump {
    pub(crate) fn new(limits: GdumpLimits, now: Instant, clock: SystemTime) -> Self {
        Self {
            limits,
            taken: 0,
            ends: now + limits.duration,
            until: clock + limits.duration,
            mark: None,
        }
    }

    /// Goes on to say `Dump` until [`take`](Self::take).
    pub(crate) fn judge(&mut self, rss: u64, now: Instant) -> Decision {
        let mark = *self.mark.get_or_insert(rss);
        if now >= self.ends || self.taken >= self.limits.files {
            Decision::Over
        } else if rss >= mark + SMALLEST_STEP.max(mark / STEP_SHARE) {
            Decision::Dump
        } else {
            Decision::Wait
        }
    }

    /// A dump was taken at `rss`.
    pub(crate) fn take(&mut self, rss: u64) {
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

    fn gdump(files: u32, start: Instant) -> Gdump {
        let limits = GdumpLimits {
            files,
            duration: Duration::from_secs(60),
        };
        Gdump::new(limits, start, SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn each_new_mark_is_one_dump_and_the_files_end_it() {
        use Decision::{Dump, Over, Wait};
        let start = Instant::now();
        let mut gdump = gdump(3, start);
        let steps = [
            (10 * MIB, Wait),
            (10 * MIB + 1000, Wait),
            (11 * MIB, Dump),
            // Lower, and up to the mark again: nothing new.
            (5 * MIB, Wait),
            (11 * MIB, Wait),
            (500 * MIB, Dump),
            // One per cent above the mark.
            (504 * MIB, Wait),
            (505 * MIB, Dump),
            (900 * MIB, Over),
        ];
        for (rss, expected) in steps {
            let decision = gdump.judge(rss, start);
            assert_eq!(decision, expected, "{rss}");
            if decision == Dump {
                gdump.take(rss);
            }
        }
        assert_eq!(gdump.status().taken, 3);
    }

    #[test]
    fn its_time_ends_it() {
        let start = Instant::now();
        let mut gdump = gdump(3, start);
        let almost = start + Duration::from_secs(59);
        assert_eq!(gdump.judge(MIB, almost), Decision::Wait);
        let end = start + Duration::from_secs(60);
        assert_eq!(gdump.judge(900 * MIB, end), Decision::Over);
        assert_eq!(gdump.status().until, "1970-01-01T00:01:00Z");
    }

    #[test]
    fn ten_thousand_marks_are_three_dumps() {
        let start = Instant::now();
        let mut gdump = gdump(3, start);
        let taken = (0..10_000u64)
            .filter(|at| {
                let rss = at * at * MIB;
                let dumps = gdump.judge(rss, start) == Decision::Dump;
                if dumps {
                    gdump.take(rss);
                }
                dumps
            })
            .count();
        assert_eq!(taken, 3);
    }
}
