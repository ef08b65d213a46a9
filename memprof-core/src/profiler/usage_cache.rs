//! A cache of the allocators' statistics, which decides when to read them again.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use memprof_messages::AllocatorHeap;

/// Minimum pause after a slow read, as a multiple of its duration, so that reading takes at most a tenth of the time.
/// jemalloc sums its arenas under the locks that `malloc` needs: about 9 µs per arena.
const REST_FACTOR: u32 = 9;

/// Maximum duration of a cheap read, which is repeated each time. With more than fifty arenas, a read takes longer.
const CHEAP_READ: Duration = Duration::from_micros(500);

/// Values that one ledger stores for later ones.
#[derive(Debug, Default)]
pub(super) struct LedgerHistory {
    /// The statistics that were read last.
    pub(super) usage: Mutex<CachedUsage>,
    /// Time and live bytes of the ledger with which later ones are compared.
    pub(super) base: Mutex<Option<(Instant, u64)>>,
    /// Maximum number of untouched bytes that the allocators counted so far.
    pub(super) max_untouched: AtomicU64,
}

/// The statistics that were read last, and the cost of that read.
#[derive(Debug, Default)]
pub(super) struct CachedUsage {
    pub heaps: Vec<AllocatorHeap>,
    cost: Option<ReadCost>,
}

/// End time of a read, and its duration.
#[derive(Clone, Copy, Debug)]
struct ReadCost {
    end: Instant,
    elapsed: Duration,
}

impl CachedUsage {
    /// Calls `read`, which reads the statistics of each allocator. Stores the statistics, the end of the call and its
    /// duration.
    pub(super) fn read_and_time(read: impl FnOnce() -> Vec<AllocatorHeap>) -> Self {
        let start = Instant::now();
        let heaps = read();
        let end = Instant::now();
        Self {
            heaps,
            cost: Some(ReadCost {
                end,
                elapsed: end - start,
            }),
        }
    }

    /// Whether the statistics are so recent that reading them again would take too large a part of the time.
    pub(super) fn is_fresh(&self) -> bool {
        self.cost
            .is_some_and(|cost| cost.is_fresh(cost.end.elapsed()))
    }

    /// Marks the statistics as outdated, so that the next ledger reads them again.
    pub(super) fn invalidate(&mut self) {
        self.cost = None;
    }
}

impl ReadCost {
    /// Whether a read of this cost, `age` ago, is too expensive to be repeated yet. Always false for a cheap read.
    fn is_fresh(self, age: Duration) -> bool {
        self.elapsed >= CHEAP_READ && age < self.elapsed * REST_FACTOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_read_is_repeated_after_nine_times_its_duration() {
        let is_fresh = |elapsed: u64, age: u64| {
            let read = ReadCost {
                end: Instant::now(),
                elapsed: Duration::from_micros(elapsed),
            };
            read.is_fresh(Duration::from_micros(age))
        };
        assert!(is_fresh(1000, 8999));
        assert!(!is_fresh(1000, 9000));
        // Few arenas are read each time.
        assert!(!is_fresh(499, 0));
        assert!(is_fresh(500, 0));
    }
}
