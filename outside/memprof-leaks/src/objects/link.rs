//! Links: pointers in the form in which they are stored until what they point to is marked.

use super::Objects;
use super::span::{Mark, Span};

impl Objects {
    /// Returns the index of the span and the bit of the object to which a link of
    /// [`unresolved_link`](Self::unresolved_link) or [`resolved_link`](Self::resolved_link) points. `None` if there is
    /// no used object, or it is marked.
    #[inline]
    pub(crate) fn unmarked_target(&self, link: u64) -> Option<(usize, u64)> {
        let (index, bit) = self.bit_of_start(link)?;
        let span = &self.spans[index];
        let start = span.start_before(bit)?;
        (span.is_used(start) && !span.has_mark(Mark::Reached, start)).then_some((index, start))
    }

    /// Address of an object that [`unmarked_target`](Self::unmarked_target) has found.
    #[inline]
    pub(crate) fn start_of_target(&self, (span, bit): (usize, u64)) -> u64 {
        self.spans[span].address_of_bit(bit)
    }

    /// Marks an object that [`unmarked_target`](Self::unmarked_target) has found. Returns false if it was marked
    /// meanwhile.
    #[inline]
    pub(crate) fn mark_found_target(&self, (span, bit): (usize, u64)) -> bool {
        self.spans[span].set_mark(Mark::Reached, bit)
    }

    /// Whether a link must be the unchanged word: the exact address matters for objects without headers, and for those
    /// with a `PyGC_Head`.
    fn needs_exact_links(&self) -> bool {
        self.has_headerless || self.spans.iter().any(Span::has_gc_heads)
    }

    /// log2 of the alignment of all links that [`resolved_link`](Self::resolved_link) returns; 0 if links are unchanged
    /// words.
    pub(crate) fn link_shift(&self) -> u32 {
        let shifts = self.spans.iter().map(Span::start_shift);
        match self.needs_exact_links() {
            true => 0,
            false => shifts.min().unwrap_or(0),
        }
    }

    /// Link by which the object to which `word` points can be marked later: the object's start, or `word` itself if
    /// `shift` is 0. `None` if the object is marked already, or if there is none. With `shift` 0, also links a word
    /// that is to be recorded as a pointer to an object's start.
    #[inline]
    pub(crate) fn resolved_link(&self, word: u64, shift: u32) -> Option<u64> {
        let found = self.used_object(word);
        let unmarked = found.filter(|(span, bit)| !span.has_mark(Mark::Reached, *bit));
        match shift {
            0 => (unmarked.is_some() || self.is_unrecorded_start(word)).then_some(word),
            _ => unmarked.map(|(span, bit)| span.address_of_bit(bit)),
        }
    }

    /// Link like that of [`resolved_link`](Self::resolved_link), found without reading a bitmap, because each read may
    /// wait for memory. Returns the word, rounded down to an address where an object can begin; its object is found
    /// when the link is followed. `None` if the word points into no span. `shift` must not be 0. A word that may point
    /// into a header is resolved all the same.
    #[inline]
    pub(crate) fn unresolved_link(&self, word: u64, shift: u32) -> Option<u64> {
        let span = &self.spans[self.span_index(word)?];
        let offset = word - span.range.start;
        // The end of a granule may be in the header of the object that begins at the next one.
        if span.header != 0 && offset % (1 << span.shift) > span.header {
            return self.resolved_link(word, shift);
        }
        Some(span.address_of_bit(offset >> span.shift))
    }
}
