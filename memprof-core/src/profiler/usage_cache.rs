//! What the allocators said of themselves, and how soon they are asked again.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use memprof_messages::AllocatorHeap;

/// jemalloc sums up arena by arena, under the locks that `malloc` needs: 9 us for each. So it is asked for
/// a tenth of the time at the most.
const REST: u32 = 9;

/// What takes less is asked for each time. More than fifty arenas take more.
const CHEAP: Duration = Duration::from_micros(500);

/// What ledgers remember of those before.
#[derive(Debug, Default)]
pub(super) struct LedgerHistory {
    /// The figures that were read last.
    pub(super) heaps: Mutex<CachedUsage>,
    /// The live bytes of an earlier ledger, and when.
    pub(super) first: Mutex<Option<(Instant, u64)>>,
    /// The most bytes that the allocators were seen to count without having touched them.
    pub(super) untouched: AtomicU64,
}

/// The figures that were read last.
#[derive(Debug, Default)]
pub(super) struct CachedUsage {
    pub list: Vec<AllocatorHeap>,
    read: Option<ReadCost>,
}

/// When they were read, and how long it took.
#[derive(Clone, Copy, Debug)]
struct ReadCost {
    at: Instant,
    took: Duration,
}

impl CachedUsage {
    /// Asks each allocator.
    pub(super) fn read(read: impl FnOnce() -> Vec<AllocatorHeap>) -> Self {
        let begun = Instant::now();
        let list = read();
        let at = Instant::now();
        Self {
            list,
            read: Some(ReadCost {
                at,
                took: at - begun,
            }),
        }
    }

    /// Whether it is too early to ask again.
    pub(super) fn is_fresh(&self) -> bool {
        self.read
            .is_some_and(|read| read.is_fresh(read.at.elapsed()))
    }

    /// They are not what they were.
    pub(super) fn invalidate(&mut self) {
        self.read = None;
    }
}

impl ReadCost {
    fn is_fresh(self, age: Duration) -> bool {
        self.took >= CHEAP && age < self.took * REST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_arenas_are_asked_for_a_tenth_of_the_time() {
        let is_fresh = |took: u64, age: u64| {
            let read = ReadCost {
                at: Instant::now(),
                took: Duration::from_micros(took),
            };
            read.is_fresh(Duration::from_micros(age))
        };
        assert!(is_fresh(1000, 8999));
        assert!(!is_fresh(1000, 9000));
        // A few arenas are asked each time.
        assert!(!is_fresh(499, 0));
        assert!(is_fresh(500, 0));
    }
}
