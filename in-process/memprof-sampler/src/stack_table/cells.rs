//! Hash cells, through which the stack table finds records.

use core::ptr;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};

use super::counts::{live_counts, was_live_at_peak};
use super::life::Life;
use super::record::{MAX_FRAMES, StackRecord, StackRecordId};
use super::segments::{
    HASH, LIFE, PEAK, PEAK_BYTES, PEAK_OBJECTS, SHAPE, TOTAL_BYTES, TOTAL_OBJECTS, frame_words,
    word,
};
use crate::address_hash::multiply_by_golden_ratio;
use crate::tally;

/// Number of cells, and maximum number of records.
pub(super) const CELL_COUNT: usize = 1 << 17;
/// Number of cells probed for one stack. If all their records have live samples, a new sample counts as lost.
pub(super) const MAX_PROBES: usize = 64;
/// Number of idle records to compare. The one with the fewest samples is evicted.
pub(super) const MAX_CANDIDATES: usize = 8;

/// Cell of an evicted record. A search continues after it, but stops at an empty cell (0).
pub(super) const VACANT: u64 = u32::MAX as u64;

/// Stack and size class that identify a record.
pub(super) struct StackKey<'a> {
    pub(super) frames: &'a [usize],
    /// Size class in the upper half, number of frames in the lower.
    pub(super) shape: u64,
    pub(super) hash: u64,
}

/// Record that has no users in `generation`.
pub(super) struct IdleRecord<'a> {
    pub(super) cell: &'a AtomicU64,
    pub(super) record: u32,
    pub(super) generation: u32,
}

/// Memory of the stack table after it was mapped.
#[derive(Clone, Copy)]
pub(super) struct MappedTable<'a> {
    pub(super) cells: &'a [AtomicU64],
    pub(super) words: &'a [AtomicU64],
}

impl<'a> StackKey<'a> {
    /// Builds the key of a stack and a size, which is rounded to its size class.
    pub(super) fn new(frames: &'a [usize], size: u64) -> Self {
        let shape = (u64::from(size_class(size)) << 32) | frames.len() as u64;
        Self {
            frames,
            shape,
            hash: hash_stack(frames.iter().map(|frame| *frame as u64), shape),
        }
    }
}

impl<'a> MappedTable<'a> {
    /// Iterates over the cells in which the record of a hash may be, in probing order.
    pub(super) fn cells_near(self, hash: u64) -> impl Iterator<Item = &'a AtomicU64> {
        let indices = (0..MAX_PROBES).map(move |probe| (hash as usize).wrapping_add(probe));
        indices.filter_map(move |index| self.cells.get(index & (CELL_COUNT - 1)))
    }

    /// Returns the use count and generation of a record. `None` if `record` is beyond the last segment.
    pub(super) fn life(self, record: u32) -> Option<&'a Life> {
        life_of_record(self.words, record)
    }

    /// Finds the record of a key, and returns its first segment. Adds a user to the record, a reference that keeps it
    /// from being evicted. `None` if the table has no such record.
    pub(super) fn find_and_acquire(self, key: &StackKey<'_>) -> Option<u32> {
        for cell in self.cells_near(key.hash) {
            let known = cell.load(Acquire);
            if known == 0 {
                break;
            }
            // The upper half of a cell is that of its record's hash.
            if known == VACANT || (known ^ key.hash) >> 32 != 0 {
                continue;
            }
            let record = known as u32;
            let Some(life) = self.life(record).filter(|life| life.acquire()) else {
                continue;
            };
            if self.has_key(record, key) {
                return Some(record);
            }
            life.release();
        }
        None
    }

    /// Returns whether a record has the stack and size class of a key. The caller must be a user of the record.
    pub(super) fn has_key(self, record: u32, key: &StackKey<'_>) -> bool {
        let has = |index: usize, value: u64| {
            word(self.words, record, index).is_some_and(|word| word.load(Relaxed) == value)
        };
        has(HASH, key.hash)
            && has(SHAPE, key.shape)
            && frame_words(self.words, record)
                .zip(key.frames)
                .all(|(word, frame)| word.load(Relaxed) == *frame as u64)
    }

    /// Selects a record to evict: the one with the fewest samples among the first [`MAX_CANDIDATES`] candidates in the
    /// cells from a hash on. A candidate has no user now, and had no live sample at the tally's last peak. `None` if
    /// there are no candidates.
    pub(super) fn select_evictable(self, hash: u64) -> Option<IdleRecord<'a>> {
        let idle = self.cells_near(hash).filter_map(|cell| {
            let record = record_of_cell(cell)?;
            let generation = self.life(record)?.idle_generation()?;
            // In this generation the record is in no other cell: when an older generation ends, its cell becomes vacant
            // first.
            let is_current = record_of_cell(cell) == Some(record);
            (is_current && !was_live_at_peak(self.words, record)).then_some(IdleRecord {
                cell,
                record,
                generation,
            })
        });
        // Candidates are ranked by all their samples, live or freed.
        let samples = |idle: &IdleRecord<'_>| {
            word(self.words, idle.record, TOTAL_OBJECTS).map(|word| word.load(Relaxed))
        };
        idle.take(MAX_CANDIDATES).min_by_key(samples)
    }

    /// Iterates over all records, by their first segments.
    pub(super) fn records(self) -> impl Iterator<Item = u32> {
        self.cells.iter().filter_map(record_of_cell)
    }

    /// Copies a record without becoming its user; its frames go into `buffer`. `None` if the record is evicted before
    /// or during the read, or is beyond the last segment.
    pub(super) fn read_record(
        self,
        record: u32,
        buffer: &mut [u64; MAX_FRAMES],
    ) -> Option<StackRecord<'_>> {
        let mut count = 0;
        let mut copy = self.life(record)?.read_unless_evicted(|generation| {
            let word = |index| Some(word(self.words, record, index)?.load(Relaxed));
            // The shape's lower half.
            count = (word(SHAPE)? as u32) as usize;
            for (frame, word) in buffer
                .get_mut(..count)?
                .iter_mut()
                .zip(frame_words(self.words, record))
            {
                *frame = word.load(Relaxed);
            }
            let [objects, bytes] = live_counts(self.words, record)?;
            Some(StackRecord {
                id: Some(StackRecordId { record, generation }),
                frames: &[],
                objects,
                bytes,
                total_objects: word(TOTAL_OBJECTS)?,
                total_bytes: word(TOTAL_BYTES)?,
                // Unchanged since the last peak: the current counts are those at the peak.
                at_peak: match word(PEAK)? == tally::peak_number() {
                    true => [word(PEAK_OBJECTS)?, word(PEAK_BYTES)?],
                    false => [objects, bytes],
                },
            })
        })?;
        copy.frames = buffer.get(..count)?;
        Some(copy)
    }
}

/// Returns the record in a cell, by its first segment. `None` if the cell is empty or vacant.
fn record_of_cell(cell: &AtomicU64) -> Option<u32> {
    let known = cell.load(Acquire);
    (known != 0 && known != VACANT).then_some(known as u32)
}

/// Returns the use count and generation of a record, which are one of its words. `None` if `record` is beyond the last
/// segment.
pub(super) fn life_of_record(words: &[AtomicU64], record: u32) -> Option<&Life> {
    let word = word(words, record, LIFE)?;
    // SAFETY: `Life` is a transparent wrapper of `AtomicU64`.
    Some(unsafe { &*ptr::from_ref(word).cast::<Life>() })
}

/// Hashes a stack and its shape. The multiplications are independent of each other, so the processor overlaps them.
pub(super) fn hash_stack(frames: impl Iterator<Item = u64>, shape: u64) -> u64 {
    let hash = frames.fold(shape, |hash, frame| {
        hash.rotate_left(7)
            .wrapping_add(multiply_by_golden_ratio(frame))
    });
    let hash = multiply_by_golden_ratio(hash ^ (hash >> 32));
    hash ^ (hash >> 32)
}

/// Returns the size class: four per power of two, so sizes of one class differ from their mean by at most a fifth. All
/// sizes below 8 have the class of 8.
pub(super) fn size_class(size: u64) -> u32 {
    let size = size.max(8);
    let exponent = size.ilog2();
    // The two bits below the highest select one of the four classes.
    exponent * 4 + ((size >> (exponent - 2)) as u32 & 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_class_of_similar_sizes_is_equal() {
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
