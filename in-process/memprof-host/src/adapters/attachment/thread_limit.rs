//! The limit of threads (`RLIMIT_NPROC`), which `memprof attach` raises if it leaves no room for memprof's threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Deserialize;

/// A raised limit, as memprof-attach passes it: soft and hard value, before and after; -1 for unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct RaisedThreadLimit {
    #[serde(rename = "was")]
    original: [i64; 2],
    #[serde(rename = "is")]
    raised: [i64; 2],
}

/// The limit to restore when the attachment ends.
pub(super) static RAISED_LIMIT: ThreadLimitRestorer = ThreadLimitRestorer {
    is_raised: AtomicBool::new(false),
    limits: [const { AtomicU64::new(0) }; 4],
};

/// A raised limit that is restored once. A forked child has its own copy.
#[derive(Debug)]
pub(super) struct ThreadLimitRestorer {
    is_raised: AtomicBool,
    /// Original soft and hard limit, raised soft and hard limit; [`u64::MAX`] for unlimited.
    limits: [AtomicU64; 4],
}

impl ThreadLimitRestorer {
    /// Records the limit that `memprof attach` raised for this attachment, for [`Self::restore`]. `limit` is `None` if
    /// none was raised; [`Self::restore`] does nothing then.
    pub(super) fn record(&self, limit: Option<RaisedThreadLimit>) {
        if let Some(RaisedThreadLimit { original, raised }) = limit {
            // Unlimited, -1, becomes `u64::MAX`.
            for (limit, value) in self.limits.iter().zip([original, raised].concat()) {
                limit.store(value.cast_unsigned(), Ordering::Relaxed);
            }
        }
        self.is_raised.store(limit.is_some(), Ordering::Release);
    }

    /// Restores the original `RLIMIT_NPROC`. Does nothing if no raised limit is recorded, if it was restored already,
    /// or if the program has set another limit since. A failure is logged.
    pub(super) fn restore(&self) {
        if !self.is_raised.swap(false, Ordering::AcqRel) {
            return;
        }
        let value = |index: usize| {
            // `u64::MAX` is unlimited, which `Rlimit` has as `None`.
            let value = self.limits[index].load(Ordering::Relaxed);
            (value != u64::MAX).then_some(value)
        };
        // The soft limit at `index`, and the hard limit after it.
        let limit = |index: usize| Rlimit {
            current: value(index),
            maximum: value(index + 1),
        };
        if getrlimit(Resource::Nproc) == limit(2)
            && let Err(errno) = setrlimit(Resource::Nproc, limit(0))
        {
            log::warn!("failed to put RLIMIT_NPROC back: {errno}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restore_acts_once_and_only_on_unchanged_limit() {
        let own = getrlimit(Resource::Nproc);
        let lower = Rlimit {
            current: Some(own.current.unwrap_or(1 << 20) - 1),
            ..own
        };
        let number = |limit: Option<u64>| limit.map_or(-1, u64::cast_signed);
        let pair = |limit: Rlimit| [number(limit.current), number(limit.maximum)];
        let restorer = ThreadLimitRestorer {
            is_raised: AtomicBool::new(false),
            limits: [const { AtomicU64::new(0) }; 4],
        };
        let raise_to = |raised| {
            let original = pair(lower);
            restorer.record(Some(RaisedThreadLimit { original, raised }));
        };
        restorer.restore();
        raise_to([5, 5]);
        restorer.restore();
        assert_eq!(getrlimit(Resource::Nproc), own);
        raise_to(pair(own));
        restorer.restore();
        assert_eq!(getrlimit(Resource::Nproc), lower);
        setrlimit(Resource::Nproc, own).unwrap();
        restorer.restore();
        assert_eq!(getrlimit(Resource::Nproc), own);
    }
}
