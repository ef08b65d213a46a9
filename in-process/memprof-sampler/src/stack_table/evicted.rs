//! Totals of evicted records by size class. They keep the sums over all allocations correct.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of size classes: four for each power of two.
const CLASS_COUNT: usize = 4 * u64::BITS as usize;

/// Sums of evicted records.
#[derive(Debug)]
pub(super) struct Evicted {
    /// Number of objects and of bytes, by size class.
    classes: [[AtomicU64; 2]; CLASS_COUNT],
}

impl Evicted {
    pub(super) const fn new() -> Self {
        Self {
            classes: [const { [AtomicU64::new(0), AtomicU64::new(0)] }; CLASS_COUNT],
        }
    }

    /// Adds the totals of an evicted record, objects and bytes, to the sums of its size class.
    pub(super) fn add(&self, class: u32, totals: [u64; 2]) {
        if let Some(sums) = self.classes.get(class as usize) {
            for (sum, more) in sums.iter().zip(totals) {
                sum.fetch_add(more, Relaxed);
            }
        }
    }

    /// Iterates over the objects and bytes of each size class that has evicted records.
    pub(super) fn totals(&self) -> impl Iterator<Item = [u64; 2]> {
        let classes = self.classes.iter();
        let totals = classes.map(|sums| sums.each_ref().map(|sum| sum.load(Relaxed)));
        totals.filter(|[objects, _]| *objects > 0)
    }

    /// Sets all sums to 0.
    pub(super) fn clear(&self) {
        for sum in self.classes.as_flattened() {
            sum.store(0, Relaxed);
        }
    }
}
