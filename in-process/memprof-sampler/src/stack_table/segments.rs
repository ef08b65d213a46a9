//! Memory of records, in segments of equal size. A record is a chain of segments, so the segments of an evicted record
//! fit any other.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, Release},
    fence,
};

use super::free_segments::FreeSegments;

/// Number of segments: 64 MiB, enough for 200,000 stacks of 35 frames each.
pub(super) const SEGMENT_COUNT: usize = WORD_COUNT / SEGMENT_WORDS;
/// Number of words in all segments.
pub(super) const WORD_COUNT: usize = 1 << 23;
/// Number of words in a segment: three cache lines.
pub(super) const SEGMENT_WORDS: usize = 24;

/// Word with the next segment of the record, or of the free chain; 0: none.
pub(super) const NEXT: usize = 0;
/// Word with a [`Life`](super::life::Life). Always 0 in later segments of a record.
pub(super) const LIFE: usize = 1;
/// Word with the hash of the stack and its shape.
pub(super) const HASH: usize = 2;
/// Word with the size class in the upper half, the number of frames in the lower.
pub(super) const SHAPE: usize = 3;
/// Word with the number of freed samples.
pub(super) const FREED_OBJECTS: usize = 4;
/// Word with the bytes of the freed samples.
pub(super) const FREED_BYTES: usize = 5;
/// Word with the number of all samples.
pub(super) const TOTAL_OBJECTS: usize = 6;
/// Word with the bytes of all samples.
pub(super) const TOTAL_BYTES: usize = 7;
/// Word with the number of the peak for which the next two words were saved. The words above include later changes.
pub(super) const PEAK: usize = 8;
/// Word with the number of live samples at that peak.
pub(super) const PEAK_OBJECTS: usize = 9;
/// Word with the bytes of the live samples at that peak.
pub(super) const PEAK_BYTES: usize = 10;
/// Index of the first frame in a record's first segment.
const FIRST_FRAME: usize = 11;
/// Index of the first frame in later segments.
const OTHER_FRAME: usize = 2;

/// Allocates segments: free ones first, then those that were never used.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Segments {
    /// Number of segments that were ever used. Segment 0 is reserved, because 0 means none.
    used: AtomicUsize,
    free: FreeSegments,
}

/// Position of a frame in a record.
#[derive(Debug)]
pub(super) struct FrameCursor {
    segment: u32,
    index: usize,
}

impl FrameCursor {
    /// Starts at the first frame of a record, given by its first segment.
    pub(super) fn new(record: u32) -> Self {
        Self {
            segment: record,
            index: FIRST_FRAME,
        }
    }

    /// Returns the segment and the index of the next frame's word, and advances. `next` returns the successor of a
    /// segment (0: none). `None` at the end of the chain, or if `next` returns no valid segment.
    pub(super) fn advance(
        &mut self,
        next: impl FnOnce(u32) -> Option<u64>,
    ) -> Option<(u32, usize)> {
        if self.index == SEGMENT_WORDS {
            let following = u32::try_from(next(self.segment)?).ok()?;
            (self.segment, self.index) = (Some(following).filter(|next| *next != 0)?, OTHER_FRAME);
        }
        self.index += 1;
        Some((self.segment, self.index - 1))
    }
}

/// Returns the offset of a word from the start of the segments, in bytes.
pub(super) fn word_offset(segment: u32, index: usize) -> u64 {
    8 * (u64::from(segment) * SEGMENT_WORDS as u64 + index as u64)
}

/// Returns the word number `index` of a segment. `None` if `segment` is beyond the last one.
pub(super) fn word(words: &[AtomicU64], segment: u32, index: usize) -> Option<&AtomicU64> {
    words.get(segment as usize * SEGMENT_WORDS + index)
}

/// Iterates over the words of a record's frames, including the unused words at the end of its last segment.
pub(super) fn frame_words(words: &[AtomicU64], record: u32) -> impl Iterator<Item = &AtomicU64> {
    let mut cursor = FrameCursor::new(record);
    let next = |segment| Some(word(words, segment, NEXT)?.load(Relaxed));
    core::iter::from_fn(move || {
        let (segment, index) = cursor.advance(next)?;
        word(words, segment, index)
    })
}

impl Segments {
    pub(super) const fn new() -> Self {
        Self {
            used: AtomicUsize::new(1),
            free: FreeSegments(AtomicU64::new(0)),
        }
    }

    /// Allocates a chain of segments for `frames` frames, and returns its first segment. No other thread knows the
    /// chain yet. `None` if too few segments are free.
    pub(super) fn allocate_chain(&self, words: &[AtomicU64], frames: usize) -> Option<u32> {
        let others = frames.saturating_sub(SEGMENT_WORDS - FIRST_FRAME);
        let mut chain = 0;
        // One segment more than the other frames need: the first one has less room for frames. The chain grows from its
        // end.
        for _ in 0..=others.div_ceil(SEGMENT_WORDS - OTHER_FRAME) {
            let Some(segment) = self.allocate_segment(words) else {
                self.free_chain(words, chain);
                return None;
            };
            // Pairs with the fence in `Life::read_unless_evicted`: a reader that sees a value written after this fence
            // also sees that the older record's generation has ended.
            fence(Release);
            word(words, segment, NEXT)?.store(chain.into(), Relaxed);
            chain = segment;
        }
        Some(chain)
    }

    /// Returns a free segment, or else one that was never used. `None` if all are in use.
    fn allocate_segment(&self, words: &[AtomicU64]) -> Option<u32> {
        let free = self.free.pop(|segment| word(words, segment, NEXT));
        free.or_else(|| {
            // Checked first, so that `used` grows at most by one per thread beyond the limit.
            if self.used.load(Relaxed) >= SEGMENT_COUNT {
                return None;
            }
            let fresh = self.used.fetch_add(1, Relaxed);
            u32::try_from(fresh).ok().filter(|_| fresh < SEGMENT_COUNT)
        })
    }

    /// Frees a chain that no thread uses. 0 is an empty chain.
    pub(super) fn free_chain(&self, words: &[AtomicU64], chain: u32) {
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

    /// Returns the size of all segments that were ever used, in bytes.
    pub(super) fn used_bytes(&self) -> usize {
        self.used.load(Relaxed).min(SEGMENT_COUNT) * SEGMENT_WORDS * size_of::<u64>()
    }

    /// Frees all segments. The caller has already filled them with zeros. Segment 0 stays reserved.
    pub(super) fn clear(&self) {
        self.free.0.store(0, Release);
        self.used.store(1, Release);
    }
}
