//! Bitmap that several threads set bits in.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Parts of the bitmap, each allocated when its first bit is set.
#[derive(Debug)]
pub(super) struct AtomicBitmap(Vec<OnceLock<Box<[AtomicU64; PART_WORDS]>>>);

/// Words of a part, enough for 512 KiB of a heap with 16 bytes per bit.
const PART_WORDS: usize = 512;

impl AtomicBitmap {
    /// Bitmap of `words` words of 64 bits, without a set bit. A part of it gets memory when a bit in it is first set.
    pub(super) fn new(words: usize) -> Self {
        Self(
            (0..words.div_ceil(PART_WORDS))
                .map(|_| OnceLock::new())
                .collect(),
        )
    }

    /// Empty bitmap, in which no bit may be set.
    pub(super) fn empty() -> Self {
        Self(Vec::new())
    }

    /// Returns the word at an index, 64 bits; 0 if its part has no memory yet, or `index` is beyond the bitmap.
    pub(super) fn word(&self, index: usize) -> u64 {
        let part = self.0.get(index / PART_WORDS).and_then(OnceLock::get);
        part.map_or(0, |part| part[index % PART_WORDS].load(Ordering::Relaxed))
    }

    /// Whether a bit is set; false for a bit whose part has no memory yet.
    pub(super) fn is_set(&self, bit: u64) -> bool {
        self.word((bit / 64) as usize) >> (bit % 64) & 1 != 0
    }

    /// Clears a bit. Allocates nothing.
    pub(super) fn clear_bit(&self, bit: u64) {
        let (word, mask) = ((bit / 64) as usize, 1 << (bit % 64));
        if let Some(part) = self.0.get(word / PART_WORDS).and_then(OnceLock::get) {
            part[word % PART_WORDS].fetch_and(!mask, Ordering::Relaxed);
        }
    }

    /// Sets a bit, and allocates its part if it is the first one there. Returns whether it was not set before. Panics
    /// if the bit is beyond the bitmap.
    pub(super) fn set_bit(&self, bit: u64) -> bool {
        let (word, mask) = ((bit / 64) as usize, 1 << (bit % 64));
        let part = self.0[word / PART_WORDS]
            .get_or_init(|| Box::new([const { AtomicU64::new(0) }; PART_WORDS]));
        part[word % PART_WORDS].fetch_or(mask, Ordering::Relaxed) & mask == 0
    }
}
