//! The used objects, numbered by address.

use super::span::ones;
use super::{Object, Objects};

/// Used objects as numbers from 0 on: four bytes for each 512 or 1,024 bytes of a heap.
#[derive(Debug)]
pub(crate) struct ObjectIndex<'a> {
    objects: &'a Objects,
    /// For each span, how many used objects lie before each word of its bits.
    before: Vec<Vec<u32>>,
    count: u32,
}

impl<'a> ObjectIndex<'a> {
    /// `None` where there are too many.
    pub(crate) fn new(objects: &'a Objects) -> Option<Self> {
        u32::try_from(objects.count()).ok()?;
        let mut count = 0;
        let mut number = |word: &u64| {
            let before = count;
            count += word.count_ones();
            before
        };
        let spans = objects.spans.iter();
        let before = spans.map(|span| span.used.iter().map(&mut number).collect());
        Some(Self {
            objects,
            before: before.collect(),
            count,
        })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The used object in which an address lies: its number, and where it begins.
    pub(crate) fn find(&self, address: u64) -> Option<(u32, u64)> {
        let (at, bit) = self.objects.place(address)?;
        Some((self.number_at(at, bit), self.objects.spans[at].address(bit)))
    }

    /// The number of the used object in which an address lies.
    pub(crate) fn number(&self, address: u64) -> Option<u32> {
        self.find(address).map(|(number, _)| number)
    }

    /// The number of the used object to which a word points. None for the links of Python's collector.
    #[inline]
    pub(crate) fn target(&self, word: u64) -> Option<u32> {
        if !self.objects.may_contain(word) {
            return None;
        }
        let (at, bit) = self.objects.place(word)?;
        let is_link = self.objects.spans[at].is_in_gc_head(bit, word);
        (!is_link).then(|| self.number_at(at, bit))
    }

    /// The number of the object that begins at a bit of a span.
    fn number_at(&self, at: usize, bit: u64) -> u32 {
        let (span, word) = (&self.objects.spans[at], (bit / 64) as usize);
        let below = span.used[word] & ((1 << (bit % 64)) - 1);
        self.before[at][word] + below.count_ones()
    }

    /// The object with a number.
    pub(crate) fn object(&self, number: u32) -> Object {
        let at = self.before.partition_point(|before| before[0] <= number) - 1;
        // Spans without a used object begin with the same number.
        let (span, before) = (&self.objects.spans[at], &self.before[at]);
        let word = before.partition_point(|before| *before <= number) - 1;
        let nth = (number - before[word]) as usize;
        let bit = ones(span.used[word]).nth(nth).expect("as many are counted");
        span.object(word as u64 * 64 + bit)
    }

    /// All of them, by address and so by number.
    pub(crate) fn all(&self) -> impl Iterator<Item = Object> {
        self.objects.all()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Span;
    use super::*;

    #[test]
    fn an_object_has_its_number_wherever_one_points() {
        let mut span = Span::new(0x1000..0x9000, 16, 0);
        for at in 0..0x800 {
            span.add_object(0x1000 + at * 16, at % 3 != 0);
        }
        let unused = Span::new(0x10_0000..0x20_0000, 16, 0);
        let objects = Objects::new(vec![Span::whole(0x7000_0000..0x7010_0000), span, unused]);
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
