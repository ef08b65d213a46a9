//! The objects of a heap, as bits: one for each 8 or 16 bytes says whether an object begins there, others what
//! is known of it. So a heap takes a fixed share of its size, however small its objects are.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Addresses of user space, in units of 2 MiB.
const UNITS: usize = 1 << (47 - UNIT_SHIFT);
const UNIT_SHIFT: u32 = 21;
/// The shift of a span that is one object.
const WHOLE: u32 = 63;

/// An object of the heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// What its owner may use.
    pub(crate) range: Range<u64>,
}

impl Object {
    /// In bytes.
    pub(crate) fn size(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Adjacent objects: each ends where the next one begins.
#[derive(Debug)]
pub(crate) struct Span {
    range: Range<u64>,
    /// Bytes at an object's end that belong to the next one's header.
    header: u64,
    /// Binary logarithm of the bytes for which a bit stands.
    shift: u32,
    starts: Vec<u64>,
    used: Vec<u64>,
    reached: Marks,
    scanned: Marks,
    /// A bit for each word of `starts` that is not 0.
    summary: Vec<u64>,
}

/// Bits that several threads set. Those of a part in which none is set take no memory.
#[derive(Debug)]
struct Marks(Vec<OnceLock<Box<[AtomicU64; PART]>>>);

/// Words of a part: 512 KiB of a heap with 16 bytes a bit.
const PART: usize = 512;

impl Marks {
    fn new(words: usize) -> Self {
        Self((0..words.div_ceil(PART)).map(|_| OnceLock::new()).collect())
    }

    fn word(&self, at: usize) -> u64 {
        let part = self.0[at / PART].get();
        part.map_or(0, |part| part[at % PART].load(Ordering::Relaxed))
    }

    fn has(&self, bit: u64) -> bool {
        self.word((bit / 64) as usize) >> (bit % 64) & 1 != 0
    }

    /// Whether the bit was not set before.
    fn set(&self, bit: u64) -> bool {
        let (word, mask) = ((bit / 64) as usize, 1 << (bit % 64));
        let part =
            self.0[word / PART].get_or_init(|| Box::new([const { AtomicU64::new(0) }; PART]));
        part[word % PART].fetch_or(mask, Ordering::Relaxed) & mask == 0
    }
}

/// All objects of a process.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    spans: Vec<Span>,
    /// A bit for each unit of 2 MiB with an object. Untouched pages of it take no memory.
    units: Vec<u64>,
}

impl Span {
    /// A span without objects yet. An object begins at a multiple of `granule` bytes from its start.
    pub(crate) fn new(range: Range<u64>, granule: u64, header: u64) -> Self {
        Self::with_shift(range, granule.trailing_zeros(), header)
    }

    /// One object.
    pub(crate) fn whole(range: Range<u64>) -> Self {
        let mut span = Self::with_shift(range, WHOLE, 0);
        span.begin(span.range.start, true);
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
            reached: Marks::new(words),
            scanned: Marks::new(words),
            summary: vec![0; words.div_ceil(64)],
        }
    }

    /// Its used objects.
    pub(crate) fn used(&self) -> impl Iterator<Item = Object> {
        self.select(|at| self.used[at])
    }

    /// The objects whose bits are set in words.
    fn select(&self, word: impl Fn(usize) -> u64) -> impl Iterator<Item = Object> {
        (0..self.starts.len()).flat_map(move |at| {
            ones(word(at)).map(move |bit| {
                let bit = at as u64 * 64 + bit;
                Object {
                    range: self.address(bit)..self.end(bit),
                }
            })
        })
    }

    /// An object begins there.
    pub(crate) fn begin(&mut self, address: u64, is_used: bool) {
        let (word, mask) = self.place(address);
        self.starts[word] |= mask;
        self.summary[word / 64] |= 1 << (word % 64);
        if is_used {
            self.used[word] |= mask;
        }
    }

    fn place(&self, address: u64) -> (usize, u64) {
        let bit = (address - self.range.start) >> self.shift;
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    /// The last start at or before a bit.
    fn start_before(&self, bit: u64) -> Option<u64> {
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
    fn end(&self, bit: u64) -> u64 {
        match self.start_after(bit) {
            Some(next) => self.address(next) - self.header,
            None => self.range.end,
        }
    }

    fn address(&self, bit: u64) -> u64 {
        self.range.start
            + if self.shift == WHOLE {
                0
            } else {
                bit << self.shift
            }
    }
}

fn is_set(bits: &[u64], bit: u64) -> bool {
    bits[(bit / 64) as usize] >> (bit % 64) & 1 != 0
}

impl Objects {
    /// Takes the spans of all heaps. Where two overlap, the first one wins.
    pub(crate) fn new(mut spans: Vec<Span>) -> Self {
        spans.sort_by_key(|span| span.range.start);
        let mut end = 0;
        spans.retain(|span| {
            let is_apart = span.range.start >= end;
            if is_apart {
                end = span.range.end;
            }
            is_apart
        });
        let mut units = vec![0; UNITS / 64];
        for span in &spans {
            for unit in span.range.start >> UNIT_SHIFT..=(span.range.end - 1) >> UNIT_SHIFT {
                if let Some(word) = units.get_mut((unit / 64) as usize) {
                    *word |= 1 << (unit % 64);
                }
            }
        }
        Self { spans, units }
    }

    /// Whether an address may lie in an object: quick, and mostly right.
    #[inline]
    pub(crate) fn may_hold(&self, address: u64) -> bool {
        let unit = address >> UNIT_SHIFT;
        (unit as usize) < UNITS && self.units[(unit / 64) as usize] >> (unit % 64) & 1 != 0
    }

    /// The used object in which an address lies, and its span and bit.
    fn used(&self, address: u64) -> Option<(&Span, u64)> {
        let at = self.spans.partition_point(|span| span.range.end <= address);
        let span = self
            .spans
            .get(at)
            .filter(|span| span.range.start <= address)?;
        let bit = (address - span.range.start) >> span.shift;
        let start = span.start_before(bit)?;
        if !is_set(&span.used, start) {
            return None;
        }
        // In the header of the next one.
        let is_last =
            span.header != 0 && (address - span.range.start) % (1 << span.shift) >= span.header;
        let is_header = is_last && (bit / 64) < span.starts.len() as u64 && span.is_start(bit + 1);
        (!is_header).then_some((span, start))
    }

    /// Marks the used object in which an address lies as reached; its first address where it was not before.
    pub(crate) fn reach(&self, address: u64) -> Option<u64> {
        let (span, bit) = self.used(address)?;
        if span.reached.has(bit) || !span.reached.set(bit) {
            return None;
        }
        Some(span.address(bit))
    }

    /// What is to be scanned of a reached object, once.
    pub(crate) fn scan(&self, start: u64) -> Option<Range<u64>> {
        let (span, bit) = self.used(start)?;
        span.scanned.set(bit);
        Some(span.address(bit)..span.end(bit))
    }

    /// The first addresses of objects that were reached and not scanned, from an address on.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u64> {
        self.spans.iter().flat_map(|span| {
            (0..span.starts.len()).flat_map(move |at| {
                let bits = span.reached.word(at) & !span.scanned.word(at);
                ones(bits).map(move |bit| span.address(at as u64 * 64 + bit))
            })
        })
    }

    /// The used objects that were not reached, by address.
    pub(crate) fn leaked(&self) -> impl Iterator<Item = Object> {
        self.spans
            .iter()
            .flat_map(|span| span.select(|at| span.used[at] & !span.reached.word(at)))
    }

    /// Whether the same object was not reached here either.
    pub(crate) fn is_leaked(&self, object: &Object) -> bool {
        self.used(object.range.start).is_some_and(|(span, bit)| {
            let range = span.address(bit)..span.end(bit);
            range == object.range && !span.reached.has(bit)
        })
    }

    /// The used object in which an address lies.
    pub(crate) fn object(&self, address: u64) -> Option<Object> {
        let (span, bit) = self.used(address)?;
        Some(Object {
            range: span.address(bit)..span.end(bit),
        })
    }

    /// These objects are reached, and are not to be searched.
    pub(crate) fn silence(&self, addresses: &[u64]) {
        for (span, bit) in addresses.iter().filter_map(|address| self.used(*address)) {
            span.reached.set(bit);
            span.scanned.set(bit);
        }
    }

    /// The spans, for more to be added.
    pub(crate) fn into_spans(self) -> Vec<Span> {
        self.spans
    }

    /// No object of these is used: they lie in a cache of the allocator's.
    pub(crate) fn free(&mut self, addresses: &[u64]) {
        for address in addresses {
            let at = self
                .spans
                .partition_point(|span| span.range.end <= *address);
            if let Some(span) = self.spans.get_mut(at)
                && span.range.start <= *address
            {
                let (word, mask) = span.place(*address);
                span.used[word] &= !mask;
            }
        }
    }

    /// The number of used objects.
    pub(crate) fn count(&self) -> u64 {
        let words = self.spans.iter().flat_map(|span| &span.used);
        words.map(|word| u64::from(word.count_ones())).sum()
    }
}

impl Span {
    fn is_start(&self, bit: u64) -> bool {
        self.starts
            .get((bit / 64) as usize)
            .is_some_and(|word| word >> (bit % 64) & 1 != 0)
    }
}

fn ones(mut bits: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| u64::from(bits.trailing_zeros()))?;
        bits &= bits - 1;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects at 0x1010, 0x1030, 0x1040 (free) and 0x1100 to 0x200000, as glibc has them; and one of 1 MiB.
    fn objects() -> Objects {
        let mut span = Span::new(0x1010..0x20_0000, 16, 8);
        for (address, is_used) in [
            (0x1010, true),
            (0x1030, true),
            (0x1040, false),
            (0x1100, true),
        ] {
            span.begin(address, is_used);
        }
        Objects::new(vec![Span::whole(0x7000_0010..0x7010_0000), span])
    }

    #[test]
    fn the_object_of_an_address() {
        let check = |address, expected: Option<u64>| {
            assert_eq!(objects().reach(address), expected, "{address:x}");
        };
        check(0x1010, Some(0x1010));
        check(0x1011, Some(0x1010));
        check(0x1027, Some(0x1010));
        check(0x1028, None);
        check(0x1030, Some(0x1030));
        check(0x1040, None);
        check(0x10f0, None);
        check(0x1100, Some(0x1100));
        check(0x1f_ffff, Some(0x1100));
        check(0x20_0000, None);
        check(0x100f, None);
        check(0x7000_000f, None);
        check(0x700f_ffff, Some(0x7000_0010));
        check(u64::MAX, None);
    }

    #[test]
    fn what_was_not_reached_is_leaked() {
        let objects = objects();
        assert!(
            objects.may_hold(0x7000_0010)
                && !objects.may_hold(0x6000_0000)
                && !objects.may_hold(u64::MAX)
        );
        assert_eq!(objects.reach(0x1031), Some(0x1030));
        assert_eq!(objects.reach(0x1031), None);
        assert_eq!(objects.waiting().collect::<Vec<_>>(), [0x1030]);
        assert_eq!(objects.scan(0x1030), Some(0x1030..0x1038));
        assert_eq!(objects.waiting().count(), 0);
        let leaked: Vec<_> = objects.leaked().map(|object| object.range).collect();
        assert_eq!(
            leaked,
            [0x1010..0x1028, 0x1100..0x20_0000, 0x7000_0010..0x7010_0000]
        );
        assert_eq!(objects.count(), 4);
        let other = self::objects();
        assert!(objects.leaked().all(|object| other.is_leaked(&object)));
        other.reach(0x1010);
        assert_eq!(
            objects
                .leaked()
                .filter(|object| other.is_leaked(object))
                .count(),
            2
        );
    }

    #[test]
    fn spans_that_overlap_are_one() {
        let objects = Objects::new(vec![
            Span::whole(0x1000..0x3000),
            Span::whole(0x2000..0x4000),
        ]);
        assert_eq!(objects.count(), 1);
    }
}
