//! How old samples are: a clock in buckets, which the stack of each new sample ends in while it runs.

use std::num::NonZero;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::error::{Error, ErrorKind, Result};
use crate::unwinder::set_alloc_time;

/// The length of a bucket, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgeBucketWidth(NonZero<u32>);

impl FromStr for AgeBucketWidth {
    type Err = Error;

    /// Whole seconds, as in `1m`.
    fn from_str(word: &str) -> Result<Self> {
        let duration = humantime::parse_duration(word).ok();
        let whole = duration.filter(|duration| duration.subsec_nanos() == 0);
        let seconds = whole.and_then(|duration| u32::try_from(duration.as_secs()).ok());
        seconds.and_then(NonZero::new).map(Self).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("ages={word:?} is not a length of a bucket"),
            )
            .remedy("valid: off, or whole seconds as in 10s, 1m or 1h")
        })
    }
}

/// After so many buckets they get twice as long, again and again: what a bucket's samples take, in the allocator
/// and in a dump, stays bounded however long an activation lasts.
const MOST_BUCKETS: u32 = 1024;

/// The clock, and how long the buckets of the last activation that had some are: its samples may still live.
#[derive(Debug)]
pub(super) struct AgeClock {
    /// One clock for births and dumps, which nobody sets.
    base: (Duration, Instant),
    /// In seconds; 0 where no sample has an age.
    width: AtomicU32,
    /// When they began to have one, by the clock.
    since: AtomicU32,
    is_on: AtomicBool,
}

impl AgeClock {
    pub(super) fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            base: (since.unwrap_or_default(), Instant::now()),
            width: AtomicU32::new(0),
            since: AtomicU32::new(0),
            is_on: AtomicBool::new(false),
        }
    }

    /// New samples have an age in buckets of that length, or none.
    pub(super) fn set(&self, width: Option<AgeBucketWidth>) {
        if let Some(AgeBucketWidth(width)) = width {
            self.width.store(width.get(), Ordering::Relaxed);
            self.since.store(self.now(), Ordering::Relaxed);
        }
        self.is_on.store(width.is_some(), Ordering::Relaxed);
        set_alloc_time(self.bucket());
    }

    /// Goes on to the next bucket, when it is time.
    pub(super) fn advance(&self) {
        if self.is_on.load(Ordering::Relaxed) {
            let elapsed = self
                .now()
                .saturating_sub(self.since.load(Ordering::Relaxed));
            let width = self.width.load(Ordering::Relaxed);
            self.width
                .store(doubled_width(width, elapsed), Ordering::Relaxed);
            set_alloc_time(self.bucket());
        }
    }

    /// The length of a bucket, in seconds, while new samples have an age.
    pub(super) fn width(&self) -> Option<u32> {
        let is_on = self.is_on.load(Ordering::Relaxed);
        is_on.then(|| self.width.load(Ordering::Relaxed))
    }

    /// What a dump says of the births in it: the length of a bucket, and the time by their clock.
    pub(super) fn header_line(&self) -> Option<String> {
        let width = self.width.load(Ordering::Relaxed);
        (width > 0).then(|| format!("{width} {}", self.now()))
    }

    fn now(&self) -> u32 {
        let (since_epoch, start) = self.base;
        u32::try_from((since_epoch + start.elapsed()).as_secs()).unwrap_or(u32::MAX)
    }

    fn bucket(&self) -> Option<u32> {
        let now = self.now();
        self.width().map(|width| now - now % width)
    }
}

/// The length of the buckets after so many seconds.
fn doubled_width(width: u32, elapsed: u32) -> u32 {
    match elapsed / MOST_BUCKETS < width {
        true => width,
        false => doubled_width(width.saturating_mul(2), elapsed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_stay_bounded() {
        assert_eq!(doubled_width(1, 1023), 1);
        assert_eq!(doubled_width(1, 1024), 2);
        assert_eq!(doubled_width(2, 2047), 2);
        let year = 365 * 86_400;
        assert!(year / doubled_width(1, year) <= MOST_BUCKETS);
        assert_eq!(doubled_width(60, u32::MAX), 60 << 17);
    }

    #[test]
    fn buckets_are_whole_seconds() {
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
    fn a_dump_tells_of_births_after_their_activation_too() {
        let ages = AgeClock::new();
        assert_eq!((ages.width(), ages.header_line()), (None, None));
        ages.set(Some("1m".parse().unwrap()));
        assert_eq!(ages.width(), Some(60));
        assert_eq!(ages.bucket().map(|start| start % 60), Some(0));
        ages.set(None);
        assert_eq!((ages.width(), ages.bucket()), (None, None));
        assert!(
            ages.header_line()
                .is_some_and(|told| told.starts_with("60 "))
        );
    }
}
