//! The objects of a heap, as bits: one for each 8 or 16 bytes says whether an object begins there, others what
//! is known of it. So a heap takes a fixed share of its size, however small its objects are.

mod atomic_bitmap;
mod object_index;
mod span;

use std::ops::Range;

use atomic_bitmap::AtomicBitmap;
pub(crate) use object_index::ObjectIndex;
pub(crate) use span::{LINKS, Span};
use span::{is_set, ones};

use crate::address_filter::AddressFilter;

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

/// All objects of a process.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    spans: Vec<Span>,
    /// Where there are any.
    units: AddressFilter,
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
        let units = AddressFilter::of(spans.iter().map(|span| &span.range));
        Self { spans, units }
    }

    /// Whether an address may lie in an object: quick, and mostly right.
    #[inline]
    pub(crate) fn may_contain(&self, address: u64) -> bool {
        self.units.has(address)
    }

    /// The used object in which an address lies, as its span's index and its bit.
    fn place(&self, address: u64) -> Option<(usize, u64)> {
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
        (!is_header).then_some((at, start))
    }

    fn used(&self, address: u64) -> Option<(&Span, u64)> {
        let (at, bit) = self.place(address)?;
        Some((&self.spans[at], bit))
    }

    /// A pointer to what begins there, of [`LINKS`] bytes, leads to no object from now on.
    pub(crate) fn set_gc_head(&self, links: u64) {
        if let Some((span, bit)) = self.used(links) {
            span.set_links(bit, links);
        }
    }

    /// Marks the used object to which a word points as reached; its first address where it was not before.
    pub(crate) fn mark(&self, address: u64) -> Option<u64> {
        let (span, bit) = self.used(address)?;
        if span.reached.has(bit) || span.is_in_gc_head(bit, address) || !span.reached.set(bit) {
            return None;
        }
        Some(span.address(bit))
    }

    /// The object that begins there counts as not reached again.
    pub(crate) fn unmark(&self, start: u64) {
        if let Some((span, bit)) = self.used(start) {
            span.reached.clear(bit);
        }
    }

    /// Where the object of Python's begins that its collector has in its list, in an object of the heap.
    pub(crate) fn python_object_in(&self, object: &Object) -> Option<u64> {
        let (span, bit) = self.used(object.range.start)?;
        span.after_gc_head(bit)
    }

    /// What is to be scanned of a reached object, once.
    pub(crate) fn mark_scanned(&self, start: u64) -> Option<Range<u64>> {
        let (span, bit) = self.used(start)?;
        span.scanned.set(bit);
        Some(span.address(bit)..span.end(bit))
    }

    /// The first addresses of objects that were reached and not scanned, from an address on.
    pub(crate) fn pending(&self) -> impl Iterator<Item = u64> {
        self.spans.iter().flat_map(|span| {
            (0..span.starts.len()).flat_map(move |at| {
                let bits = span.reached.word(at) & !span.scanned.word(at);
                ones(bits).map(move |bit| span.address(at as u64 * 64 + bit))
            })
        })
    }

    /// The used objects that were not reached, by address.
    pub(crate) fn unreachable(&self) -> impl Iterator<Item = Object> {
        self.spans
            .iter()
            .flat_map(|span| span.select(|at| span.used[at] & !span.reached.word(at)))
    }

    /// Keeps what was not reached, and of the rest as little as it takes to know it again.
    pub(crate) fn retain_unreachable(mut self) -> Self {
        for span in &mut self.spans {
            for (at, used) in span.used.iter_mut().enumerate() {
                *used &= !span.reached.word(at);
            }
            (span.reached, span.scanned) = (AtomicBitmap::none(), AtomicBitmap::none());
            span.clear_gc_heads();
        }
        self.spans
            .retain(|span| span.used.iter().any(|used| *used != 0));
        self
    }

    /// What so many bits for each place take, in bytes.
    pub(crate) fn memory_of(&self, bits: u64) -> u64 {
        let words = self.spans.iter().map(|span| span.starts.len() as u64);
        words.sum::<u64>() * bits * 8
    }

    /// The used object in which an address lies.
    pub(crate) fn object(&self, address: u64) -> Option<Object> {
        let (span, bit) = self.used(address)?;
        Some(span.object(bit))
    }

    /// These objects are reached, and are not to be searched.
    pub(crate) fn mark_without_scan(&self, addresses: &[u64]) {
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
    pub(crate) fn exclude_cached(&mut self, addresses: &[u64]) {
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

    /// All used objects, by address.
    pub(crate) fn all(&self) -> impl Iterator<Item = Object> {
        self.spans.iter().flat_map(Span::used)
    }

    /// The number of used objects.
    pub(crate) fn count(&self) -> u64 {
        let words = self.spans.iter().flat_map(|span| &span.used);
        words.map(|word| u64::from(word.count_ones())).sum()
    }
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
            span.add_object(address, is_used);
        }
        Objects::new(vec![Span::whole(0x7000_0010..0x7010_0000), span])
    }

    #[test]
    fn the_object_of_an_address() {
        let check = |address, expected: Option<u64>| {
            assert_eq!(objects().mark(address), expected, "{address:x}");
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
            objects.may_contain(0x7000_0010)
                && !objects.may_contain(0x6000_0000)
                && !objects.may_contain(u64::MAX)
        );
        assert_eq!(objects.mark(0x1031), Some(0x1030));
        assert_eq!(objects.mark(0x1031), None);
        assert_eq!(objects.pending().collect::<Vec<_>>(), [0x1030]);
        assert_eq!(objects.mark_scanned(0x1030), Some(0x1030..0x1038));
        assert_eq!(objects.pending().count(), 0);
        let leaked: Vec<_> = objects.unreachable().map(|object| object.range).collect();
        assert_eq!(
            leaked,
            [0x1010..0x1028, 0x1100..0x20_0000, 0x7000_0010..0x7010_0000]
        );
        assert_eq!(objects.count(), 4);
        let before: Vec<_> = objects.unreachable().collect();
        assert!(objects.retain_unreachable().unreachable().eq(before));
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
