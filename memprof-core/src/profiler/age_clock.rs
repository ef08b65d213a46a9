//! The clock for the ages of samples. While it runs, the stack of each new sample ends in the time bucket of its
//! allocation.

use std::num::NonZero;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::error::{Error, ErrorKind, Result};
use crate::unwinder::set_alloc_time;

/// Width of an age bucket, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgeBucketWidth(NonZero<u32>);

impl FromStr for AgeBucketWidth {
    type Err = Error;

    /// Parses whole seconds above 0 with a unit, such as `1m`. Fails with `InvalidArgument` for another text.
    fn from_str(word: &str) -> Result<Self> {
        let duration = humantime::parse_duration(word).ok();
        let whole_seconds = duration.filter(|duration| duration.subsec_nanos() == 0);
        let seconds = whole_seconds.and_then(|duration| u32::try_from(duration.as_secs()).ok());
        seconds.and_then(NonZero::new).map(Self).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("ages={word:?} is not a length of a bucket"),
            )
            .with_remedy("valid: off, or whole seconds as in 10s, 1m or 1h")
        })
    }
}

/// Number of buckets at which their width doubles. This bounds the memory for ages in the allocator and in a dump, no
/// matter how long an activation lasts.
const MAX_BUCKETS: u32 = 1024;

/// The clock, and the bucket width of the last activation with ages. Samples of that activation may still be live.
#[derive(Debug)]
pub(super) struct AgeClock {
    /// Time since the epoch and monotonic time, both at the creation. Their sum gives allocations and dumps one clock
    /// that changes of the system clock do not affect.
    base: (Duration, Instant),
    /// Bucket width in seconds; 0 if no sample has an age.
    width: AtomicU32,
    /// Start of the first bucket, in seconds of this clock.
    since: AtomicU32,
    is_on: AtomicBool,
}

impl AgeClock {
    /// Creates a stopped clock, set to the system's time.
    pub(super) fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            base: (since.unwrap_or_default(), Instant::now()),
            width: AtomicU32::new(0),
            since: AtomicU32::new(0),
            is_on: AtomicBool::new(false),
        }
    }

    /// Starts to record allocation times in buckets of this width, beginning now, or stops if it is `None`. The last
    /// width stays stored, because samples with ages may still be live.
    pub(super) fn set_width(&self, width: Option<AgeBucketWidth>) {
        if let Some(AgeBucketWidth(width)) = width {
            self.width.store(width.get(), Ordering::Relaxed);
            self.since.store(self.now_seconds(), Ordering::Relaxed);
        }
        self.is_on.store(width.is_some(), Ordering::Relaxed);
        set_alloc_time(self.bucket_start());
    }

    /// Sets the allocation time of new samples to the current bucket. Doubles the width while there are more than
    /// `MAX_BUCKETS` buckets. Does nothing while the clock is stopped.
    pub(super) fn advance_bucket(&self) {
        if self.is_on.load(Ordering::Relaxed) {
            let elapsed = self
                .now_seconds()
                .saturating_sub(self.since.load(Ordering::Relaxed));
            let width = self.width.load(Ordering::Relaxed);
            self.width
                .store(doubled_width(width, elapsed), Ordering::Relaxed);
            set_alloc_time(self.bucket_start());
        }
    }

    /// Bucket width in seconds. `None` while new samples have no age.
    pub(super) fn width(&self) -> Option<u32> {
        let is_on = self.is_on.load(Ordering::Relaxed);
        is_on.then(|| self.width.load(Ordering::Relaxed))
    }

    /// Content of a dump's `# ages:` line: the last bucket width and the current time of the clock, both in seconds.
    /// `None` if the clock was never started, because no sample has an age then.
    pub(super) fn header_line(&self) -> Option<String> {
        let width = self.width.load(Ordering::Relaxed);
        (width > 0).then(|| format!("{width} {}", self.now_seconds()))
    }

    /// Seconds since the epoch by this clock.
    fn now_seconds(&self) -> u32 {
        let (since_epoch, start) = self.base;
        u32::try_from((since_epoch + start.elapsed()).as_secs()).unwrap_or(u32::MAX)
    }

    /// Start of the current bucket, in seconds of this clock. `None` while new samples have no age.
    fn bucket_start(&self) -> Option<u32> {
        let now = self.now_seconds();
        self.width().map(|width| now - now % width)
    }
}

/// Doubles `width` until at most [`MAX_BUCKETS`] buckets cover `elapsed` seconds.
fn doubled_width(width: u32, elapsed: u32) -> u32 {
    match elapsed / MAX_BUCKETS < width {
        true => width,
        false => doubled_width(width.saturating_mul(2), elapsed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubled_width_bounds_bucket_count() {
        assert_eq!(doubled_width(1, 1023), 1);
        assert_eq!(doubled_width(1, 1024), 2);
        assert_eq!(doubled_width(2, 2047), 2);
        let year = 365 * 86_400;
        assert!(year / doubled_width(1, year) <= MAX_BUCKETS);
        assert_eq!(doubled_width(60, u32::MAX), 60 << 17);
    }

    #[test]
    fn bucket_width_is_whole_seconds() {
        let check = |word: &str, expected: Option<u32>| {
            let width = word.parse::<AgeBucketWidth>().ok();
            assert_eq!(
                width.map(|AgeBucketWidth(width)| width.get()),
                expected,
                "{word}"
            );
        };
        check("1m", Some(60));
        check("10s", Some(10));
        check("1500ms", None);
        check("0s", None);
        check("1", None);
        check("200y", None);
    }

    #[test]
    fn header_line_remains_after_activation() {
        let ages = AgeClock::new();
        assert_eq!((ages.width(), ages.header_line()), (None, None));
        ages.set_width(Some("1m".parse().unwrap()));
        assert_eq!(ages.width(), Some(60));
        assert_eq!(ages.bucket_start().map(|start| start % 60), Some(0));
        ages.set_width(None);
        assert_eq!((ages.width(), ages.bucket_start()), (None, None));
        assert!(
            ages.header_line()
                .is_some_and(|line| line.starts_with("60 "))
        );
    }
}
