//! Numbers of the used objects, from 0, in the order of their addresses.

use super::span::{ObjectBits, indices_of_set_bits};
use super::{Object, Objects};

/// Index from used objects to numbers and back: four bytes for each 512 or 1,024 bytes of a heap.
#[derive(Debug)]
pub(crate) struct ObjectIndex<'a> {
    objects: &'a Objects,
    /// For each span and each word of its bitmap, the number of used objects before it.
    before: Vec<Vec<u32>>,
    count: u32,
}

impl<'a> ObjectIndex<'a> {
    /// Numbers the used objects. `None` if they are more than `u32` can count.
    pub(crate) fn new(objects: &'a Objects) -> Option<Self> {
        u32::try_from(objects.count()).ok()?;
        let mut count = 0;
        let mut number = |word: &ObjectBits| {
            let before = count;
            count += word.used.count_ones();
            before
        };
        let spans = objects.spans.iter();
        let before = spans.map(|span| span.words.iter().map(&mut number).collect());
        Some(Self {
            objects,
            before: before.collect(),
            count,
        })
    }

    /// Number of used objects.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Number and start of the used object that contains an address. `None` if there is none.
    pub(crate) fn find(&self, address: u64) -> Option<(u32, u64)> {
        let (span, bit) = self.objects.locate_used_object(address)?;
        Some((
            self.number_at(span, bit),
            self.objects.spans[span].address_of_bit(bit),
        ))
    }

    /// Number of the used object that contains an address. `None` if there is none.
    pub(crate) fn number(&self, address: u64) -> Option<u32> {
        self.find(address).map(|(number, _)| number)
    }

    /// Number of the used object to which a word points. `None` if there is none, or the word points to a
    /// `PyGC_Head`.
    #[inline]
    pub(crate) fn target_number(&self, word: u64) -> Option<u32> {
        if !self.objects.may_contain(word) {
            return None;
        }
        let (span, bit) = self.objects.locate_used_object(word)?;
        let is_gc_head = self.objects.spans[span].is_in_gc_head(bit, word);
        (!is_gc_head).then(|| self.number_at(span, bit))
    }

    /// Number of the object that begins at a bit of a span: the number of used objects before it.
    fn number_at(&self, span_index: usize, bit: u64) -> u32 {
        let span = &self.objects.spans[span_index];
        self.before[span_index][(bit / 64) as usize] + span.used_count_before(bit)
    }

    /// Object with a number.
    ///
    /// Panics if there is none.
    pub(crate) fn object(&self, number: u32) -> Object {
        let index = self.before.partition_point(|before| before[0] <= number) - 1;
        // The last of the spans whose first number is not above `number` has the object: a span without used objects
        // has the same first number as the next one.
        let (span, before) = (&self.objects.spans[index], &self.before[index]);
        let word = before.partition_point(|before| *before <= number) - 1;
        let nth = (number - before[word]) as usize;
        let bit = indices_of_set_bits(span.words[word].used)
            .nth(nth)
            .expect("as many are counted");
        span.object_at_bit(word as u64 * 64 + bit)
    }

    /// All used objects, by address and so by number.
    pub(crate) fn all(&self) -> impl Iterator<Item = Object> {
        self.objects.all()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Span;
    use super::*;

    #[test]
    fn objects_are_numbered_by_address() {
        let mut span = Span::new(0x1000..0x9000, 16, 0);
        for index in 0..0x800 {
            span.add_object(0x1000 + index * 16, index % 3 != 0);
        }
        let unused = Span::new(0x10_0000..0x20_0000, 16, 0);
        let objects = Objects::new(vec![
            Span::single_object(0x7000_0000..0x7010_0000),
            span,
            unused,
        ]);
        let numbers = ObjectIndex::new(&objects).unwrap();
        assert_eq!(u64::from(numbers.count()), objects.count());
        for (number, object) in numbers.all().enumerate() {
            assert_eq!(numbers.object(number as u32), object);
            assert_eq!(numbers.number(object.range.end - 1), Some(number as u32));
        }
        assert_eq!(numbers.all().count(), 0x800 - 0x800_usize.div_ceil(3) + 1);
        assert_eq!(numbers.number(0x1000), None);
        assert_eq!(numbers.number(0x10_0000), None);
    }
}
