//! The different sets of labels, each with a number.

use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use super::label_set::{LabelIter, SET_WORDS};
use super::{LabelSetCounts, MOST_SETS, OTHER};

/// The sets of labels that were found, each once. Never forgotten: samples may live that point to them.
pub(super) struct LabelSetTable {
    places: [LabelSetCell; PLACES],
    used: AtomicUsize,
    /// Samples whose set found no place.
    others: AtomicU64,
}

/// At most half of them are taken.
const PLACES: usize = (2 * MOST_SETS).next_power_of_two();

/// The start of a short set lies in one line of the cache.
#[repr(C, align(64))]
struct LabelSetCell {
    /// Of its words; 0: free.
    hash: AtomicU64,
    /// How many words; 0 while they are written.
    length: AtomicU32,
    words: [AtomicU64; SET_WORDS],
}

impl LabelSetTable {
    pub(super) const fn new() -> Self {
        Self {
            places: [const {
                LabelSetCell {
                    hash: AtomicU64::new(0),
                    length: AtomicU32::new(0),
                    words: [const { AtomicU64::new(0) }; SET_WORDS],
                }
            }; PLACES],
            used: AtomicUsize::new(0),
            others: AtomicU64::new(0),
        }
    }

    /// The id of a set, or [`OTHER`].
    #[inline(always)]
    pub(super) fn intern(&self, words: &[u64]) -> u32 {
        self.find(words).unwrap_or_else(|| {
            self.others.fetch_add(1, Relaxed);
            OTHER
        })
    }

    pub(super) fn stats(&self) -> LabelSetCounts {
        LabelSetCounts {
            seen: self.used.load(Relaxed),
            others: self.others.load(Relaxed),
            bytes: size_of::<Self>(),
        }
    }

    /// The id of a set, new or known, where it has a place.
    #[inline(always)]
    fn find(&self, words: &[u64]) -> Option<u32> {
        let hash = hash(words);
        for probe in 0..PLACES {
            let index = (hash as usize).wrapping_add(probe) % PLACES;
            let place = self.places.get(index)?;
            let mut known = place.hash.load(Acquire);
            if known == 0 {
                if self.used.load(Relaxed) >= MOST_SETS {
                    return None;
                }
                if self.used.fetch_add(1, Relaxed) >= MOST_SETS {
                    self.used.fetch_sub(1, Relaxed);
                    return None;
                }
                match place.hash.compare_exchange(0, hash, Release, Acquire) {
                    Ok(_) => {
                        place.write(words);
                        return Some(index as u32 + 1);
                    }
                    Err(other) => {
                        self.used.fetch_sub(1, Relaxed);
                        known = other;
                    }
                }
            }
            if known == hash && place.may_hold(words) {
                return Some(index as u32 + 1);
            }
        }
        None
    }

    pub(super) fn for_each(&self, mut visit: impl FnMut(u32, LabelIter<'_>)) {
        for (index, place) in self.places.iter().enumerate() {
            let length = place.length.load(Acquire) as usize;
            if length > 0 {
                let bytes = place.bytes();
                let written = bytes.as_flattened().get(..length * size_of::<u64>());
                visit(index as u32 + 1, LabelIter(written.unwrap_or_default()));
            }
        }
    }
}

impl LabelSetCell {
    fn write(&self, words: &[u64]) {
        for (place, word) in self.words.iter().zip(words) {
            place.store(*word, Relaxed);
        }
        self.length.store(words.len() as u32, Release);
    }

    fn bytes(&self) -> [[u8; size_of::<u64>()]; SET_WORDS] {
        self.words
            .each_ref()
            .map(|word| word.load(Relaxed).to_ne_bytes())
    }

    /// Nobody waits for one that is being written, maybe by the very thread that a signal interrupted: of the same
    /// hash, it is taken for the same.
    #[inline(always)]
    fn may_hold(&self, words: &[u64]) -> bool {
        match self.length.load(Acquire) as usize {
            0 => true,
            length => {
                let mut both = self.words.iter().zip(words);
                length == words.len() && both.all(|(place, word)| place.load(Relaxed) == *word)
            }
        }
    }
}

/// Never 0. Each label tells its length, so no set is the start of another one's words.
#[inline(always)]
fn hash(words: &[u64]) -> u64 {
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
    fn ten_thousand_labels_stay_bounded() {
        static SETS: LabelSetTable = LabelSetTable::new();
        // One label, of 4 bytes.
        let set = |number: u32| [u64::from(number) << 16 | 4 << 8];
        let ids: Vec<u32> = (0..10_000)
            .map(|number| SETS.intern(&set(number)))
            .collect();
        assert_eq!(ids.iter().filter(|id| **id != OTHER).count(), MOST_SETS);
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
        assert_eq!(seen, MOST_SETS);
        let counts = SETS.stats();
        assert_eq!((counts.seen, counts.others), (MOST_SETS, 2 * 9000));
        assert!(counts.bytes < 1 << 20, "{}", counts.bytes);
    }
}
