//! Each stack with a size class once, and what was counted for it. A sample points here.
//!
//! Where there is no room, records are evicted of which no sample lives; those stay that have most samples.
//!
//! Sizes are kept apart because readers unsample a line by the mean size of its objects, which is
//! only right where they are nearly alike.
#![expect(unsafe_code, reason = "tables outside of every allocator")]

mod evicted;
mod free;
mod life;
mod segments;

use core::ptr;
use core::slice;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use evicted::Evicted;
use life::Life;
use segments::{
    FREED_BYTES, FREED_OBJECTS, FrameCursor, HASH, LIFE, NEXT, PEAK, PEAK_BYTES, PEAK_OBJECTS,
    SHAPE, Segments, TOTAL_BYTES, TOTAL_OBJECTS, WORDS, frames, offset, word,
};

use crate::hash::scattered;
use crate::{mapping, tally};

/// Frames of a stack that are kept, from the leaf on.
pub const MOST_FRAMES: usize = 128;

/// The frame of all records that were evicted: an address at which there is nothing.
pub const EVICTED: u64 = 0x101;

/// Room for so many records, at the most.
const PLACES: usize = 1 << 17;
/// A stack has its place within so many of its first one.
const PROBES: usize = 64;
/// Records that are compared before the one with fewest samples is evicted.
const CANDIDATES: usize = 8;

/// Where a record was before it was evicted: a search goes on there, unlike at 0.
const VACANT: u64 = u32::MAX as u64;

/// All records of the process.
#[repr(C)]
pub(crate) struct Records {
    words: AtomicPtr<AtomicU64>,
    /// The first segment of a record in the lower half, the upper half of its hash in the upper; 0: none.
    places: AtomicPtr<AtomicU64>,
    segments: Segments,
    /// The last generation of a record.
    generation: AtomicU32,
    evicted: Evicted,
}

/// Which record a sample belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordId {
    record: u32,
    generation: u32,
}

/// What was sampled with one stack, of about one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Another record has it neither before nor after the next [`clear`](crate::clear). `None` for the sum of records
    /// that were evicted.
    pub id: Option<RecordId>,
    /// Program counters, leaf first. All but interrupted ones lie behind a call.
    pub frames: &'a [u64],
    /// Samples that were not freed.
    pub objects: u64,
    /// Their sizes together.
    pub bytes: u64,
    /// All samples since the last [`clear`](crate::clear).
    pub total_objects: u64,
    /// Their sizes together.
    pub total_bytes: u64,
    /// Samples that lived at the last peak of the [`tally`](crate::tally()), and their sizes together.
    pub at_peak: [u64; 2],
}

/// A stack and a size, as they are looked for.
struct Key<'a> {
    frames: &'a [usize],
    shape: u64,
    hash: u64,
}

/// A record of which no sample lived in that generation.
struct Idle<'a> {
    place: &'a AtomicU64,
    record: u32,
    generation: u32,
}

/// The tables, once they are mapped.
#[derive(Clone, Copy)]
struct Mapped<'a> {
    places: &'a [AtomicU64],
    words: &'a [AtomicU64],
}

impl Records {
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
        let generation = self.write(words, record, key)?;
        loop {
            let free = mapped.near(key.hash).find_map(|place| {
                let was = place.load(Relaxed);
                (was == 0 || was == VACANT).then_some((place, was))
            });
            if let Some((place, was)) = free {
                let new = key.hash & !u64::from(u32::MAX) | u64::from(record);
                if place.compare_exchange(was, new, AcqRel, Relaxed).is_ok() {
                    return Some(record);
                }
            } else if !self.evict_near(mapped, key.hash) {
                // Found by no other thread, so this one is its only user.
                let life = mapped.life(record)?;
                life.release();
                life.evict(generation);
                self.segments.give_back(words, record);
                return None;
            }
        }
    }

    /// Fills a record that no place points to yet, and begins its life. Returns the generation.
    #[inline(never)]
    fn write(&self, words: &[AtomicU64], record: u32, key: &Key<'_>) -> Option<u32> {
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
        let generation = self.generation.fetch_add(1, Relaxed).wrapping_add(1).max(1);
        life(words, record)?.begin(generation);
        Some(generation)
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
    pub(crate) fn count(&self, record: u32, size: u64) {
        self.change(record, [(TOTAL_OBJECTS, 1), (TOTAL_BYTES, size)]);
    }

    /// The sample was freed, and does not use the record any more.
    pub(crate) fn discount(&self, record: u32, size: u64) -> RecordId {
        self.change(record, [(FREED_OBJECTS, 1), (FREED_BYTES, size)]);
        let life = self.mapped().and_then(|mapped| mapped.life(record));
        RecordId {
            record,
            generation: life.map_or(0, Life::release),
        }
    }

    /// The sample that was taken for freed lives on: `realloc` failed. False where its record was evicted meanwhile.
    pub(crate) fn recount(&self, id: RecordId, size: u64) -> bool {
        let RecordId { record, generation } = id;
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
        remember_peak(words, record);
        for (at, more) in changes {
            if let Some(word) = word(words, record, at) {
                word.fetch_add(more, Relaxed);
            }
        }
    }

    /// The record of a live sample.
    pub(crate) fn id(&self, record: u32) -> RecordId {
        let life = self.mapped().and_then(|mapped| mapped.life(record));
        RecordId {
            record,
            generation: life.map_or(0, Life::generation),
        }
    }

    /// All records, and the sums of those that were evicted.
    ///
    /// # Safety
    /// Nobody clears meanwhile.
    pub(crate) unsafe fn each(&self, mut visit: impl FnMut(Record<'_>)) {
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
            visit(Record {
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
            let [objects, _] = live(mapped.words, record)?;
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
            unsafe { mapping::zero(places, PLACES) };
        }
        let words = self.words.load(Acquire);
        if !words.is_null() {
            // SAFETY: as above.
            unsafe { mapping::zero(words, WORDS) };
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

impl<'a> Key<'a> {
    fn new(frames: &'a [usize], size: u64) -> Self {
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
    fn near(self, hash: u64) -> impl Iterator<Item = &'a AtomicU64> {
        let indices = (0..PROBES).map(move |probe| (hash as usize).wrapping_add(probe));
        indices.filter_map(move |index| self.places.get(index & (PLACES - 1)))
    }

    fn life(self, record: u32) -> Option<&'a Life> {
        life(self.words, record)
    }

    /// The record with a key, which has one more user then.
    fn find(self, key: &Key<'_>) -> Option<u32> {
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
            if self.is(record, key) {
                return Some(record);
            }
            life.release();
        }
        None
    }

    fn is(self, record: u32, key: &Key<'_>) -> bool {
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
    fn evictable(self, hash: u64) -> Option<Idle<'a>> {
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

    fn records(self) -> impl Iterator<Item = u32> {
        self.places.iter().filter_map(record_at)
    }

    /// `None` if it was evicted.
    fn read(self, record: u32, room: &mut [u64; MOST_FRAMES]) -> Option<Record<'_>> {
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
            let [objects, bytes] = live(self.words, record)?;
            Some(Record {
                id: Some(RecordId { record, generation }),
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

fn life(words: &[AtomicU64], record: u32) -> Option<&Life> {
    let word = word(words, record, LIFE)?;
    // SAFETY: of the same layout.
    Some(unsafe { &*ptr::from_ref(word).cast::<Life>() })
}

/// Whether samples of an idle record lived at the last peak, which the profile of a tally shows.
fn lived_at_peak(words: &[AtomicU64], record: u32) -> bool {
    let has = |at, value| word(words, record, at).is_some_and(|word| word.load(Relaxed) == value);
    has(PEAK, tally::peaks()) && !has(PEAK_OBJECTS, 0)
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

/// Keeps what the record held at the last peak, before its first change since.
fn remember_peak(words: &[AtomicU64], record: u32) {
    let peak = tally::peaks();
    let word = |at: usize| word(words, record, at);
    let Some(known) = word(PEAK) else {
        return;
    };
    // Nearly always it is known: a load is cheaper than an exchange.
    if known.load(Relaxed) != peak
        && known.swap(peak, Relaxed) != peak
        && let (Some(at_peak), Some(peak_bytes)) = (word(PEAK_OBJECTS), word(PEAK_BYTES))
        && let Some([objects, bytes]) = live(words, record)
    {
        at_peak.store(objects, Relaxed);
        peak_bytes.store(bytes, Relaxed);
    }
}

/// The samples of a record that were not freed, and their sizes together.
fn live(words: &[AtomicU64], record: u32) -> Option<[u64; 2]> {
    // Freed first: what is freed meanwhile was counted before.
    let word = |at: usize| word(words, record, at).map(|word| word.load(Acquire));
    let freed = [word(FREED_OBJECTS)?, word(FREED_BYTES)?];
    let total = [word(TOTAL_OBJECTS)?, word(TOTAL_BYTES)?];
    Some([
        total[0].saturating_sub(freed[0]),
        total[1].saturating_sub(freed[1]),
    ])
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

/// The multiplications need not wait for each other.
fn hash_of(frames: impl Iterator<Item = u64>, shape: u64) -> u64 {
    let hash = frames.fold(shape, |hash, frame| {
        hash.rotate_left(7).wrapping_add(scattered(frame))
    });
    let hash = scattered(hash ^ (hash >> 32));
    hash ^ (hash >> 32)
}

/// Four classes from each power of two to the next: at most a fifth apart from their mean.
fn size_class(size: u64) -> u32 {
    let size = size.max(8);
    let exponent = size.ilog2();
    exponent * 4 + ((size >> (exponent - 2)) as u32 & 3)
}

#[cfg(test)]
mod tests {
    use core::array;

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

    #[test]
    fn the_same_stack_and_size_class_is_one_record() {
        let records = Records::new();
        assert_eq!(records.intern(&[1, 2], 100), None, "not prepared");
        assert!(records.prepare());
        let one = records.intern(&[1, 2], 100).unwrap();
        assert_eq!(records.intern(&[1, 2], 101), Some(one));
        assert_ne!(records.intern(&[1, 2], 200), Some(one));
        assert_ne!(records.intern(&[1, 2, 3], 100), Some(one));
        records.count(one, 100);
        records.count(one, 101);
        records.discount(one, 100);
        let mut seen = 0;
        // SAFETY: no other thread knows of it.
        unsafe {
            records.each(|record| {
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
        unsafe { records.each(|record| panic!("{record:?}")) };
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
        let records = Records::new();
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
    fn churn(records: &Records, samples: u64, every: u64, depth: usize) -> u64 {
        let mut lost = 0;
        for sample in 0..samples {
            let mut frames = [sample as usize; MOST_FRAMES];
            frames[0] = 1;
            let Some(record) = records.intern(&frames[..depth], 100) else {
                lost += 1;
                continue;
            };
            records.count(record, 100);
            if sample % every != 0 {
                records.discount(record, 100);
            }
        }
        lost
    }

    /// Objects and bytes that live, and all.
    fn sums(records: &Records) -> [u64; 4] {
        let mut sums = [0; 4];
        // SAFETY: no other thread knows of it.
        unsafe {
            records.each(|record| {
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
            let records = Records::new();
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
        let records = Records::new();
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
        let records = Records::new();
        assert!(records.prepare());
        let record = records.intern(&[1, 2], 100).unwrap();
        records.count(record, 100);
        let id = records.discount(record, 100);
        assert!(records.recount(id, 100));
        assert_eq!(sums(&records), [1, 100, 1, 100]);
        assert_eq!(records.discount(record, 100), id);
        assert_eq!(churn(&records, 8 * PLACES as u64, u64::MAX, 3), 0);
        assert!(!records.recount(id, 100));
    }
}
