//! The totals of records that were evicted, by size class, so that what a program allocated in all stays true.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Size classes of all sizes: four for each power of two.
const CLASSES: usize = 4 * u64::BITS as usize;

#[derive(Debug)]
pub(super) struct Evicted {
    /// Objects and bytes.
    classes: [[AtomicU64; 2]; CLASSES],
}

impl Evicted {
    pub(super) const fn new() -> Self {
        Self {
            classes: [const { [AtomicU64::new(0), AtomicU64::new(0)] }; CLASSES],
        }
    }

    /// Adds objects and bytes.
    pub(super) fn add(&self, class: u32, totals: [u64; 2]) {
        if let Some(sums) = self.classes.get(class as usize) {
            for (sum, more) in sums.iter().zip(totals) {
                sum.fetch_add(more, Relaxed);
            }
        }
    }

    /// Objects and bytes of each class that has any.
    pub(super) fn each(&self) -> impl Iterator<Item = [u64; 2]> {
        let classes = self.classes.iter();
        let totals = classes.map(|sums| sums.each_ref().map(|sum| sum.load(Relaxed)));
        totals.filter(|[objects, _]| *objects > 0)
    }

    pub(super) fn clear(&self) {
        for sum in self.classes.as_flattened() {
            sum.store(0, Relaxed);
        }
    }
}
