//! Bits that several threads set.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Those of a part in which none is set take no memory.
#[derive(Debug)]
pub(super) struct AtomicBitmap(Vec<OnceLock<Box<[AtomicU64; PART]>>>);

/// Words of a part: 512 KiB of a heap with 16 bytes a bit.
const PART: usize = 512;

impl AtomicBitmap {
    pub(super) fn new(words: usize) -> Self {
        Self((0..words.div_ceil(PART)).map(|_| OnceLock::new()).collect())
    }

    /// Of which none is ever set.
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }

    pub(super) fn word(&self, at: usize) -> u64 {
        let part = self.0.get(at / PART).and_then(OnceLock::get);
        part.map_or(0, |part| part[at % PART].load(Ordering::Relaxed))
    }

    pub(super) fn has(&self, bit: u64) -> bool {
        self.word((bit / 64) as usize) >> (bit % 64) & 1 != 0
    }

    pub(super) fn clear(&self, bit: u64) {
        let (word, mask) = ((bit / 64) as usize, 1 << (bit % 64));
        if let Some(part) = self.0.get(word / PART).and_then(OnceLock::get) {
            part[word % PART].fetch_and(!mask, Ordering::Relaxed);
        }
    }

    /// Whether the bit was not set before.
    pub(super) fn set(&self, bit: u64) -> bool {
        let (word, mask) = ((bit / 64) as usize, 1 << (bit % 64));
        let part =
            self.0[word / PART].get_or_init(|| Box::new([const { AtomicU64::new(0) }; PART]));
        part[word % PART].fetch_or(mask, Ordering::Relaxed) & mask == 0
    }
}
