//! Memory of records, in segments of one size: a stack takes as many as it needs, so what an evicted one had serves any
//! other.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, Release},
    fence,
};

use super::free::FreeSegments;

/// 64 MiB: 200,000 stacks of 35 frames.
pub(super) const SEGMENTS: usize = WORDS / LENGTH;
pub(super) const WORDS: usize = 1 << 23;
/// Words of a segment: three lines of the cache.
pub(super) const LENGTH: usize = 24;

/// The next segment of the same record, or of those that are free; 0: none.
pub(super) const NEXT: usize = 0;
/// See [`Life`](super::life::Life). Of a segment that is no record's first, always 0.
pub(super) const LIFE: usize = 1;
pub(super) const HASH: usize = 2;
/// The size class in the upper half, the number of frames in the lower.
pub(super) const SHAPE: usize = 3;
pub(super) const FREED_OBJECTS: usize = 4;
pub(super) const FREED_BYTES: usize = 5;
pub(super) const TOTAL_OBJECTS: usize = 6;
pub(super) const TOTAL_BYTES: usize = 7;
/// The number of the peak that the next two words are of; what changed before it is in those above.
pub(super) const PEAK: usize = 8;
pub(super) const PEAK_OBJECTS: usize = 9;
pub(super) const PEAK_BYTES: usize = 10;
/// Frames begin there in a record's first segment,
const FIRST_FRAME: usize = 11;
/// and there in the others.
const OTHER_FRAME: usize = 2;

/// Which segments are taken, and which came back.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Segments {
    /// The first ones that were ever taken; number 0 stays free, because 0 means none.
    used: AtomicUsize,
    free: FreeSegments,
}

/// Goes from frame to frame of a record.
#[derive(Debug)]
pub(super) struct FrameCursor {
    segment: u32,
    at: usize,
}

impl FrameCursor {
    pub(super) fn new(record: u32) -> Self {
        Self {
            segment: record,
            at: FIRST_FRAME,
        }
    }

    /// The segment and the word in it of the next frame. `next` returns what follows a segment.
    pub(super) fn advance(
        &mut self,
        next: impl FnOnce(u32) -> Option<u64>,
    ) -> Option<(u32, usize)> {
        if self.at == LENGTH {
            let following = u32::try_from(next(self.segment)?).ok()?;
            (self.segment, self.at) = (Some(following).filter(|next| *next != 0)?, OTHER_FRAME);
        }
        self.at += 1;
        Some((self.segment, self.at - 1))
    }
}

/// Where a word of a segment lies, in bytes.
pub(super) fn offset(segment: u32, at: usize) -> u64 {
    8 * (u64::from(segment) * LENGTH as u64 + at as u64)
}

pub(super) fn word(words: &[AtomicU64], segment: u32, at: usize) -> Option<&AtomicU64> {
    words.get(segment as usize * LENGTH + at)
}

/// The words of a record's frames, as many as there are.
pub(super) fn frames(words: &[AtomicU64], record: u32) -> impl Iterator<Item = &AtomicU64> {
    let mut cursor = FrameCursor::new(record);
    let next = |segment| Some(word(words, segment, NEXT)?.load(Relaxed));
    core::iter::from_fn(move || {
        let (segment, at) = cursor.advance(next)?;
        word(words, segment, at)
    })
}

impl Segments {
    pub(super) const fn new() -> Self {
        Self {
            used: AtomicUsize::new(1),
            free: FreeSegments(AtomicU64::new(0)),
        }
    }

    /// A chain for so many frames, of which nobody else knows. `None` if there is no room.
    pub(super) fn take(&self, words: &[AtomicU64], frames: usize) -> Option<u32> {
        let others = frames.saturating_sub(LENGTH - FIRST_FRAME);
        let mut chain = 0;
        for _ in 0..=others.div_ceil(LENGTH - OTHER_FRAME) {
            let Some(segment) = self.take_one(words) else {
                self.give_back(words, chain);
                return None;
            };
            // A reader that sees what is written from now on sees that an older record ended: `Life::read`.
            fence(Release);
            word(words, segment, NEXT)?.store(chain.into(), Relaxed);
            chain = segment;
        }
        Some(chain)
    }

    fn take_one(&self, words: &[AtomicU64]) -> Option<u32> {
        let free = self.free.pop(|segment| word(words, segment, NEXT));
        free.or_else(|| {
            if self.used.load(Relaxed) >= SEGMENTS {
                return None;
            }
            let fresh = self.used.fetch_add(1, Relaxed);
            u32::try_from(fresh).ok().filter(|_| fresh < SEGMENTS)
        })
    }

    /// Takes a chain back that nobody uses.
    pub(super) fn give_back(&self, words: &[AtomicU64], chain: u32) {
        if chain == 0 {
            return;
        }
        let next = |segment| word(words, segment, NEXT);
        let mut last = chain;
        while let Some(following) = next(last).map(|next| next.load(Relaxed) as u32)
            && following != 0
        {
            last = following;
        }
        self.free.push(chain, last, next);
    }

    /// How many bytes were ever in use.
    pub(super) fn bytes(&self) -> usize {
        self.used.load(Relaxed).min(SEGMENTS) * LENGTH * size_of::<u64>()
    }

    /// All are free, and hold zeros.
    pub(super) fn clear(&self) {
        self.free.0.store(0, Release);
        self.used.store(1, Release);
    }
}
