//! Interns label sets, so that each distinct set has an id.

use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use super::label_set::{LabelIter, SET_WORDS};
use super::{LabelSetCounts, MAX_SETS, OTHER};

/// Distinct label sets. They are never removed, because live samples may refer to them.
pub(super) struct LabelSetTable {
    cells: [LabelSetCell; CELL_COUNT],
    used: AtomicUsize,
    /// Samples for whose set no cell was free.
    other_samples: AtomicU64,
}

/// Number of cells. At most half of them are used.
const CELL_COUNT: usize = (2 * MAX_SETS).next_power_of_two();

/// Cell of one set. Aligned so that a short set is within one cache line.
#[repr(C, align(64))]
struct LabelSetCell {
    /// Hash of the words; 0 if the cell is free.
    hash: AtomicU64,
    /// Number of words; 0 while they are being written.
    length: AtomicU32,
    words: [AtomicU64; SET_WORDS],
}

impl LabelSetTable {
    pub(super) const fn new() -> Self {
        Self {
            cells: [const {
                LabelSetCell {
                    hash: AtomicU64::new(0),
                    length: AtomicU32::new(0),
                    words: [const { AtomicU64::new(0) }; SET_WORDS],
                }
            }; CELL_COUNT],
            used: AtomicUsize::new(0),
            other_samples: AtomicU64::new(0),
        }
    }

    /// Returns the id of a set, from 1 on. Inserts the set if it is new. If no cell is free, counts the sample and
    /// returns [`OTHER`].
    #[inline(always)]
    pub(super) fn intern(&self, words: &[u64]) -> u32 {
        self.find_or_insert(words).unwrap_or_else(|| {
            self.other_samples.fetch_add(1, Relaxed);
            OTHER
        })
    }

    /// Returns the number of sets, the samples without a free cell, and the table's size in bytes.
    pub(super) fn stats(&self) -> LabelSetCounts {
        LabelSetCounts {
            seen: self.used.load(Relaxed),
            others: self.other_samples.load(Relaxed),
            bytes: size_of::<Self>(),
        }
    }

    /// Returns the id of a set, from 1 on: the index of its cell plus 1. Inserts the set if it is new. `None` if it is
    /// new, and the table already has [`MAX_SETS`].
    #[inline(always)]
    fn find_or_insert(&self, words: &[u64]) -> Option<u32> {
        let hash = hash_words(words);
        for probe in 0..CELL_COUNT {
            let index = (hash as usize).wrapping_add(probe) % CELL_COUNT;
            let cell = self.cells.get(index)?;
            let mut known = cell.hash.load(Acquire);
            if known == 0 {
                // Checked first, so that calls with a full table do not write to the shared count.
                if self.used.load(Relaxed) >= MAX_SETS {
                    return None;
                }
                if self.used.fetch_add(1, Relaxed) >= MAX_SETS {
                    self.used.fetch_sub(1, Relaxed);
                    return None;
                }
                match cell.hash.compare_exchange(0, hash, Release, Acquire) {
                    Ok(_) => {
                        cell.write(words);
                        return Some(index as u32 + 1);
                    }
                    Err(other) => {
                        self.used.fetch_sub(1, Relaxed);
                        known = other;
                    }
                }
            }
            if known == hash && cell.may_hold_words(words) {
                return Some(index as u32 + 1);
            }
        }
        None
    }

    /// Visits the completely written sets, with their ids.
    pub(super) fn for_each(&self, mut visit: impl FnMut(u32, LabelIter<'_>)) {
        for (index, cell) in self.cells.iter().enumerate() {
            let length = cell.length.load(Acquire) as usize;
            if length > 0 {
                let bytes = cell.bytes();
                let written = bytes.as_flattened().get(..length * size_of::<u64>());
                visit(index as u32 + 1, LabelIter(written.unwrap_or_default()));
            }
        }
    }
}

impl LabelSetCell {
    /// Writes the words of a new set, and its length last.
    fn write(&self, words: &[u64]) {
        for (cell, word) in self.words.iter().zip(words) {
            cell.store(*word, Relaxed);
        }
        self.length.store(words.len() as u32, Release);
    }

    /// Returns all words as bytes, including those beyond the set's length.
    fn bytes(&self) -> [[u8; size_of::<u64>()]; SET_WORDS] {
        self.words
            .each_ref()
            .map(|word| word.load(Relaxed).to_ne_bytes())
    }

    /// Returns whether the cell holds these words. If the cell is being written, counts an equal hash as equal instead
    /// of waiting: the writer may be this thread, interrupted by a signal.
    #[inline(always)]
    fn may_hold_words(&self, words: &[u64]) -> bool {
        match self.length.load(Acquire) as usize {
            0 => true,
            length => {
                let mut both = self.words.iter().zip(words);
                length == words.len() && both.all(|(cell, word)| cell.load(Relaxed) == *word)
            }
        }
    }
}

/// Hashes the words of a set; never 0. No set is a prefix of another, because each label stores its length.
#[inline(always)]
fn hash_words(words: &[u64]) -> u64 {
    let step = |hash: u64, word: &u64| {
        let hash = (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash ^ (hash >> 29)
    };
    words.iter().fold(!0, step) | 1
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn ten_thousand_sets_use_bounded_memory() {
        static SETS: LabelSetTable = LabelSetTable::new();
        // A set of one label, with a value of 4 bytes.
        let set = |number: u32| [u64::from(number) << 16 | 4 << 8];
        let ids: Vec<u32> = (0..10_000)
            .map(|number| SETS.intern(&set(number)))
            .collect();
        assert_eq!(ids.iter().filter(|id| **id != OTHER).count(), MAX_SETS);
        for (number, id) in (0..10_000).zip(&ids) {
            assert_eq!(SETS.intern(&set(number)), *id);
        }
        let mut seen = 0;
        SETS.for_each(|id, mut labels| {
            let (key, value) = labels.next().unwrap();
            assert_eq!((key, labels.next()), (0, None));
            let number = u32::from_ne_bytes(value.try_into().unwrap());
            assert_eq!(ids[number as usize], id);
            seen += 1;
        });
        assert_eq!(seen, MAX_SETS);
        let counts = SETS.stats();
        assert_eq!((counts.seen, counts.others), (MAX_SETS, 2 * 9000));
        assert!(counts.bytes < 1 << 20, "{}", counts.bytes);
    }
}
