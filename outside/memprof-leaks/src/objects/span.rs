//! Adjacent objects.

use std::ops::Range;
use std::sync::OnceLock;

use super::Object;
use super::atomic_bitmap::AtomicBitmap;

/// The shift of a span that is one object.
const WHOLE: u32 = 63;
/// What Python's collector has in an object: two pointers, in bytes.
pub(crate) const LINKS: u64 = 16;

/// Adjacent objects: each ends where the next one begins.
#[derive(Debug)]
pub(crate) struct Span {
    pub(super) range: Range<u64>,
    /// Bytes at an object's end that belong to the next one's header.
    pub(super) header: u64,
    /// Binary logarithm of the bytes for which a bit stands.
    pub(super) shift: u32,
    pub(super) starts: Vec<u64>,
    pub(super) used: Vec<u64>,
    pub(super) reached: AtomicBitmap,
    pub(super) scanned: AtomicBitmap,
    /// Objects whose first [`LINKS`] bytes lead nowhere, and those whose next ones do not, where there are any.
    links: OnceLock<Box<[AtomicBitmap; 2]>>,
    /// A bit for each word of `starts` that is not 0.
    summary: Vec<u64>,
}

impl Span {
    /// What a span takes of memory in the end, in bytes: of so many bytes, with an object at each multiple of
    /// `granule` at the most.
    pub(crate) fn memory(length: u64, granule: u64) -> u64 {
        const WORDS: u64 = 4;
        size_of::<Self>() as u64 + (length / granule / 64 + 1) * 8 * WORDS
    }

    /// A span without objects yet. An object begins at a multiple of `granule` bytes from its start.
    pub(crate) fn new(range: Range<u64>, granule: u64, header: u64) -> Self {
        Self::with_shift(range, granule.trailing_zeros(), header)
    }

    /// One object.
    pub(crate) fn whole(range: Range<u64>) -> Self {
        let mut span = Self::with_shift(range, WHOLE, 0);
        span.add_object(span.range.start, true);
        span
    }

    fn with_shift(range: Range<u64>, shift: u32, header: u64) -> Self {
        let bits = ((range.end - range.start) >> shift) + 1;
        let words = bits.div_ceil(64) as usize;
        Self {
            range,
            header,
            shift,
            starts: vec![0; words],
            used: vec![0; words],
            reached: AtomicBitmap::new(words),
            scanned: AtomicBitmap::new(words),
            links: OnceLock::new(),
            summary: vec![0; words.div_ceil(64)],
        }
    }

    /// Its used objects.
    pub(crate) fn used(&self) -> impl Iterator<Item = Object> {
        self.select(|at| self.used[at])
    }

    /// The objects whose bits are set in words.
    pub(super) fn select(&self, word: impl Fn(usize) -> u64) -> impl Iterator<Item = Object> {
        (0..self.starts.len())
            .flat_map(move |at| ones(word(at)).map(move |bit| self.object(at as u64 * 64 + bit)))
    }

    /// An object begins there.
    pub(crate) fn add_object(&mut self, address: u64, is_used: bool) {
        let (word, mask) = self.place(address);
        self.starts[word] |= mask;
        self.summary[word / 64] |= 1 << (word % 64);
        if is_used {
            self.used[word] |= mask;
        }
    }

    /// What begins there leads nowhere, in the object that begins at a bit.
    pub(super) fn set_links(&self, bit: u64, links: u64) {
        let words = self.starts.len();
        let parts = self
            .links
            .get_or_init(|| Box::new([AtomicBitmap::new(words), AtomicBitmap::new(words)]));
        if let Some(part) = parts.get(self.part(bit, links)) {
            part.set(bit);
        }
    }

    /// Whether an address, in the object that begins at a bit, leads nowhere.
    #[inline]
    pub(super) fn is_in_gc_head(&self, bit: u64, address: u64) -> bool {
        let parts = self.links.get();
        let part = parts.and_then(|parts| parts.get(self.part(bit, address)));
        part.is_some_and(|part| part.has(bit))
    }

    /// The first address behind the links of the object that begins at a bit, where it has them.
    pub(super) fn after_gc_head(&self, bit: u64) -> Option<u64> {
        let part = self.links.get()?.iter().position(|part| part.has(bit))?;
        Some(self.address(bit) + (part as u64 + 1) * LINKS)
    }

    fn part(&self, bit: u64, address: u64) -> usize {
        ((address - self.address(bit)) / LINKS) as usize
    }

    pub(super) fn clear_gc_heads(&mut self) {
        self.links = OnceLock::new();
    }

    pub(super) fn place(&self, address: u64) -> (usize, u64) {
        let bit = (address - self.range.start) >> self.shift;
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    /// The last start at or before a bit.
    pub(super) fn start_before(&self, bit: u64) -> Option<u64> {
        let word = (bit / 64) as usize;
        let here = self.starts[word] & (u64::MAX >> (63 - bit % 64));
        if here != 0 {
            return Some(word as u64 * 64 + 63 - u64::from(here.leading_zeros()));
        }
        let mut at = word / 64;
        let mut summary = self.summary[at] & ((1 << (word % 64)) - 1);
        while summary == 0 {
            at = at.checked_sub(1)?;
            summary = self.summary[at];
        }
        let word = at * 64 + 63 - summary.leading_zeros() as usize;
        Some(word as u64 * 64 + 63 - u64::from(self.starts[word].leading_zeros()))
    }

    /// The first start behind a bit.
    fn start_after(&self, bit: u64) -> Option<u64> {
        let word = (bit / 64) as usize;
        let here = self.starts[word] & (u64::MAX << (bit % 64)) & !(1 << (bit % 64));
        if here != 0 {
            return Some(word as u64 * 64 + u64::from(here.trailing_zeros()));
        }
        let mut at = word / 64;
        let mut summary = self.summary[at] & (u64::MAX << (word % 64)) & !(1 << (word % 64));
        while summary == 0 {
            at += 1;
            summary = *self.summary.get(at)?;
        }
        let word = at * 64 + summary.trailing_zeros() as usize;
        Some(word as u64 * 64 + u64::from(self.starts[word].trailing_zeros()))
    }

    /// Where the object that begins at a bit ends.
    pub(super) fn end(&self, bit: u64) -> u64 {
        match self.start_after(bit) {
            Some(next) => self.address(next) - self.header,
            None => self.range.end,
        }
    }

    /// The object that begins at a bit.
    pub(super) fn object(&self, bit: u64) -> Object {
        Object {
            range: self.address(bit)..self.end(bit),
        }
    }

    pub(super) fn address(&self, bit: u64) -> u64 {
        self.range.start
            + if self.shift == WHOLE {
                0
            } else {
                bit << self.shift
            }
    }

    pub(super) fn is_start(&self, bit: u64) -> bool {
        self.starts
            .get((bit / 64) as usize)
            .is_some_and(|word| word >> (bit % 64) & 1 != 0)
    }
}

pub(super) fn is_set(bits: &[u64], bit: u64) -> bool {
    bits[(bit / 64) as usize] >> (bit % 64) & 1 != 0
}

/// The numbers of the bits that are set.
pub(super) fn ones(mut bits: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| u64::from(bits.trailing_zeros()))?;
        bits &= bits - 1;
        Some(bit)
    })
}
