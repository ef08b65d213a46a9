//! Each stack with a size class once, and what was counted for it. A sample points here.
//!
//! Sizes are kept apart because readers unsample a line by the mean size of its objects, which is
//! only right where they are nearly alike.
#![expect(unsafe_code, reason = "tables outside of every allocator")]

use core::ptr;
use core::slice;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::hash::scattered;
use crate::{mapping, tally};

/// Frames of a stack that are kept, from the leaf on.
pub const MOST_FRAMES: usize = 128;

/// Room for so many records, at the most.
const PLACES: usize = 1 << 17;
/// 64 MiB: 200,000 stacks of 40 frames.
const WORDS: usize = 1 << 23;
/// Where a search gives up, and the sample is lost.
const PROBES: usize = 64;

/// What comes before a record's frames, in words.
const HASH: usize = 0;
const FREED_OBJECTS: usize = 1;
const FREED_BYTES: usize = 2;
const TOTAL_OBJECTS: usize = 3;
const TOTAL_BYTES: usize = 4;
/// The size class in the upper half, the number of frames in the lower.
const SHAPE: usize = 5;
/// The number of the peak that the next two words are of; what changed before it is in those above.
const PEAK: usize = 6;
const PEAK_OBJECTS: usize = 7;
const PEAK_BYTES: usize = 8;
const FRAMES: usize = 9;

/// All records of the process.
#[repr(C)]
pub(crate) struct Records {
    words: AtomicPtr<AtomicU64>,
    /// Where the record of a hash begins; 0: none.
    places: AtomicPtr<AtomicU32>,
    /// Words that are taken; the first stays free, because 0 means none.
    used: AtomicUsize,
}

/// Which record a sample belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordId(pub(crate) u32);

/// What was sampled with one stack, of about one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Until the next [`clear`](crate::clear).
    pub id: RecordId,
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

impl Records {
    pub(crate) const fn new() -> Self {
        Self {
            words: AtomicPtr::new(ptr::null_mut()),
            places: AtomicPtr::new(ptr::null_mut()),
            used: AtomicUsize::new(1),
        }
    }

    /// Makes room. False where the kernel has no memory for it.
    pub(crate) fn prepare(&self) -> bool {
        make(&self.places, PLACES) && make(&self.words, WORDS)
    }

    /// The record of a stack and a size, new or known. None where there is no room.
    pub(crate) fn intern(&self, frames: &[usize], size: u64) -> Option<u32> {
        let (places, words) = (self.places()?, self.words()?);
        let shape = (u64::from(size_class(size)) << 32) | frames.len() as u64;
        let hash = hash_of(frames.iter().map(|frame| *frame as u64), shape);
        let mut fresh = None;
        for probe in 0..PROBES {
            let place = (hash as usize).wrapping_add(probe) & (PLACES - 1);
            let place = places.get(place)?;
            let mut known = place.load(Acquire);
            if known == 0 {
                let new = match fresh {
                    Some(new) => new,
                    None => self.write(words, frames, shape, hash)?,
                };
                fresh = Some(new);
                match place.compare_exchange(0, new, AcqRel, Acquire) {
                    Ok(_) => return Some(new),
                    Err(other) => known = other,
                }
            }
            if is(words, known, frames, shape, hash) {
                return Some(known);
            }
        }
        None
    }

    /// Counts a sample that is live from now on.
    pub(crate) fn count(&self, record: u32, size: u64) {
        self.change(record, [(TOTAL_OBJECTS, 1), (TOTAL_BYTES, size)]);
    }

    /// The sample was freed.
    pub(crate) fn discount(&self, record: u32, size: u64) {
        self.change(record, [(FREED_OBJECTS, 1), (FREED_BYTES, size)]);
    }

    /// The sample that was taken for freed lives on: `realloc` failed.
    pub(crate) fn recount(&self, record: u32, size: u64) {
        let less = [(FREED_OBJECTS, 1_u64), (FREED_BYTES, size)];
        self.change(record, less.map(|(at, less)| (at, less.wrapping_neg())));
    }

    fn change(&self, record: u32, words: [(usize, u64); 2]) {
        let Some(all) = self.words() else {
            return;
        };
        remember_peak(all, record as usize);
        for (at, more) in words {
            if let Some(word) = all.get(record as usize + at) {
                word.fetch_add(more, Relaxed);
            }
        }
    }

    /// All records.
    ///
    /// # Safety
    /// Nobody clears meanwhile.
    pub(crate) unsafe fn each(&self, mut visit: impl FnMut(Record<'_>)) {
        let (Some(places), Some(words)) = (self.places(), self.words()) else {
            return;
        };
        for place in places {
            let start = place.load(Acquire) as usize;
            if start != 0
                && let Some(record) = read(words, start)
            {
                visit(record);
            }
        }
    }

    /// How many samples were not freed, and how many there were: sums of all records, so that no sample changes a
    /// word that all threads share.
    pub(crate) fn objects(&self) -> (u64, u64) {
        let (Some(places), Some(words)) = (self.places(), self.words()) else {
            return (0, 0);
        };
        let starts = places.iter().map(|place| place.load(Acquire) as usize);
        let records = starts.filter(|start| *start != 0);
        let counts = records.filter_map(|start| {
            let record = words.get(start..)?;
            let [objects, _] = live(record)?;
            Some((objects, record.get(TOTAL_OBJECTS)?.load(Relaxed)))
        });
        counts.fold((0, 0), |sums, of_record| {
            (sums.0 + of_record.0, sums.1 + of_record.1)
        })
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
        self.used.store(1, Release);
    }

    /// How many bytes are in use.
    pub(crate) fn bytes(&self) -> usize {
        if self.places.load(Relaxed).is_null() {
            return 0;
        }
        PLACES * size_of::<u32>() + self.used.load(Relaxed).min(WORDS) * size_of::<u64>()
    }

    /// Writes a record that no place points to yet.
    fn write(&self, words: &[AtomicU64], frames: &[usize], shape: u64, hash: u64) -> Option<u32> {
        let length = FRAMES + frames.len();
        if self.used.load(Relaxed) + length > WORDS {
            return None;
        }
        let start = self.used.fetch_add(length, Relaxed);
        let record = words.get(start..start.checked_add(length)?)?;
        let (head, room) = record.split_at_checked(FRAMES)?;
        head.get(HASH)?.store(hash, Relaxed);
        head.get(SHAPE)?.store(shape, Relaxed);
        for (word, frame) in room.iter().zip(frames) {
            word.store(*frame as u64, Relaxed);
        }
        u32::try_from(start).ok()
    }

    fn places(&self) -> Option<&[AtomicU32]> {
        slice_of(&self.places, PLACES)
    }

    fn words(&self) -> Option<&[AtomicU64]> {
        slice_of(&self.words, WORDS)
    }
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
fn remember_peak(words: &[AtomicU64], start: usize) {
    let peak = tally::peaks();
    let word = |at: usize| words.get(start + at);
    let Some(known) = word(PEAK) else {
        return;
    };
    // Nearly always it is known: a load is cheaper than an exchange.
    if known.load(Relaxed) != peak
        && known.swap(peak, Relaxed) != peak
        && let (Some(at_peak), Some(peak_bytes)) = (word(PEAK_OBJECTS), word(PEAK_BYTES))
        && let Some([objects, bytes]) = words.get(start..).and_then(live)
    {
        at_peak.store(objects, Relaxed);
        peak_bytes.store(bytes, Relaxed);
    }
}

/// The samples of a record that were not freed, and their sizes together.
fn live(record: &[AtomicU64]) -> Option<[u64; 2]> {
    // Freed first: what is freed meanwhile was counted before.
    let word = |at: usize| record.get(at).map(|word| word.load(Acquire));
    let freed = [word(FREED_OBJECTS)?, word(FREED_BYTES)?];
    let total = [word(TOTAL_OBJECTS)?, word(TOTAL_BYTES)?];
    Some([
        total[0].saturating_sub(freed[0]),
        total[1].saturating_sub(freed[1]),
    ])
}

fn read(words: &[AtomicU64], start: usize) -> Option<Record<'_>> {
    let record = words.get(start..)?;
    let word = |at: usize| record.get(at).map(|word| word.load(Relaxed));
    let frames = record.get(FRAMES..FRAMES + (word(SHAPE)? as u32) as usize)?;
    let [objects, bytes] = live(record)?;
    Some(Record {
        id: RecordId(u32::try_from(start).ok()?),
        // SAFETY: of the same layout; written before the record was published, and not again.
        frames: unsafe { slice::from_raw_parts(frames.as_ptr().cast(), frames.len()) },
        objects,
        bytes,
        total_objects: word(TOTAL_OBJECTS)?,
        total_bytes: word(TOTAL_BYTES)?,
        at_peak: match word(PEAK)? == tally::peaks() {
            true => [word(PEAK_OBJECTS)?, word(PEAK_BYTES)?],
            false => [objects, bytes],
        },
    })
}

/// The frames of a record in the memory of another process, whose records begin at `words`. It proves itself by
/// its hash.
pub(crate) fn frames_of(
    words: u64,
    record: u32,
    mut word: impl FnMut(u64) -> Option<u64>,
    room: &mut [u64; MOST_FRAMES],
) -> Option<&[u64]> {
    let start = words.wrapping_add(8 * u64::from(record));
    let mut word = |at: usize| word(start.wrapping_add(8 * at as u64));
    let (hash, shape) = (word(HASH)?, word(SHAPE)?);
    let frames = room.get_mut(..shape as u32 as usize)?;
    for (at, frame) in frames.iter_mut().enumerate() {
        *frame = word(FRAMES + at)?;
    }
    (hash_of(frames.iter().copied(), shape) == hash).then_some(frames)
}

fn is(words: &[AtomicU64], start: u32, frames: &[usize], shape: u64, hash: u64) -> bool {
    let Some(record) = words.get(start as usize..) else {
        return false;
    };
    let has = |at: usize, value: u64| record.get(at).is_some_and(|w| w.load(Relaxed) == value);
    has(HASH, hash)
        && has(SHAPE, shape)
        && frames
            .iter()
            .enumerate()
            .all(|(at, frame)| has(FRAMES + at, *frame as u64))
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
        assert!(
            (WORDS / (MOST_FRAMES + FRAMES) / 2..PLACES).contains(&interned),
            "{interned}"
        );
        assert!(records.bytes() <= WORDS * 8 + PLACES * 4);
    }
}
