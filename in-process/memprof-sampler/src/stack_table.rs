//! Each stack with a size class once, and what was counted for it. A sample points here.
//!
//! Where there is no room, records are evicted of which no sample lives; those stay that have most samples.
//!
//! Sizes are kept apart because readers unsample a line by the mean size of its objects, which is
//! only right where they are nearly alike.
#![expect(unsafe_code, reason = "tables outside of every allocator")]

mod counts;
mod evicted;
mod free;
mod life;
mod places;
mod record;
mod segments;

use core::ptr;
use core::slice;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

pub use record::{MOST_FRAMES, StackRecord, StackRecordId};

use counts::{live_counts, save_peak};
use evicted::Evicted;
use life::Life;
use places::{Idle, Key, Mapped, PLACES, PROBES, VACANT, hash_of, life};
use segments::{
    FREED_BYTES, FREED_OBJECTS, FrameCursor, HASH, NEXT, PEAK, PEAK_BYTES, PEAK_OBJECTS, SHAPE,
    Segments, TOTAL_BYTES, TOTAL_OBJECTS, WORDS, frames, offset, word,
};

use crate::mapping;

/// The frame of all records that were evicted: an address at which there is nothing.
pub const EVICTED: u64 = 0x101;

/// All records of the process.
#[repr(C)]
pub(crate) struct StackTable {
    words: AtomicPtr<AtomicU64>,
    /// The first segment of a record in the lower half, the upper half of its hash in the upper; 0: none.
    places: AtomicPtr<AtomicU64>,
    segments: Segments,
    /// The last generation of a record.
    generation: AtomicU32,
    evicted: Evicted,
}

impl StackTable {
    pub(crate) const fn new() -> Self {
        Self {
            words: AtomicPtr::new(ptr::null_mut()),
            places: AtomicPtr::new(ptr::null_mut()),
            segments: Segments::new(),
            generation: AtomicU32::new(0),
            evicted: Evicted::new(),
        }
    }

    /// Makes room. False where the kernel has no memory for it.
    pub(crate) fn prepare(&self) -> bool {
        make(&self.places, PLACES) && make(&self.words, WORDS)
    }

    /// The record of a stack and a size, new or known, which has one more user. `None` if there is no room.
    pub(crate) fn intern(&self, frames: &[usize], size: u64) -> Option<u32> {
        let mapped = self.mapped()?;
        let key = Key::new(frames, size);
        match mapped.find(&key) {
            Some(known) => Some(known),
            None => self.insert(mapped, &key),
        }
    }

    /// Two threads that insert one stack at the same time may make two records of it.
    #[cold]
    #[inline(never)]
    fn insert(&self, mapped: Mapped<'_>, key: &Key<'_>) -> Option<u32> {
        let Mapped { words, .. } = mapped;
        let record = loop {
            match self.segments.take(words, key.frames.len()) {
                Some(record) => break record,
                None if self.evict_near(mapped, key.hash) => {}
                None => return None,
            }
        };
        write(words, record, key)?;
        loop {
            let free = mapped.near(key.hash).find_map(|place| {
                let was = place.load(Relaxed);
                (was == 0 || was == VACANT).then_some((place, was))
            });
            if let Some((place, was)) = free {
                let new = key.hash & !u64::from(u32::MAX) | u64::from(record);
                if place.compare_exchange(was, new, AcqRel, Relaxed).is_ok() {
                    // Only now: a thread that still knows an older record of this memory may become a user of any
                    // that lives, and what has users cannot be given back below.
                    mapped.life(record)?.begin(self.next_generation());
                    return Some(record);
                }
            } else if !self.evict_near(mapped, key.hash) {
                self.segments.give_back(words, record);
                return None;
            }
        }
    }

    fn next_generation(&self) -> u32 {
        let last = self.generation.fetch_add(1, Relaxed);
        last.wrapping_add(1).max(1)
    }

    /// Evicts a record from the places of a hash. False where samples of all live.
    #[cold]
    #[inline(never)]
    fn evict_near(&self, mapped: Mapped<'_>, hash: u64) -> bool {
        // What another thread evicts meanwhile leaves less to look for.
        (0..PROBES)
            .map_while(|_| mapped.evictable(hash))
            .any(|idle| self.evict(mapped.words, &idle))
    }

    fn evict(&self, words: &[AtomicU64], idle: &Idle<'_>) -> bool {
        let Some(life) = life(words, idle.record) else {
            return false;
        };
        if !life.evict(idle.generation) {
            return false;
        }
        idle.place.store(VACANT, Release);
        let word = |at| word(words, idle.record, at).map_or(0, |word| word.load(Relaxed));
        let class = (word(SHAPE) >> 32) as u32;
        let totals = [word(TOTAL_OBJECTS), word(TOTAL_BYTES)];
        self.evicted.add(class, totals);
        self.segments.give_back(words, idle.record);
        true
    }

    /// Counts a sample that is live from now on, and uses the record.
    pub(crate) fn add_sample(&self, record: u32, size: u64) {
        self.change(record, [(TOTAL_OBJECTS, 1), (TOTAL_BYTES, size)]);
    }

    /// The sample was freed, and does not use the record any more.
    pub(crate) fn remove_sample(&self, record: u32, size: u64) -> StackRecordId {
        self.change(record, [(FREED_OBJECTS, 1), (FREED_BYTES, size)]);
        let life = self.mapped().and_then(|mapped| mapped.life(record));
        StackRecordId {
            record,
            generation: life.map_or(0, Life::release),
        }
    }

    /// The sample that was taken for freed lives on: `realloc` failed. False where its record was evicted meanwhile.
    pub(crate) fn restore_sample(&self, id: StackRecordId, size: u64) -> bool {
        let StackRecordId { record, generation } = id;
        let life = self.mapped().and_then(|mapped| mapped.life(record));
        let is_there = life.is_some_and(|life| life.acquire_of(generation));
        if is_there {
            let less = [(FREED_OBJECTS, 1_u64), (FREED_BYTES, size)];
            self.change(record, less.map(|(at, less)| (at, less.wrapping_neg())));
        }
        is_there
    }

    fn change(&self, record: u32, changes: [(usize, u64); 2]) {
        let Some(Mapped { words, .. }) = self.mapped() else {
            return;
        };
        save_peak(words, record);
        for (at, more) in changes {
            if let Some(word) = word(words, record, at) {
                word.fetch_add(more, Relaxed);
            }
        }
    }

    /// The record of a live sample.
    pub(crate) fn id(&self, record: u32) -> StackRecordId {
        let life = self.mapped().and_then(|mapped| mapped.life(record));
        StackRecordId {
            record,
            generation: life.map_or(0, Life::generation),
        }
    }

    /// All records, and the sums of those that were evicted.
    ///
    /// # Safety
    /// Nobody clears meanwhile.
    pub(crate) unsafe fn for_each(&self, mut visit: impl FnMut(StackRecord<'_>)) {
        let Some(mapped) = self.mapped() else {
            return;
        };
        let mut room = [0; MOST_FRAMES];
        for record in mapped.records() {
            if let Some(record) = mapped.read(record, &mut room) {
                visit(record);
            }
        }
        for [total_objects, total_bytes] in self.evicted.each() {
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

    /// How many samples were not freed, and how many there were: sums of all records, so that no sample changes a
    /// word that all threads share.
    pub(crate) fn objects(&self) -> (u64, u64) {
        let Some(mapped) = self.mapped() else {
            return (0, 0);
        };
        let counts = mapped.records().filter_map(|record| {
            let [objects, _] = live_counts(mapped.words, record)?;
            Some((
                objects,
                word(mapped.words, record, TOTAL_OBJECTS)?.load(Relaxed),
            ))
        });
        let evicted = self.evicted.each().map(|[objects, _]| (0, objects));
        counts
            .chain(evicted)
            .fold((0, 0), |sums, each| (sums.0 + each.0, sums.1 + each.1))
    }

    /// Forgets all, and gives the memory back.
    ///
    /// # Safety
    /// Nobody interns, counts or reads meanwhile.
    pub(crate) unsafe fn clear(&self) {
        let places = self.places.load(Acquire);
        if !places.is_null() {
            // SAFETY: a mapping of `make`, and nobody uses it: promised by the caller.
            unsafe { mapping::reset(places, PLACES) };
        }
        let words = self.words.load(Acquire);
        if !words.is_null() {
            // SAFETY: as above.
            unsafe { mapping::reset(words, WORDS) };
        }
        self.evicted.clear();
        self.segments.clear();
    }

    /// How many bytes are in use.
    pub(crate) fn bytes(&self) -> usize {
        if self.places.load(Relaxed).is_null() {
            return 0;
        }
        PLACES * size_of::<u64>() + self.segments.bytes()
    }

    fn mapped(&self) -> Option<Mapped<'_>> {
        Some(Mapped {
            places: slice_of(&self.places, PLACES)?,
            words: slice_of(&self.words, WORDS)?,
        })
    }
}

/// Fills a record whose life has not begun.
#[inline(never)]
fn write(words: &[AtomicU64], record: u32, key: &Key<'_>) -> Option<()> {
    let zeros = [
        FREED_OBJECTS,
        FREED_BYTES,
        TOTAL_OBJECTS,
        TOTAL_BYTES,
        PEAK,
        PEAK_OBJECTS,
        PEAK_BYTES,
    ];
    let head = zeros.into_iter().map(|at| (at, 0));
    for (at, value) in head.chain([(HASH, key.hash), (SHAPE, key.shape)]) {
        word(words, record, at)?.store(value, Relaxed);
    }
    for (word, frame) in frames(words, record).zip(key.frames) {
        word.store(*frame as u64, Relaxed);
    }
    Some(())
}

fn make<T>(mapping: &AtomicPtr<T>, count: usize) -> bool {
    if !mapping.load(Acquire).is_null() {
        return true;
    }
    let Some(fresh) = mapping::zeroed(count) else {
        return false;
    };
    if mapping
        .compare_exchange(ptr::null_mut(), fresh, AcqRel, Acquire)
        .is_err()
    {
        // SAFETY: nobody else has seen it; another thread's is in its place.
        unsafe { mapping::unmap(fresh, count) };
    }
    true
}

fn slice_of<T>(mapping: &AtomicPtr<T>, count: usize) -> Option<&[T]> {
    let start = mapping.load(Acquire);
    // SAFETY: null, or a mapping of `make` with so many atomics, for which zeros are valid; it is
    // never unmapped.
    (!start.is_null()).then(|| unsafe { slice::from_raw_parts(start, count) })
}

/// The frames of a record in the memory of another process, whose records begin at `words`. It proves itself by
/// its hash.
pub(crate) fn frames_of(
    words: u64,
    record: u32,
    mut word: impl FnMut(u64) -> Option<u64>,
    room: &mut [u64; MOST_FRAMES],
) -> Option<&[u64]> {
    let mut word = |segment, at| word(words.wrapping_add(offset(segment, at)));
    let (hash, shape) = (word(record, HASH)?, word(record, SHAPE)?);
    let frames = room.get_mut(..shape as u32 as usize)?;
    let mut cursor = FrameCursor::new(record);
    for frame in &mut *frames {
        let (segment, at) = cursor.advance(|segment| word(segment, NEXT))?;
        *frame = word(segment, at)?;
    }
    (hash_of(frames.iter().copied(), shape) == hash).then_some(frames)
}

#[cfg(test)]
mod tests {
    use core::array;

    use super::*;

    #[test]
    fn the_same_stack_and_size_class_is_one_record() {
        let records = StackTable::new();
        assert_eq!(records.intern(&[1, 2], 100), None, "not prepared");
        assert!(records.prepare());
        let one = records.intern(&[1, 2], 100).unwrap();
        assert_eq!(records.intern(&[1, 2], 101), Some(one));
        assert_ne!(records.intern(&[1, 2], 200), Some(one));
        assert_ne!(records.intern(&[1, 2, 3], 100), Some(one));
        records.add_sample(one, 100);
        records.add_sample(one, 101);
        records.remove_sample(one, 100);
        let mut seen = 0;
        // SAFETY: no other thread knows of it.
        unsafe {
            records.for_each(|record| {
                seen += 1;
                if record.frames == [1, 2] && record.objects > 0 {
                    let counts = [record.objects, record.bytes];
                    assert_eq!(counts, [1, 101]);
                    assert_eq!([record.total_objects, record.total_bytes], [2, 201]);
                }
            });
        }
        assert_eq!(seen, 3);
        // SAFETY: as above.
        unsafe { records.clear() };
        // SAFETY: as above.
        unsafe { records.for_each(|record| panic!("{record:?}")) };
    }

    #[test]
    fn stacks_that_are_alike_are_spread() {
        let check = |stack: fn(u64) -> [u64; 100]| {
            let mut used = [0_u8; 4096];
            for at in 0..4096 {
                let hash = hash_of(stack(at).into_iter(), 100);
                used[hash as usize % 4096] += 1;
            }
            let most = used.into_iter().max().unwrap();
            assert!(most <= 8, "{most} share a place");
        };
        const CODE: u64 = 0x55d5_1234_5678;
        // They differ in one frame, or in how many.
        check(|at| array::from_fn(|frame| CODE + if frame == 99 { at } else { 0 }));
        check(|at| array::from_fn(|frame| CODE + if frame == 7 { 16 * at } else { 0 }));
        check(|at| array::from_fn(|frame| CODE + if frame as u64 * 42 > at { at } else { 0 }));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let records = StackTable::new();
        assert!(records.prepare());
        let frames = [7; MOST_FRAMES];
        let mut interned = 0;
        for leaf in 0..WORDS {
            let mut frames = frames;
            frames[0] = leaf;
            if records.intern(&frames, 8).is_none() {
                break;
            }
            interned += 1;
        }
        let least = segments::SEGMENTS / 8;
        assert!((least..PLACES).contains(&interned), "{interned}");
        assert!(records.bytes() <= WORDS * 8 + PLACES * 8);
    }

    /// Samples that are freed again but for one of `every`, each of another stack of that depth.
    fn churn(records: &StackTable, samples: u64, every: u64, depth: usize) -> u64 {
        let mut lost = 0;
        for sample in 0..samples {
            let mut frames = [sample as usize; MOST_FRAMES];
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

    /// Objects and bytes that live, and all.
    fn sums(records: &StackTable) -> [u64; 4] {
        let mut sums = [0; 4];
        // SAFETY: no other thread knows of it.
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
    fn churn_of_stacks_never_fills_the_table() {
        let check = |every, depth| {
            const SAMPLES: u64 = 4 * PLACES as u64;
            let records = StackTable::new();
            assert!(records.prepare());
            assert_eq!(churn(&records, SAMPLES, every, depth), 0, "{every} {depth}");
            let live = SAMPLES.div_ceil(every);
            let expected = [live, 100 * live, SAMPLES, 100 * SAMPLES];
            assert_eq!(sums(&records), expected, "{every} {depth}");
            assert_eq!(records.objects(), (live, SAMPLES));
            assert!(records.bytes() <= WORDS * 8 + PLACES * 8);
        };
        check(u64::MAX, 23);
        check(100, 23);
        // Of those, the memory is full before the places are.
        check(100, MOST_FRAMES);
        check(1000, 2);
    }

    #[test]
    fn table_full_of_live_stacks_refuses_others_and_keeps_its_own() {
        let records = StackTable::new();
        assert!(records.prepare());
        let lost = churn(&records, 2 * PLACES as u64, 1, 10);
        assert!(
            (PLACES as u64..PLACES as u64 * 11 / 10).contains(&lost),
            "{lost}"
        );
        let kept = 2 * PLACES as u64 - lost;
        assert_eq!(sums(&records), [kept, 100 * kept, kept, 100 * kept]);
    }

    #[test]
    fn failed_realloc_after_eviction_is_refused() {
        let records = StackTable::new();
        assert!(records.prepare());
        let record = records.intern(&[1, 2], 100).unwrap();
        records.add_sample(record, 100);
        let id = records.remove_sample(record, 100);
        assert!(records.restore_sample(id, 100));
        assert_eq!(sums(&records), [1, 100, 1, 100]);
        assert_eq!(records.remove_sample(record, 100), id);
        assert_eq!(churn(&records, 8 * PLACES as u64, u64::MAX, 3), 0);
        assert!(!records.restore_sample(id, 100));
    }
}
