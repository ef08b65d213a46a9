//! The limit of threads (`RLIMIT_NPROC`), which `memprof attach` raises where it leaves no room for ours.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Deserialize;

/// Soft and hard limits, -1 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct RaisedThreadLimit {
    was: [i64; 2],
    is: [i64; 2],
}

/// What to do when the attachment ends.
pub(super) static PUT_BACK: ThreadLimitRestorer = ThreadLimitRestorer {
    is_raised: AtomicBool::new(false),
    limits: [const { AtomicU64::new(0) }; 4],
};

/// A limit that was raised, and is put back once. A forked child has one of its own.
#[derive(Debug)]
pub(super) struct ThreadLimitRestorer {
    is_raised: AtomicBool,
    limits: [AtomicU64; 4],
}

impl ThreadLimitRestorer {
    /// Remembers what was raised for this attachment.
    pub(super) fn set(&self, limit: Option<RaisedThreadLimit>) {
        if let Some(RaisedThreadLimit { was, is }) = limit {
            for (limit, value) in self.limits.iter().zip([was, is].concat()) {
                limit.store(value.cast_unsigned(), Ordering::Relaxed);
            }
        }
        self.is_raised.store(limit.is_some(), Ordering::Release);
    }

    /// Puts the limit back, unless the program has set another one since.
    pub(super) fn now(&self) {
        if !self.is_raised.swap(false, Ordering::AcqRel) {
            return;
        }
        let value = |at: usize| {
            let value = self.limits[at].load(Ordering::Relaxed);
            (value != u64::MAX).then_some(value)
        };
        let limit = |at: usize| Rlimit {
            current: value(at),
            maximum: value(at + 1),
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
    fn a_limit_is_put_back_once_and_only_if_nobody_changed_it() {
        let own = getrlimit(Resource::Nproc);
        let lower = Rlimit {
            current: Some(own.current.unwrap_or(1 << 20) - 1),
            ..own
        };
        let number = |limit: Option<u64>| limit.map_or(-1, u64::cast_signed);
        let pair = |limit: Rlimit| [number(limit.current), number(limit.maximum)];
        let put_back = ThreadLimitRestorer {
            is_raised: AtomicBool::new(false),
            limits: [const { AtomicU64::new(0) }; 4],
        };
        let raised = |is| {
            let was = pair(lower);
            put_back.set(Some(RaisedThreadLimit { was, is }));
        };
        put_back.now();
        raised([5, 5]);
        put_back.now();
        assert_eq!(getrlimit(Resource::Nproc), own);
        raised(pair(own));
        put_back.now();
        assert_eq!(getrlimit(Resource::Nproc), lower);
        setrlimit(Resource::Nproc, own).unwrap();
        put_back.now();
        assert_eq!(getrlimit(Resource::Nproc), own);
    }
}
