//! Object of the heap, and its position in the bitmaps of its span.

use std::ops::Range;

/// Object of the heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// Addresses that its user may use.
    pub(crate) range: Range<u64>,
}

impl Object {
    /// Bytes that the object's user may use, without headers.
    pub(crate) fn size(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Position of a used object in the bitmaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectPosition {
    pub(crate) span: usize,
    /// Its bit in the span's bitmaps.
    pub(crate) bit: u64,
    /// Number of used objects that begin before it in its word of the bitmaps.
    pub(crate) index_in_word: u32,
}

impl ObjectPosition {
    /// Index of the word of the span's bitmaps in which the object begins.
    pub(crate) fn word_index(self) -> usize {
        (self.bit / 64) as usize
    }
}
