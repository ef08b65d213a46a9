//! Stack table: one record for each pair of stack and size class, with counts of its samples. A live sample refers to
//! its record.
//!
//! If the table is full, records without live samples are evicted, those with the fewest samples first.
//!
//! Size classes have separate records because readers scale a record's samples by the mean size of its objects. That is
//! only correct if the objects have similar sizes.
#![expect(unsafe_code, reason = "tables outside of every allocator")]

mod cells;
mod counts;
mod evicted;
mod free_segments;
mod life;
mod record;
mod segments;

use core::ptr;
use core::slice;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

pub use record::{MAX_FRAMES, StackRecord, StackRecordId};

use cells::{
    CELL_COUNT, IdleRecord, MAX_PROBES, MappedTable, StackKey, VACANT, hash_stack, life_of_record,
};
use counts::{live_counts, save_peak_counts};
use evicted::Evicted;
use life::Life;
use segments::{
    FREED_BYTES, FREED_OBJECTS, FrameCursor, HASH, NEXT, PEAK, PEAK_BYTES, PEAK_OBJECTS, SHAPE,
    Segments, TOTAL_BYTES, TOTAL_OBJECTS, WORD_COUNT, frame_words, word, word_offset,
};

use crate::mapping;

/// The only frame of a record that sums evicted records. No code has this address.
pub const EVICTED: u64 = 0x101;

/// Stack records of the process.
#[repr(C)]
pub(crate) struct StackTable {
    /// Segments that hold the records.
    words: AtomicPtr<AtomicU64>,
    /// Cells by hash. A cell has the record's first segment in the lower half, and the upper half of its hash in the
    /// upper half. 0: empty cell.
    cells: AtomicPtr<AtomicU64>,
    segments: Segments,
    /// Generation of the newest record.
    generation: AtomicU32,
    evicted: Evicted,
}

impl StackTable {
    pub(crate) const fn new() -> Self {
        Self {
            words: AtomicPtr::new(ptr::null_mut()),
            cells: AtomicPtr::new(ptr::null_mut()),
            segments: Segments::new(),
            generation: AtomicU32::new(0),
            evicted: Evicted::new(),
        }
    }

    /// Maps the table's memory, unless it is mapped already. Returns false if the kernel has no memory.
    pub(crate) fn map_memory(&self) -> bool {
        map_once(&self.cells, CELL_COUNT) && map_once(&self.words, WORD_COUNT)
    }

    /// Finds or inserts the record of a stack and a size. Adds a user to the record, a reference that keeps it from
    /// being evicted. Returns the record's first segment. `None` if there is no room, or before [`Self::map_memory`].
    pub(crate) fn intern(&self, frames: &[usize], size: u64) -> Option<u32> {
        let mapped = self.mapped_table()?;
        let key = StackKey::new(frames, size);
        match mapped.find_and_acquire(&key) {
            Some(known) => Some(known),
            None => self.insert(mapped, &key),
        }
    }

    /// Inserts a record with one user (reference), and returns its first segment. Evicts idle records to make room.
    /// `None` if no record near its cell can be evicted. Two threads that insert the same stack at the same time may
    /// create two records.
    #[cold]
    #[inline(never)]
    fn insert(&self, mapped: MappedTable<'_>, key: &StackKey<'_>) -> Option<u32> {
        let MappedTable { words, .. } = mapped;
        let record = loop {
            match self.segments.allocate_chain(words, key.frames.len()) {
                Some(record) => break record,
                None if self.evict_record_near(mapped, key.hash) => {}
                None => return None,
            }
        };
        write_record(words, record, key)?;
        loop {
            let free = mapped.cells_near(key.hash).find_map(|cell| {
                let old = cell.load(Relaxed);
                (old == 0 || old == VACANT).then_some((cell, old))
            });
            if let Some((cell, old)) = free {
                let new = key.hash & !u64::from(u32::MAX) | u64::from(record);
                if cell.compare_exchange(old, new, AcqRel, Relaxed).is_ok() {
                    // The generation begins only after the record is in its cell. Another thread may still know this
                    // memory as an older record, and could become a user of any record whose generation has begun; such
                    // a record could not be freed below.
                    mapped.life(record)?.begin(self.next_generation());
                    return Some(record);
                }
            } else if !self.evict_record_near(mapped, key.hash) {
                self.segments.free_chain(words, record);
                return None;
            }
        }
    }

    /// Returns a number for the next record's generation; never 0, which marks an evicted record.
    fn next_generation(&self) -> u32 {
        let last = self.generation.fetch_add(1, Relaxed);
        last.wrapping_add(1).max(1)
    }

    /// Evicts one of the records in the [`MAX_PROBES`] cells from a hash on. Returns false if all of these records have
    /// live samples, or had some when the process had most live bytes.
    #[cold]
    #[inline(never)]
    fn evict_record_near(&self, mapped: MappedTable<'_>, hash: u64) -> bool {
        // If another thread evicts the selected record first, the next one is tried.
        (0..MAX_PROBES)
            .map_while(|_| mapped.select_evictable(hash))
            .any(|idle| self.evict(mapped.words, &idle))
    }

    /// Evicts a record: marks its cell as vacant, adds its totals to the sums of its size class, and frees its
    /// segments. Returns false, with nothing changed, if the record has a user again, or another thread has evicted it.
    fn evict(&self, words: &[AtomicU64], idle: &IdleRecord<'_>) -> bool {
        let Some(life) = life_of_record(words, idle.record) else {
            return false;
        };
        if !life.evict(idle.generation) {
            return false;
        }
        idle.cell.store(VACANT, Release);
        let word = |index| word(words, idle.record, index).map_or(0, |word| word.load(Relaxed));
        let class = (word(SHAPE) >> 32) as u32;
        let totals = [word(TOTAL_OBJECTS), word(TOTAL_BYTES)];
        self.evicted.add(class, totals);
        self.segments.free_chain(words, idle.record);
        true
    }

    /// Counts a live sample in a record that [`Self::intern`] returned. `intern` has counted a user of the record for
    /// this sample already, so the number of users does not change.
    pub(crate) fn add_sample(&self, record: u32, size: u64) {
        self.add_to_words(record, [(TOTAL_OBJECTS, 1), (TOTAL_BYTES, size)]);
    }

    /// Counts a sample as freed, and removes it as a user of the record. Returns the record's id.
    pub(crate) fn remove_sample(&self, record: u32, size: u64) -> StackRecordId {
        self.add_to_words(record, [(FREED_OBJECTS, 1), (FREED_BYTES, size)]);
        let life = self.mapped_table().and_then(|mapped| mapped.life(record));
        StackRecordId {
            record,
            generation: life.map_or(0, Life::release),
        }
    }

    /// Counts a removed sample as live again, because `realloc` failed. Returns false if its record was evicted since.
    pub(crate) fn restore_sample(&self, id: StackRecordId, size: u64) -> bool {
        let StackRecordId { record, generation } = id;
        let life = self.mapped_table().and_then(|mapped| mapped.life(record));
        let is_acquired = life.is_some_and(|life| life.acquire_generation(generation));
        if is_acquired {
            // Wrapping additions of the negated values subtract them.
            let decrements = [(FREED_OBJECTS, 1_u64), (FREED_BYTES, size)];
            self.add_to_words(
                record,
                decrements.map(|(index, less)| (index, less.wrapping_neg())),
            );
        }
        is_acquired
    }

    /// Adds numbers to two words of a record, given as pairs of index and number. First saves the counts that the
    /// record had at the tally's last peak. Does nothing before [`Self::map_memory`].
    fn add_to_words(&self, record: u32, changes: [(usize, u64); 2]) {
        let Some(MappedTable { words, .. }) = self.mapped_table() else {
            return;
        };
        save_peak_counts(words, record);
        for (index, more) in changes {
            if let Some(word) = word(words, record, index) {
                word.fetch_add(more, Relaxed);
            }
        }
    }

    /// Returns the id of a live sample's record: `record` and its current generation.
    pub(crate) fn record_id(&self, record: u32) -> StackRecordId {
        let life = self.mapped_table().and_then(|mapped| mapped.life(record));
        StackRecordId {
            record,
            generation: life.map_or(0, Life::generation),
        }
    }

    /// Visits all records, and one summary for each size class with evicted records. Skips records that are evicted
    /// meanwhile.
    ///
    /// # Safety
    /// No thread clears the table during the visits.
    pub(crate) unsafe fn for_each(&self, mut visit: impl FnMut(StackRecord<'_>)) {
        let Some(mapped) = self.mapped_table() else {
            return;
        };
        let mut buffer = [0; MAX_FRAMES];
        for record in mapped.records() {
            if let Some(record) = mapped.read_record(record, &mut buffer) {
                visit(record);
            }
        }
        for [total_objects, total_bytes] in self.evicted.totals() {
            visit(StackRecord {
                id: None,
                frames: &[EVICTED],
                objects: 0,
                bytes: 0,
                total_objects,
                total_bytes,
                at_peak: [0; 2],
            });
        }
    }

    /// Returns the number of live samples and of all samples. Sums over all records, because a shared counter would
    /// have to change with every sample.
    pub(crate) fn count_objects(&self) -> (u64, u64) {
        let Some(mapped) = self.mapped_table() else {
            return (0, 0);
        };
        let counts = mapped.records().filter_map(|record| {
            let [objects, _] = live_counts(mapped.words, record)?;
            Some((
                objects,
                word(mapped.words, record, TOTAL_OBJECTS)?.load(Relaxed),
            ))
        });
        let evicted = self.evicted.totals().map(|[objects, _]| (0, objects));
        counts
            .chain(evicted)
            .fold((0, 0), |sums, each| (sums.0 + each.0, sums.1 + each.1))
    }

    /// Deletes all records, and releases their memory to the kernel.
    ///
    /// # Safety
    /// No other thread uses the table during the call.
    pub(crate) unsafe fn clear(&self) {
        let cells = self.cells.load(Acquire);
        if !cells.is_null() {
            // SAFETY: a mapping of `map_once`, and the caller makes sure that no thread uses it.
            unsafe { mapping::zero_and_release(cells, CELL_COUNT) };
        }
        let words = self.words.load(Acquire);
        if !words.is_null() {
            // SAFETY: a mapping of `map_once`, and the caller makes sure that no thread uses it.
            unsafe { mapping::zero_and_release(words, WORD_COUNT) };
        }
        self.evicted.clear();
        self.segments.clear();
    }

    /// Returns the size of the cells and of all segments that were ever used, in bytes.
    pub(crate) fn used_bytes(&self) -> usize {
        if self.cells.load(Relaxed).is_null() {
            return 0;
        }
        CELL_COUNT * size_of::<u64>() + self.segments.used_bytes()
    }

    /// Returns the table's memory. `None` before [`Self::map_memory`].
    fn mapped_table(&self) -> Option<MappedTable<'_>> {
        Some(MappedTable {
            cells: mapped_slice(&self.cells, CELL_COUNT)?,
            words: mapped_slice(&self.words, WORD_COUNT)?,
        })
    }
}

/// Writes a new record: the key's hash, shape and frames, and zeros as counts. The record's generation must not have
/// begun. `None` if a word is beyond the last segment.
#[inline(never)]
fn write_record(words: &[AtomicU64], record: u32, key: &StackKey<'_>) -> Option<()> {
    let zeros = [
        FREED_OBJECTS,
        FREED_BYTES,
        TOTAL_OBJECTS,
        TOTAL_BYTES,
        PEAK,
        PEAK_OBJECTS,
        PEAK_BYTES,
    ];
    let head = zeros.into_iter().map(|index| (index, 0));
    for (index, value) in head.chain([(HASH, key.hash), (SHAPE, key.shape)]) {
        word(words, record, index)?.store(value, Relaxed);
    }
    for (word, frame) in frame_words(words, record).zip(key.frames) {
        word.store(*frame as u64, Relaxed);
    }
    Some(())
}

/// Maps `count` elements unless they are mapped already. Returns false if the kernel has no memory.
fn map_once<T>(mapping: &AtomicPtr<T>, count: usize) -> bool {
    if !mapping.load(Acquire).is_null() {
        return true;
    }
    let Some(fresh) = mapping::map_zeros(count) else {
        return false;
    };
    if mapping
        .compare_exchange(ptr::null_mut(), fresh, AcqRel, Acquire)
        .is_err()
    {
        // SAFETY: only this thread has the address of `fresh`, because another thread's mapping was stored.
        unsafe { mapping::unmap(fresh, count) };
    }
    true
}

/// Returns the `count` elements of a mapping as a slice. `None` if the memory is not mapped yet.
fn mapped_slice<T>(mapping: &AtomicPtr<T>, count: usize) -> Option<&[T]> {
    let start = mapping.load(Acquire);
    // SAFETY: null, or a mapping of `map_once` with `count` atomics, for which zeros are valid; it is never unmapped.
    (!start.is_null()).then(|| unsafe { slice::from_raw_parts(start, count) })
}

/// Reads the frames of a record in another process, whose segments start at `words`. `word` reads eight bytes of that
/// process. `None` if memory is unreadable, the record has more frames than [`MAX_FRAMES`], or the frames do not match
/// its hash. They do not match if the process changes the record during the read.
pub(crate) fn read_remote_frames(
    words: u64,
    record: u32,
    mut word: impl FnMut(u64) -> Option<u64>,
    buffer: &mut [u64; MAX_FRAMES],
) -> Option<&[u64]> {
    let mut word = |segment, index| word(words.wrapping_add(word_offset(segment, index)));
    let (hash, shape) = (word(record, HASH)?, word(record, SHAPE)?);
    // The lower half of the shape is the number of frames.
    let frames = buffer.get_mut(..shape as u32 as usize)?;
    let mut cursor = FrameCursor::new(record);
    for frame in &mut *frames {
        let (segment, index) = cursor.advance(|segment| word(segment, NEXT))?;
        *frame = word(segment, index)?;
    }
    (hash_stack(frames.iter().copied(), shape) == hash).then_some(frames)
}

#[cfg(test)]
mod tests {
    use core::array;

    use super::*;

    #[test]
    fn stack_interned_twice_has_one_record_per_size_class() {
        let records = StackTable::new();
        assert_eq!(records.intern(&[1, 2], 100), None, "not prepared");
        assert!(records.map_memory());
        let one = records.intern(&[1, 2], 100).unwrap();
        assert_eq!(records.intern(&[1, 2], 101), Some(one));
        assert_ne!(records.intern(&[1, 2], 200), Some(one));
        assert_ne!(records.intern(&[1, 2, 3], 100), Some(one));
        records.add_sample(one, 100);
        records.add_sample(one, 101);
        records.remove_sample(one, 100);
        let mut visited = 0;
        // SAFETY: no other thread has access to the table.
        unsafe {
            records.for_each(|record| {
                visited += 1;
                if record.frames == [1, 2] && record.objects > 0 {
                    let counts = [record.objects, record.bytes];
                    assert_eq!(counts, [1, 101]);
                    assert_eq!([record.total_objects, record.total_bytes], [2, 201]);
                }
            });
        }
        assert_eq!(visited, 3);
        // SAFETY: no other thread has access to the table.
        unsafe { records.clear() };
        // SAFETY: no other thread has access to the table.
        unsafe { records.for_each(|record| panic!("{record:?}")) };
    }

    #[test]
    fn hashes_of_similar_stacks_are_distributed() {
        let check = |stack: fn(u64) -> [u64; 100]| {
            let mut used = [0_u8; 4096];
            for index in 0..4096 {
                let hash = hash_stack(stack(index).into_iter(), 100);
                used[hash as usize % 4096] += 1;
            }
            let most = used.into_iter().max().unwrap();
            assert!(most <= 8, "{most} share a cell");
        };
        const CODE: u64 = 0x55d5_1234_5678;
        // The stacks differ in one frame, or in the number of different frames.
        check(|index| array::from_fn(|frame| CODE + if frame == 99 { index } else { 0 }));
        check(|index| array::from_fn(|frame| CODE + if frame == 7 { 16 * index } else { 0 }));
        check(|index| {
            array::from_fn(|frame| CODE + if frame as u64 * 42 > index { index } else { 0 })
        });
    }

    #[test]
    fn intern_in_full_table_returns_none() {
        let records = StackTable::new();
        assert!(records.map_memory());
        let frames = [7; MAX_FRAMES];
        let mut interned = 0;
        for leaf in 0..WORD_COUNT {
            let mut frames = frames;
            frames[0] = leaf;
            if records.intern(&frames, 8).is_none() {
                break;
            }
            interned += 1;
        }
        let least = segments::SEGMENT_COUNT / 8;
        assert!((least..CELL_COUNT).contains(&interned), "{interned}");
        assert!(records.used_bytes() <= WORD_COUNT * 8 + CELL_COUNT * 8);
    }

    /// Adds samples, each with another stack of `depth` frames. Keeps one of `every` samples, and removes the others at
    /// once. Returns the number of lost samples.
    fn churn(records: &StackTable, samples: u64, every: u64, depth: usize) -> u64 {
        let mut lost = 0;
        for sample in 0..samples {
            let mut frames = [sample as usize; MAX_FRAMES];
            frames[0] = 1;
            let Some(record) = records.intern(&frames[..depth], 100) else {
                lost += 1;
                continue;
            };
            records.add_sample(record, 100);
            if sample % every != 0 {
                records.remove_sample(record, 100);
            }
        }
        lost
    }

    /// Sums of all records: live objects, live bytes, total objects, total bytes.
    fn sums(records: &StackTable) -> [u64; 4] {
        let mut sums = [0; 4];
        // SAFETY: no other thread has access to the table.
        unsafe {
            records.for_each(|record| {
                sums[0] += record.objects;
                sums[1] += record.bytes;
                sums[2] += record.total_objects;
                sums[3] += record.total_bytes;
                let is_whole = record
                    .frames
                    .iter()
                    .skip(2)
                    .all(|frame| *frame == record.frames[1]);
                assert!(is_whole && (record.objects == 0 || record.frames.len() > 1));
            });
        }
        sums
    }

    #[test]
    fn churn_of_stacks_loses_no_sample() {
        let check = |every, depth| {
            const SAMPLES: u64 = 4 * CELL_COUNT as u64;
            let records = StackTable::new();
            assert!(records.map_memory());
            assert_eq!(churn(&records, SAMPLES, every, depth), 0, "{every} {depth}");
            let live = SAMPLES.div_ceil(every);
            let expected = [live, 100 * live, SAMPLES, 100 * SAMPLES];
            assert_eq!(sums(&records), expected, "{every} {depth}");
            assert_eq!(records.count_objects(), (live, SAMPLES));
            assert!(records.used_bytes() <= WORD_COUNT * 8 + CELL_COUNT * 8);
        };
        check(u64::MAX, 23);
        check(100, 23);
        // Stacks of this depth fill the segments before the cells.
        check(100, MAX_FRAMES);
        check(1000, 2);
    }

    #[test]
    fn table_full_of_live_stacks_refuses_others_and_keeps_its_records() {
        let records = StackTable::new();
        assert!(records.map_memory());
        let lost = churn(&records, 2 * CELL_COUNT as u64, 1, 10);
        assert!(
            (CELL_COUNT as u64..CELL_COUNT as u64 * 11 / 10).contains(&lost),
            "{lost}"
        );
        let kept = 2 * CELL_COUNT as u64 - lost;
        assert_eq!(sums(&records), [kept, 100 * kept, kept, 100 * kept]);
    }

    #[test]
    fn failed_realloc_after_eviction_is_refused() {
        let records = StackTable::new();
        assert!(records.map_memory());
        let record = records.intern(&[1, 2], 100).unwrap();
        records.add_sample(record, 100);
        let id = records.remove_sample(record, 100);
        assert!(records.restore_sample(id, 100));
        assert_eq!(sums(&records), [1, 100, 1, 100]);
        assert_eq!(records.remove_sample(record, 100), id);
        assert_eq!(churn(&records, 8 * CELL_COUNT as u64, u64::MAX, 3), 0);
        assert!(!records.restore_sample(id, 100));
    }
}
