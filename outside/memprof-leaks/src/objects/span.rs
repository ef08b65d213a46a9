//! Span: a part of a heap with adjacent objects.

use std::ops::Range;
use std::sync::OnceLock;

use super::Object;
use super::atomic_bitmap::AtomicBitmap;

/// Shift of a span with one object: all its addresses have the bit 0.
const WHOLE_SHIFT: u32 = 63;
/// Bytes of a `PyGC_Head`, two pointers of Python's collector in front of an object.
pub(crate) const GC_HEAD_SIZE: u64 = 16;
/// Multiples of [`GC_HEAD_SIZE`] at which a `PyGC_Head` may begin in an object: behind the data of up to two debug
/// hooks, and behind two pointers that precede it.
pub(crate) const GC_HEAD_PLACES: usize = 4;

/// Mark of an object in a search.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mark {
    Reached,
    Scanned,
}

/// Bits of 64 possible objects. Beside each other, because a search reads both.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObjectBits {
    pub(super) starts: u64,
    pub(super) used: u64,
}

/// Adjacent objects, each of which ends where the next one begins, and their bitmaps.
#[derive(Debug)]
pub(crate) struct Span {
    pub(super) range: Range<u64>,
    /// Bytes at an object's end that belong to the next one's header.
    pub(super) header: u64,
    /// log2 of the bytes per bit.
    pub(super) shift: u32,
    pub(super) words: Vec<ObjectBits>,
    /// For each of `words` one word of [`Mark::Reached`] and one of [`Mark::Scanned`]: a search reads both.
    marks: AtomicBitmap,
    /// Starts of objects to which words point, if objects have no headers; else empty.
    pointed: AtomicBitmap,
    /// For each place of a `PyGC_Head`, the objects that have one there. Allocated when the first one is recorded.
    gc_heads: OnceLock<Box<[AtomicBitmap; GC_HEAD_PLACES]>>,
    /// One bit for each of `words` in which an object begins.
    summary: Vec<u64>,
}

impl Span {
    /// Bytes that a span of `length` bytes needs, with its bitmaps, if objects begin at multiples of `granule` bytes.
    /// `header` is the number of bytes at an object's end that belong to the next one's header.
    pub(crate) fn memory_size(length: u64, granule: u64, header: u64) -> u64 {
        // For 64 granules: `starts`, `used`, and two of `marks`; and `pointed` where objects have no headers.
        let words = if header == 0 { 5 } else { 4 };
        size_of::<Self>() as u64 + (length / granule / 64 + 1) * 8 * words
    }

    /// Creates a span without objects. Those that are added must begin at multiples of `granule` bytes, a power of 2,
    /// from the span's start. `header` is the number of bytes at an object's end that belong to the next one's header.
    pub(crate) fn new(range: Range<u64>, granule: u64, header: u64) -> Self {
        Self::with_shift(range, granule.trailing_zeros(), header)
    }

    /// Creates a span of one used object, which has one bit however large it is.
    pub(crate) fn single_object(range: Range<u64>) -> Self {
        let mut span = Self::with_shift(range, WHOLE_SHIFT, 0);
        span.add_object(span.range.start, true);
        span
    }

    /// Span without objects, with `1 << shift` bytes per bit. `header` is the number of bytes at an object's end that
    /// belong to the next one's header.
    fn with_shift(range: Range<u64>, shift: u32, header: u64) -> Self {
        // One more bit for the span's end, because a pointer to it can be recorded.
        let bits = ((range.end - range.start) >> shift) + 1;
        let words = bits.div_ceil(64) as usize;
        Self {
            range,
            header,
            shift,
            words: vec![ObjectBits::default(); words],
            marks: AtomicBitmap::new(2 * words),
            pointed: match is_headerless(header, shift) {
                true => AtomicBitmap::new(words),
                false => AtomicBitmap::empty(),
            },
            gc_heads: OnceLock::new(),
            summary: vec![0; words.div_ceil(64)],
        }
    }

    /// Addresses of the span.
    pub(crate) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Whether its objects have headers, as those of glibc's chunks.
    pub(crate) fn has_headers(&self) -> bool {
        self.header != 0
    }

    /// All objects, by address, and whether each is used.
    pub(crate) fn all_objects(&self) -> impl Iterator<Item = (Object, bool)> {
        self.words
            .iter()
            .enumerate()
            .flat_map(move |(index, word)| {
                indices_of_set_bits(word.starts).map(move |bit| {
                    let is_used = word.used >> bit & 1 != 0;
                    (self.object_at_bit(index as u64 * 64 + bit), is_used)
                })
            })
    }

    /// Ends the span at an address behind all its objects. Drops all marks, so that the span must not have been
    /// searched yet.
    pub(crate) fn truncate(&mut self, end: u64) {
        let words = (((end - self.range.start) >> self.shift) + 1).div_ceil(64) as usize;
        self.range.end = end;
        self.words.truncate(words);
        self.summary.truncate(words.div_ceil(64));
        self.marks = AtomicBitmap::new(2 * words);
    }

    /// Used objects, by address.
    pub(crate) fn used_objects(&self) -> impl Iterator<Item = Object> {
        self.objects_in_bitmap(|index| self.words[index].used)
    }

    /// Objects whose bits are set in a bitmap of the span, by address. `word` returns the bitmap's word with a given
    /// index.
    pub(super) fn objects_in_bitmap(
        &self,
        word: impl Fn(usize) -> u64,
    ) -> impl Iterator<Item = Object> {
        (0..self.words.len()).flat_map(move |index| {
            indices_of_set_bits(word(index))
                .map(move |bit| self.object_at_bit(index as u64 * 64 + bit))
        })
    }

    /// Adds an object that begins at an address. It is free unless `is_used`.
    pub(crate) fn add_object(&mut self, address: u64, is_used: bool) {
        let (word, mask) = self.word_and_mask(address);
        self.words[word].starts |= mask;
        self.summary[word / 64] |= 1 << (word % 64);
        if is_used {
            self.words[word].used |= mask;
        }
    }

    /// Returns the bits of a mark for the objects whose bits are in the word with index `word`.
    pub(super) fn word_of_mark(&self, mark: Mark, word: usize) -> u64 {
        self.marks.word(2 * word + mark as usize)
    }

    /// Whether the object that begins at a bit has a mark.
    #[inline]
    pub(super) fn has_mark(&self, mark: Mark, bit: u64) -> bool {
        self.marks.is_set(bit_of_mark(mark, bit))
    }

    /// Marks the object that begins at a bit. Returns whether it had no such mark before.
    #[inline]
    pub(super) fn set_mark(&self, mark: Mark, bit: u64) -> bool {
        self.marks.set_bit(bit_of_mark(mark, bit))
    }

    /// Clears a mark of the object that begins at a bit.
    pub(super) fn clear_mark(&self, mark: Mark, bit: u64) {
        self.marks.clear_bit(bit_of_mark(mark, bit));
    }

    /// Forgets all marks and releases the memory for them. None may be set later.
    pub(super) fn clear_marks(&mut self) {
        self.marks = AtomicBitmap::empty();
    }

    /// Records a `PyGC_Head` at an address, in the object that begins at a bit. Ignores it if it is at none of the
    /// [`GC_HEAD_PLACES`].
    pub(super) fn set_gc_head(&self, bit: u64, address: u64) {
        let words = self.words.len();
        let parts = self
            .gc_heads
            .get_or_init(|| Box::new(std::array::from_fn(|_| AtomicBitmap::new(words))));
        if let Some(part) = parts.get(self.gc_head_index(bit, address)) {
            part.set_bit(bit);
        }
    }

    /// Whether the `PyGC_Head` of the object that begins at `bit` contains `address`, an address of that object.
    #[inline]
    pub(super) fn is_in_gc_head(&self, bit: u64, address: u64) -> bool {
        let parts = self.gc_heads.get();
        let part = parts.and_then(|parts| parts.get(self.gc_head_index(bit, address)));
        part.is_some_and(|part| part.is_set(bit))
    }

    /// Address after the `PyGC_Head` of the object that begins at a bit. `None` if the object has no such head.
    pub(super) fn after_gc_head(&self, bit: u64) -> Option<u64> {
        let part = self
            .gc_heads
            .get()?
            .iter()
            .position(|part| part.is_set(bit))?;
        Some(self.address_of_bit(bit) + (part as u64 + 1) * GC_HEAD_SIZE)
    }

    /// Index in `gc_heads` of an address in the object that begins at a bit.
    fn gc_head_index(&self, bit: u64, address: u64) -> usize {
        ((address - self.address_of_bit(bit)) / GC_HEAD_SIZE) as usize
    }

    /// Forgets all `PyGC_Head`s and releases the memory for them.
    pub(super) fn clear_gc_heads(&mut self) {
        self.gc_heads = OnceLock::new();
    }

    /// Whether some object has a `PyGC_Head`.
    pub(super) fn has_gc_heads(&self) -> bool {
        self.gc_heads.get().is_some()
    }

    /// log2 of the alignment of the starts of all objects, in bytes.
    pub(super) fn start_shift(&self) -> u32 {
        self.shift.min(self.range.start.trailing_zeros())
    }

    /// Whether each object begins right where the one before ends.
    pub(super) fn is_headerless(&self) -> bool {
        is_headerless(self.header, self.shift)
    }

    /// Forgets the recorded pointers and releases the memory for them.
    pub(super) fn clear_recorded_pointers(&mut self) {
        self.pointed = AtomicBitmap::empty();
    }

    /// Records a pointer to the start of an object or to the span's end, if objects have no headers.
    #[inline]
    pub(super) fn record_pointer_to_start(&self, address: u64) {
        // The check avoids an atomic write for each further pointer.
        if let Some(bit) = self.object_start_bit(address)
            && !self.pointed.is_set(bit)
        {
            self.pointed.set_bit(bit);
        }
    }

    /// Whether a pointer to the address would be recorded, and none is recorded yet.
    pub(super) fn is_unrecorded_start(&self, address: u64) -> bool {
        self.object_start_bit(address)
            .is_some_and(|bit| !self.pointed.is_set(bit))
    }

    /// Whether a pointer to that address was recorded.
    pub(super) fn has_pointer_to_start(&self, address: u64) -> bool {
        self.object_start_bit(address)
            .is_some_and(|bit| self.pointed.is_set(bit))
    }

    /// Bit of an object's start or of the span's end, if objects have no headers. `None` for other addresses.
    #[inline]
    fn object_start_bit(&self, address: u64) -> Option<u64> {
        let is_inside = self.range.start <= address && address <= self.range.end;
        if !self.is_headerless() || !is_inside {
            return None;
        }
        let offset = address - self.range.start;
        let bit = offset >> self.shift;
        let is_start = offset.is_multiple_of(1 << self.shift)
            && (address == self.range.end || self.is_start(bit));
        is_start.then_some(bit)
    }

    /// Index of the word, and mask in it, of the bit for an address.
    pub(super) fn word_and_mask(&self, address: u64) -> (usize, u64) {
        let bit = (address - self.range.start) >> self.shift;
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    /// Bit of the last object that begins at or before a bit. `None` if there is none.
    pub(super) fn start_before(&self, bit: u64) -> Option<u64> {
        let word = (bit / 64) as usize;
        let bits = self.words[word].starts & (u64::MAX >> (63 - bit % 64));
        if bits != 0 {
            return Some(word as u64 * 64 + 63 - u64::from(bits.leading_zeros()));
        }
        let mut index = word / 64;
        let mut summary = self.summary[index] & ((1 << (word % 64)) - 1);
        while summary == 0 {
            index = index.checked_sub(1)?;
            summary = self.summary[index];
        }
        let word = index * 64 + 63 - summary.leading_zeros() as usize;
        Some(word as u64 * 64 + 63 - u64::from(self.words[word].starts.leading_zeros()))
    }

    /// Bit of the first object that begins after a bit. `None` if there is none.
    fn start_after(&self, bit: u64) -> Option<u64> {
        let word = (bit / 64) as usize;
        let bits = self.words[word].starts & (u64::MAX << (bit % 64)) & !(1 << (bit % 64));
        if bits != 0 {
            return Some(word as u64 * 64 + u64::from(bits.trailing_zeros()));
        }
        let mut index = word / 64;
        let mut summary = self.summary[index] & (u64::MAX << (word % 64)) & !(1 << (word % 64));
        while summary == 0 {
            index += 1;
            summary = *self.summary.get(index)?;
        }
        let word = index * 64 + summary.trailing_zeros() as usize;
        Some(word as u64 * 64 + u64::from(self.words[word].starts.trailing_zeros()))
    }

    /// Address of the end of the object that begins at a bit: up to the next object's header, or the span's end.
    pub(super) fn object_end(&self, bit: u64) -> u64 {
        match self.start_after(bit) {
            Some(next) => self.address_of_bit(next) - self.header,
            None => self.range.end,
        }
    }

    /// Object that begins at a bit, up to the next object's header or the span's end.
    pub(super) fn object_at_bit(&self, bit: u64) -> Object {
        Object {
            range: self.address_of_bit(bit)..self.object_end(bit),
        }
    }

    /// Address for which a bit stands.
    pub(super) fn address_of_bit(&self, bit: u64) -> u64 {
        self.range.start
            + if self.shift == WHOLE_SHIFT {
                0
            } else {
                bit << self.shift
            }
    }

    /// Whether the object that begins at a bit is used.
    #[inline]
    pub(super) fn is_used(&self, bit: u64) -> bool {
        self.words[(bit / 64) as usize].used >> (bit % 64) & 1 != 0
    }

    /// Number of used objects that begin before a bit in the same word.
    #[inline]
    pub(super) fn used_count_before(&self, bit: u64) -> u32 {
        let below = self.words[(bit / 64) as usize].used & ((1 << (bit % 64)) - 1);
        below.count_ones()
    }

    /// Whether an object begins at a bit.
    #[inline]
    pub(super) fn is_start(&self, bit: u64) -> bool {
        self.words
            .get((bit / 64) as usize)
            .is_some_and(|word| word.starts >> (bit % 64) & 1 != 0)
    }
}

/// Bit of a mark, for the object whose bit is `bit`, in the bitmap of all marks.
fn bit_of_mark(mark: Mark, bit: u64) -> u64 {
    (2 * (bit / 64) + mark as u64) * 64 + bit % 64
}

/// Whether each object of a span with this header and shift begins where the one before ends. False for a span of one
/// object.
fn is_headerless(header: u64, shift: u32) -> bool {
    header == 0 && shift != WHOLE_SHIFT
}

/// Indices of the set bits, from the lowest.
pub(super) fn indices_of_set_bits(mut bits: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| u64::from(bits.trailing_zeros()))?;
        bits &= bits - 1;
        Some(bit)
    })
}
