//! The places in which records are found by the hash of their stack.

use core::ptr;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};

use super::counts::{live_counts, lived_at_peak};
use super::life::Life;
use super::record::{MOST_FRAMES, StackRecord, StackRecordId};
use super::segments::{
    HASH, LIFE, PEAK, PEAK_BYTES, PEAK_OBJECTS, SHAPE, TOTAL_BYTES, TOTAL_OBJECTS, frames, word,
};
use crate::address_hash::mix;
use crate::tally;

/// Room for so many records, at the most.
pub(super) const PLACES: usize = 1 << 17;
/// A stack has its place within so many of its first one.
pub(super) const PROBES: usize = 64;
/// Records that are compared before the one with fewest samples is evicted.
pub(super) const CANDIDATES: usize = 8;

/// Where a record was before it was evicted: a search goes on there, unlike at 0.
pub(super) const VACANT: u64 = u32::MAX as u64;

/// A stack and a size, as they are looked for.
pub(super) struct Key<'a> {
    pub(super) frames: &'a [usize],
    pub(super) shape: u64,
    pub(super) hash: u64,
}

/// A record of which no sample lived in that generation.
pub(super) struct Idle<'a> {
    pub(super) place: &'a AtomicU64,
    pub(super) record: u32,
    pub(super) generation: u32,
}

/// The tables, once they are mapped.
#[derive(Clone, Copy)]
pub(super) struct Mapped<'a> {
    pub(super) places: &'a [AtomicU64],
    pub(super) words: &'a [AtomicU64],
}

impl<'a> Key<'a> {
    pub(super) fn new(frames: &'a [usize], size: u64) -> Self {
        let shape = (u64::from(size_class(size)) << 32) | frames.len() as u64;
        Self {
            frames,
            shape,
            hash: hash_of(frames.iter().map(|frame| *frame as u64), shape),
        }
    }
}

impl<'a> Mapped<'a> {
    /// The places that the record of a hash may have, the first one first.
    pub(super) fn near(self, hash: u64) -> impl Iterator<Item = &'a AtomicU64> {
        let indices = (0..PROBES).map(move |probe| (hash as usize).wrapping_add(probe));
        indices.filter_map(move |index| self.places.get(index & (PLACES - 1)))
    }

    pub(super) fn life(self, record: u32) -> Option<&'a Life> {
        life(self.words, record)
    }

    /// The record with a key, which has one more user then.
    pub(super) fn find(self, key: &Key<'_>) -> Option<u32> {
        for place in self.near(key.hash) {
            let known = place.load(Acquire);
            if known == 0 {
                break;
            }
            if known == VACANT || (known ^ key.hash) >> 32 != 0 {
                continue;
            }
            let record = known as u32;
            let Some(life) = self.life(record).filter(|life| life.acquire()) else {
                continue;
            };
            if self.matches(record, key) {
                return Some(record);
            }
            life.release();
        }
        None
    }

    pub(super) fn matches(self, record: u32, key: &Key<'_>) -> bool {
        let has = |at: usize, value: u64| {
            word(self.words, record, at).is_some_and(|word| word.load(Relaxed) == value)
        };
        has(HASH, key.hash)
            && has(SHAPE, key.shape)
            && frames(self.words, record)
                .zip(key.frames)
                .all(|(word, frame)| word.load(Relaxed) == *frame as u64)
    }

    /// Of the first records near a hash of which no sample lives, the one that had fewest.
    pub(super) fn evictable(self, hash: u64) -> Option<Idle<'a>> {
        let idle = self.near(hash).filter_map(|place| {
            let record = record_at(place)?;
            let generation = self.life(record)?.idle_generation()?;
            // In this generation, it has no other place: an older one's was vacant before.
            let is_here = record_at(place) == Some(record);
            (is_here && !lived_at_peak(self.words, record)).then_some(Idle {
                place,
                record,
                generation,
            })
        });
        let samples = |idle: &Idle<'_>| {
            word(self.words, idle.record, TOTAL_OBJECTS).map(|word| word.load(Relaxed))
        };
        idle.take(CANDIDATES).min_by_key(samples)
    }

    pub(super) fn records(self) -> impl Iterator<Item = u32> {
        self.places.iter().filter_map(record_at)
    }

    /// `None` if it was evicted.
    pub(super) fn read(
        self,
        record: u32,
        room: &mut [u64; MOST_FRAMES],
    ) -> Option<StackRecord<'_>> {
        let mut count = 0;
        let mut seen = self.life(record)?.read(|generation| {
            let word = |at| Some(word(self.words, record, at)?.load(Relaxed));
            count = (word(SHAPE)? as u32) as usize;
            for (room, word) in room
                .get_mut(..count)?
                .iter_mut()
                .zip(frames(self.words, record))
            {
                *room = word.load(Relaxed);
            }
            let [objects, bytes] = live_counts(self.words, record)?;
            Some(StackRecord {
                id: Some(StackRecordId { record, generation }),
                frames: &[],
                objects,
                bytes,
                total_objects: word(TOTAL_OBJECTS)?,
                total_bytes: word(TOTAL_BYTES)?,
                at_peak: match word(PEAK)? == tally::peaks() {
                    true => [word(PEAK_OBJECTS)?, word(PEAK_BYTES)?],
                    false => [objects, bytes],
                },
            })
        })?;
        seen.frames = room.get(..count)?;
        Some(seen)
    }
}

/// The record of a place, if it has one.
fn record_at(place: &AtomicU64) -> Option<u32> {
    let known = place.load(Acquire);
    (known != 0 && known != VACANT).then_some(known as u32)
}

pub(super) fn life(words: &[AtomicU64], record: u32) -> Option<&Life> {
    let word = word(words, record, LIFE)?;
    // SAFETY: of the same layout.
    Some(unsafe { &*ptr::from_ref(word).cast::<Life>() })
}

/// The multiplications need not wait for each other.
pub(super) fn hash_of(frames: impl Iterator<Item = u64>, shape: u64) -> u64 {
    let hash = frames.fold(shape, |hash, frame| {
        hash.rotate_left(7).wrapping_add(mix(frame))
    });
    let hash = mix(hash ^ (hash >> 32));
    hash ^ (hash >> 32)
}

/// Four classes from each power of two to the next: at most a fifth apart from their mean.
pub(super) fn size_class(size: u64) -> u32 {
    let size = size.max(8);
    let exponent = size.ilog2();
    exponent * 4 + ((size >> (exponent - 2)) as u32 & 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_sizes_that_are_nearly_alike() {
        let check = |size, class| assert_eq!(size_class(size), class, "{size}");
        check(0, 12);
        check(8, 12);
        check(9, 12);
        check(10, 13);
        check(16, 16);
        check(19, 16);
        check(20, 17);
        check(u64::MAX, 63 * 4 + 3);
    }
}
