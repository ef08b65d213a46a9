//! Objects of a heap, as bitmaps: one bit for each 8 or 16 bytes says whether an object begins there, other
//! bits hold its state. So the memory for a heap's objects is a fixed share of its size, however small they
//! are.

mod atomic_bitmap;
mod link;
mod object;
mod object_index;
mod span;

use std::ops::Range;

pub(crate) use object::{Object, ObjectPosition};
pub(crate) use object_index::ObjectIndex;
pub(crate) use span::{GC_HEAD_PLACES, GC_HEAD_SIZE, Span};
use span::{Mark, indices_of_set_bits};

use crate::address_filter::AddressFilter;
use crate::snapshot_memory::CachedReader;

/// Largest size of an array without elements, in bytes: its element count, padded to the alignment of the elements.
const MAX_COOKIE_SIZE: u64 = 64;

/// All objects of a process.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    spans: Vec<Span>,
    /// Filter of the spans' addresses.
    units: AddressFilter,
    /// Whether a span contains objects without headers.
    has_headerless: bool,
}

impl Objects {
    /// Combines the spans of all heaps. If two overlap, keeps the one that starts first.
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
        let units = AddressFilter::new(spans.iter().map(|span| &span.range));
        let has_headerless = spans.iter().any(Span::is_headerless);
        Self {
            spans,
            units,
            has_headerless,
        }
    }

    /// Returns false only if the address is in no span. Fast.
    #[inline]
    pub(crate) fn may_contain(&self, address: u64) -> bool {
        self.units.may_contain(address)
    }

    /// Finds the used object that contains an address. A pointer to an object's end also counts, if the next object has
    /// a header. Returns the index of the object's span and its bit. `None` if the address is in no used object.
    fn locate_used_object(&self, address: u64) -> Option<(usize, u64)> {
        let at = self.span_index(address)?;
        let span = &self.spans[at];
        let bit = (address - span.range.start) >> span.shift;
        let start = span.start_before(bit)?;
        if !span.is_used(start) {
            return None;
        }
        // An address inside the next object's header belongs to no object.
        let is_last =
            span.header != 0 && (address - span.range.start) % (1 << span.shift) > span.header;
        let is_header = is_last && (bit / 64) < span.words.len() as u64 && span.is_start(bit + 1);
        (!is_header).then_some((at, start))
    }

    /// Finds the used object that contains an address. Returns the object's span and its bit there. `None` if the
    /// address is in no used object.
    fn used_object(&self, address: u64) -> Option<(&Span, u64)> {
        let (at, bit) = self.locate_used_object(address)?;
        Some((&self.spans[at], bit))
    }

    /// Records that Python's `PyGC_Head`, [`GC_HEAD_SIZE`] bytes, is at an address: pointers to it do not
    /// mark the object around it.
    pub(crate) fn set_gc_head(&self, address: u64) {
        if let Some((span, bit)) = self.used_object(address) {
            span.set_gc_head(bit, address);
        }
    }

    /// Marks the used object to which a word points. Returns the object's start. `None` if there is no such object, it
    /// was marked before, or the word points to its `PyGC_Head`. Also records a word that points to the start of an
    /// object.
    pub(crate) fn mark_target(&self, address: u64) -> Option<u64> {
        self.record_pointer_to_start(address);
        let (span, bit) = self.used_object(address)?;
        // The check of the mark avoids an atomic write for objects that are marked already.
        if span.has_mark(Mark::Reached, bit)
            || span.is_in_gc_head(bit, address)
            || !span.set_mark(Mark::Reached, bit)
        {
            return None;
        }
        Some(span.address_of_bit(bit))
    }

    /// Records a pointer to the start of an object, used or free. If objects have no headers, such a pointer may also
    /// be one to the end of the object before, see [`Self::mark_empty_arrays`].
    #[inline]
    fn record_pointer_to_start(&self, address: u64) {
        if !self.has_headerless {
            return;
        }
        let at = self.spans.partition_point(|span| span.range.end < address);
        let spans = self.spans[at..]
            .iter()
            .take_while(|span| span.range.start <= address);
        spans.for_each(|span| span.record_pointer_to_start(address));
    }

    /// Whether [`record_pointer_to_start`](Self::record_pointer_to_start) would record a pointer that is not recorded
    /// yet.
    fn is_unrecorded_start(&self, address: u64) -> bool {
        let at = self.spans.partition_point(|span| span.range.end < address);
        let mut spans = self.spans[at..]
            .iter()
            .take_while(|span| span.range.start <= address);
        self.has_headerless && spans.any(|span| span.is_unrecorded_start(address))
    }

    /// Marks unreachable arrays without elements, `new T[0]` in C++. Such an object ends with the element count, 0, and
    /// the only pointer to it is to its end.
    ///
    /// If objects have no headers, that end is also the start of the next object. Pointers to the ends of other objects
    /// hold nothing, because most are to the next object's start. `LeakSanitizer` treats both alike.
    pub(crate) fn mark_empty_arrays(&self, memory: &mut CachedReader<'_>) {
        let is_empty_array = |object: &Object| {
            object.size() <= MAX_COOKIE_SIZE
                && self
                    .spans
                    .iter()
                    .any(|span| span.has_pointer_to_start(object.range.end))
        };
        let candidates: Vec<_> = self.unreachable().filter(is_empty_array).collect();
        for object in candidates {
            if memory.read_word(object.range.end - 8) == Some(0) {
                self.mark_target(object.range.start);
            }
        }
    }

    /// Clears the mark of the used object that contains `start`. Does nothing if there is none.
    pub(crate) fn unmark(&self, start: u64) {
        if let Some((span, bit)) = self.used_object(start) {
            span.clear_mark(Mark::Reached, bit);
        }
    }

    /// Start of the Python object inside an object of the heap, after the `PyGC_Head`. `None` if no such head was
    /// recorded.
    pub(crate) fn python_object_in(&self, object: &Object) -> Option<u64> {
        let (span, bit) = self.used_object(object.range.start)?;
        span.after_gc_head(bit)
    }

    /// Marks an object as scanned, and returns its range. `None` if no used object is at `start`.
    pub(crate) fn mark_scanned(&self, start: u64) -> Option<Range<u64>> {
        let (span, bit) = self.used_object(start)?;
        span.set_mark(Mark::Scanned, bit);
        Some(span.address_of_bit(bit)..span.object_end(bit))
    }

    /// Starts of objects that are marked but not scanned, by address.
    pub(crate) fn marked_unscanned_starts(&self) -> impl Iterator<Item = u64> {
        self.spans.iter().flat_map(|span| {
            (0..span.words.len()).flat_map(move |index| {
                let bits = span.word_of_mark(Mark::Reached, index)
                    & !span.word_of_mark(Mark::Scanned, index);
                indices_of_set_bits(bits)
                    .map(move |bit| span.address_of_bit(index as u64 * 64 + bit))
            })
        })
    }

    /// Number of words of each span's bitmaps.
    pub(crate) fn word_counts(&self) -> impl Iterator<Item = usize> {
        self.spans.iter().map(|span| span.words.len())
    }

    /// Used objects that begin in some words of a span's bitmaps, by address.
    pub(crate) fn used_objects_in(
        &self,
        span: usize,
        words: Range<usize>,
    ) -> impl Iterator<Item = (ObjectPosition, Object)> {
        let own = &self.spans[span];
        words.flat_map(move |word| {
            indices_of_set_bits(own.words[word].used)
                .zip(0..)
                .map(move |(bit, index)| {
                    let position = ObjectPosition {
                        span,
                        bit: word as u64 * 64 + bit,
                        index_in_word: index,
                    };
                    (position, own.object_at_bit(position.bit))
                })
        })
    }

    /// Position of the used object that begins at `start`. `None` if it is marked as scanned, or if `start` is in no
    /// span.
    #[inline]
    pub(crate) fn unscanned_position(&self, start: u64) -> Option<ObjectPosition> {
        let (span, bit) = self.bit_of_start(start)?;
        let own = &self.spans[span];
        (!own.has_mark(Mark::Scanned, bit)).then(|| ObjectPosition {
            span,
            bit,
            index_in_word: own.used_count_before(bit),
        })
    }

    /// Marks an object as scanned. Returns whether it was not marked so before.
    #[inline]
    pub(crate) fn begin_scan(&self, position: ObjectPosition) -> bool {
        self.spans[position.span].set_mark(Mark::Scanned, position.bit)
    }

    /// Clears the mark of [`begin_scan`](Self::begin_scan), so that the object is pending again.
    pub(crate) fn cancel_scan(&self, position: ObjectPosition) {
        self.spans[position.span].clear_mark(Mark::Scanned, position.bit);
    }

    /// Index of the span and bit of the object that begins at `start`, without a check that one does. `None` if `start`
    /// is in no span.
    #[inline]
    fn bit_of_start(&self, start: u64) -> Option<(usize, u64)> {
        let span = self.span_index(start)?;
        let own = &self.spans[span];
        Some((span, (start - own.range.start) >> own.shift))
    }

    /// Index of the span that contains an address. `None` if there is none.
    #[inline]
    fn span_index(&self, address: u64) -> Option<usize> {
        let at = self.spans.partition_point(|span| span.range.end <= address);
        (self.spans.get(at)?.range.start <= address).then_some(at)
    }

    /// Returns whether an object is marked as reachable, and whether it is marked as scanned.
    #[inline]
    pub(crate) fn marks_of_object(&self, position: ObjectPosition) -> (bool, bool) {
        let span = &self.spans[position.span];
        let has = |mark| span.has_mark(mark, position.bit);
        (has(Mark::Reached), has(Mark::Scanned))
    }

    /// Number of used objects that are not marked.
    pub(crate) fn unreachable_count(&self) -> u64 {
        let unmarked = self.spans.iter().flat_map(|span| {
            let words = span.words.iter().enumerate();
            words.map(|(index, word)| word.used & !span.word_of_mark(Mark::Reached, index))
        });
        unmarked.map(|word| u64::from(word.count_ones())).sum()
    }

    /// Used objects that are marked, by address.
    pub(crate) fn reachable(&self) -> impl Iterator<Item = Object> {
        self.spans.iter().flat_map(|span| {
            span.objects_in_bitmap(|index| {
                span.words[index].used & span.word_of_mark(Mark::Reached, index)
            })
        })
    }

    /// Start of the used object that contains an address and is not marked. `None` if there is none.
    pub(crate) fn unmarked_start(&self, address: u64) -> Option<u64> {
        let (span, bit) = self.used_object(address)?;
        (!span.has_mark(Mark::Reached, bit)).then(|| span.address_of_bit(bit))
    }

    /// Used objects that are not marked, by address.
    pub(crate) fn unreachable(&self) -> impl Iterator<Item = Object> {
        self.spans.iter().flat_map(|span| {
            span.objects_in_bitmap(|index| {
                span.words[index].used & !span.word_of_mark(Mark::Reached, index)
            })
        })
    }

    /// Drops the reachable objects and all marks. Keeps only the data by which the unreachable objects are found again:
    /// they are the used ones then.
    pub(crate) fn retain_unreachable(mut self) -> Self {
        for span in &mut self.spans {
            for index in 0..span.words.len() {
                span.words[index].used &= !span.word_of_mark(Mark::Reached, index);
            }
            span.clear_marks();
            span.clear_recorded_pointers();
            span.clear_gc_heads();
        }
        self.spans
            .retain(|span| span.words.iter().any(|word| word.used != 0));
        self
    }

    /// Bytes of a bitmap with `bits` bits for each possible object, which is each bit of the spans' bitmaps.
    pub(crate) fn bitmap_bytes(&self, bits: u64) -> u64 {
        let words = self.spans.iter().map(|span| span.words.len() as u64);
        words.sum::<u64>() * bits * 8
    }

    /// Used object that contains an address. `None` if there is none.
    pub(crate) fn object_at(&self, address: u64) -> Option<Object> {
        let (span, bit) = self.used_object(address)?;
        Some(span.object_at_bit(bit))
    }

    /// Marks the objects that contain `addresses` as reachable and scanned, so that their pointers mark nothing.
    pub(crate) fn mark_without_scan(&self, addresses: &[u64]) {
        for (span, bit) in addresses
            .iter()
            .filter_map(|address| self.used_object(*address))
        {
            span.set_mark(Mark::Reached, bit);
            span.set_mark(Mark::Scanned, bit);
        }
    }

    /// Returns the spans, so that a caller can add more.
    pub(crate) fn into_spans(self) -> Vec<Span> {
        self.spans
    }

    /// Marks the objects that begin at `addresses` as unused, because they lie in a cache of the allocator. Ignores
    /// addresses outside the heap.
    pub(crate) fn exclude_cached_objects(&mut self, addresses: &[u64]) {
        for address in addresses {
            let index = self
                .spans
                .partition_point(|span| span.range.end <= *address);
            if let Some(span) = self.spans.get_mut(index)
                && span.range.start <= *address
            {
                let (word, mask) = span.word_and_mask(*address);
                span.words[word].used &= !mask;
            }
        }
    }

    /// All used objects, by address.
    pub(crate) fn all(&self) -> impl Iterator<Item = Object> {
        self.spans.iter().flat_map(Span::used_objects)
    }

    /// Number of used objects.
    pub(crate) fn count(&self) -> u64 {
        let words = self.spans.iter().flat_map(|span| &span.words);
        words.map(|word| u64::from(word.used.count_ones())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects at 0x1010, 0x1030, 0x1040 (free) and 0x1100 to 0x200000, laid out as glibc does; and one of 1
    /// MiB.
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
        Objects::new(vec![Span::single_object(0x7000_0010..0x7010_0000), span])
    }

    #[test]
    fn mark_finds_used_object_around_address() {
        let check = |address, expected: Option<u64>| {
            assert_eq!(objects().mark_target(address), expected, "{address:x}");
        };
        check(0x1010, Some(0x1010));
        check(0x1011, Some(0x1010));
        check(0x1027, Some(0x1010));
        // The end, which is the next chunk's size field.
        check(0x1028, Some(0x1010));
        check(0x1029, None);
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
    fn pointer_to_gc_head_marks_nothing_wherever_it_begins() {
        // Behind no, one or two debug hooks, without or with two pointers in front of it.
        for offset in [0, 16, 32, 48] {
            let objects = objects();
            let (start, head) = (0x1100, 0x1100 + offset);
            objects.set_gc_head(head);
            let object = objects.object_at(start).unwrap();
            assert_eq!(objects.python_object_in(&object), Some(head + 16));
            for address in [head, head + 8] {
                assert_eq!(objects.mark_target(address), None, "{offset}: {address:x}");
            }
            assert_eq!(objects.mark_target(head + 16), Some(start), "{offset}");
        }
    }

    #[test]
    fn pointers_to_starts_are_recorded_without_headers() {
        let mut span = Span::new(0x1000..0x1040, 16, 0);
        for address in [0x1000, 0x1010, 0x1020, 0x1030] {
            span.add_object(address, address != 0x1010);
        }
        let objects = Objects::new(vec![span]);
        for address in [0x1010, 0x1028, 0x1040] {
            objects.mark_target(address);
        }
        let has = |address| objects.spans[0].has_pointer_to_start(address);
        // A free object's start, and the end of the last one; not an address inside of an object.
        assert!(has(0x1010) && has(0x1040));
        assert!(!has(0x1020) && !has(0x1030) && !has(0x1028));
    }

    #[test]
    fn unmarked_objects_are_unreachable() {
        let objects = objects();
        assert!(
            objects.may_contain(0x7000_0010)
                && !objects.may_contain(0x6000_0000)
                && !objects.may_contain(u64::MAX)
        );
        assert_eq!(objects.mark_target(0x1031), Some(0x1030));
        assert_eq!(objects.mark_target(0x1031), None);
        assert_eq!(
            objects.marked_unscanned_starts().collect::<Vec<_>>(),
            [0x1030]
        );
        assert_eq!(objects.mark_scanned(0x1030), Some(0x1030..0x1038));
        assert_eq!(objects.marked_unscanned_starts().count(), 0);
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
    fn first_of_overlapping_spans_is_kept() {
        let objects = Objects::new(vec![
            Span::single_object(0x1000..0x3000),
            Span::single_object(0x2000..0x4000),
        ]);
        assert_eq!(objects.count(), 1);
    }
}
