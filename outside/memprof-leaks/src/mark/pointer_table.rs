//! Pointers of a heap's objects in a few bytes each, so that following them needs no read of the snapshot.
//!
//! A part of a span has one sequence of numbers of variable length (LEB128), the objects in the order of their
//! addresses, and an offset for each word of the span's bitmap. The numbers of an object are the distances of its
//! targets, of which the last has a flag.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::objects::{ObjectPosition, Objects};

/// Words of a span's bitmap in a part: 4 MiB of a heap with 16 bytes per bit.
const WORDS_PER_PART: usize = 4096;
/// Flag of an object's last number.
const LAST: u64 = 1;
/// First number of an object whose pointers are not in the table. A distance is never 0.
const UNREAD: u64 = 0;
/// Number of an object without pointers, and the last one after [`UNREAD`].
const NONE: u64 = LAST;

/// Words of the bitmap of one span.
#[derive(Clone, Debug)]
pub(super) struct SpanPart {
    pub(super) span: usize,
    pub(super) words: Range<usize>,
}

/// Pointers of the objects of all spans, as far as they fit into a limit of memory.
#[derive(Debug)]
pub(super) struct PointerTable {
    /// Index in `parts` of each span's first part.
    first: Vec<usize>,
    parts: Vec<OnceLock<EncodedPart>>,
    /// log2 of the unit of the distances, in bytes.
    shift: u32,
    /// Bytes that the table may still use.
    remaining: AtomicU64,
    /// Whether objects that are not in the table stay pending, instead of being read.
    postpones_unread_objects: bool,
}

/// Encoded pointers of a part.
#[derive(Debug)]
struct EncodedPart {
    /// Offset in `numbers` of the first object that begins in each word.
    offsets: Box<[u32]>,
    numbers: Box<[u8]>,
}

/// Encoder of the pointers of a part, in the order of the objects' addresses. Its buffers are used again.
#[derive(Debug, Default)]
pub(super) struct PartEncoder {
    offsets: Vec<u32>,
    numbers: Vec<u8>,
    /// Last number of the current object, which is not encoded yet.
    pending: Option<u64>,
    shift: u32,
}

impl PointerTable {
    /// Creates an empty table that may use `max_bytes`. Also returns the parts into which the spans are divided, each
    /// of which [`add_part`](Self::add_part) can add.
    pub(super) fn new(objects: &Objects, max_bytes: u64) -> (Self, Vec<SpanPart>) {
        let (mut first, mut all) = (Vec::new(), Vec::new());
        for (span, words) in objects.word_counts().enumerate() {
            first.push(all.len());
            all.extend((0..words).step_by(WORDS_PER_PART).map(|start| SpanPart {
                span,
                words: start..words.min(start + WORDS_PER_PART),
            }));
        }
        let own = all.len() * (size_of::<OnceLock<EncodedPart>>() + size_of::<SpanPart>());
        let table = Self {
            first,
            parts: all.iter().map(|_| OnceLock::new()).collect(),
            shift: objects.link_shift(),
            remaining: AtomicU64::new(max_bytes.saturating_sub(own as u64)),
            postpones_unread_objects: false,
        };
        (table, all)
    }

    /// Whether the limit is reached, so that no part can be added.
    pub(super) fn is_full(&self) -> bool {
        self.remaining.load(Ordering::Relaxed) == 0
    }

    /// Lets objects that are not in the table wait for another sweep, if the table is full.
    pub(super) fn postpone_unread_objects_if_full(&mut self) {
        self.postpones_unread_objects = self.is_full();
    }

    /// From now on, objects that are not in the table are read at once, and do not wait for another sweep.
    pub(super) fn stop_postponing_unread_objects(&mut self) {
        self.postpones_unread_objects = false;
    }

    /// Whether objects that are not in the table wait for another sweep.
    pub(super) fn postpones_unread_objects(&self) -> bool {
        self.postpones_unread_objects
    }

    /// log2 of the unit, in bytes, in which the table counts the distance from an object to a target; 0 if it keeps
    /// words as they are.
    pub(super) fn shift(&self) -> u32 {
        self.shift
    }

    /// Adds a part, whose pointers `encoder` has encoded, and clears the encoder. If the part does not fit, its objects
    /// stay unread, and the table counts as full.
    pub(super) fn add_part(&self, part: &SpanPart, encoder: &mut PartEncoder) {
        // Words behind the last object need an offset, too.
        encoder.begin_word(part.words.len() - 1);
        let size = (encoder.numbers.len() + encoder.offsets.len() * size_of::<u32>()) as u64;
        let reserve = |left: u64| Some(left.saturating_sub(size));
        let before = self
            .remaining
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve);
        if before.is_ok_and(|left| left >= size) {
            let index = self.first[part.span] + part.words.start / WORDS_PER_PART;
            // Each part is encoded once.
            let _ = self.parts[index].set(EncodedPart {
                offsets: encoder.offsets.as_slice().into(),
                numbers: encoder.numbers.as_slice().into(),
            });
        }
        encoder.clear();
    }

    /// Encoded pointers of a part, from the first object on that begins in the same word of the bitmaps as the object
    /// at `position`. `None` if the part is not in the table.
    #[inline]
    pub(super) fn encoded_pointers(&self, position: ObjectPosition) -> Option<&[u8]> {
        let word = position.word_index();
        let index = self.first[position.span] + word / WORDS_PER_PART;
        let part = self.parts[index].get()?;
        Some(&part.numbers[part.offsets[word % WORDS_PER_PART] as usize..])
    }

    /// Decodes the pointers of the object at `start` from the [`encoded_pointers`](Self::encoded_pointers) for its
    /// position. The pointers are rounded down to the table's unit. `None` if the object's pointers are not in the
    /// table.
    pub(super) fn decode_links<'n>(
        &self,
        start: u64,
        position: ObjectPosition,
        numbers: &'n [u8],
    ) -> Option<impl Iterator<Item = u64> + use<'n>> {
        let mut numbers = numbers.iter();
        // Skip the objects that begin before this one in the same word.
        for _ in 0..position.index_in_word {
            while read_varint(&mut numbers) & LAST == 0 {}
        }
        let mut next = Some(read_varint(&mut numbers)).filter(|number| *number != UNREAD);
        next?;
        let (base, shift) = (distance_base(start, self.shift), self.shift);
        Some(std::iter::from_fn(move || {
            let number = next.take()?;
            if number & LAST == 0 {
                next = Some(read_varint(&mut numbers));
            }
            // A number is the distance in zigzag encoding (its sign in the lowest bit), above the flag `LAST`.
            let distance = (number >> 2).cast_signed() ^ -((number >> 1 & 1).cast_signed());
            let link = base.wrapping_add((distance << shift).cast_unsigned());
            (number != NONE).then_some(link)
        }))
    }

    /// Creates an empty encoder for a part of this table.
    pub(super) fn new_encoder(&self) -> PartEncoder {
        PartEncoder {
            shift: self.shift,
            ..PartEncoder::default()
        }
    }
}

impl PartEncoder {
    /// log2 of the unit, in bytes, in which the distance from an object to a target is counted; 0 if words are kept as
    /// they are.
    pub(super) fn shift(&self) -> u32 {
        self.shift
    }

    /// Records that the objects added next begin in this word of the part. `index` is the word's index in the part.
    pub(super) fn begin_word(&mut self, index: usize) {
        while self.offsets.len() <= index {
            self.offsets.push(self.numbers.len() as u32);
        }
    }

    /// Adds an object without pointers.
    pub(super) fn add_object_without_pointers(&mut self) {
        append_varint(NONE, &mut self.numbers);
    }

    /// Adds an object whose pointers are not encoded, because they are to be read from the snapshot.
    pub(super) fn add_unread_object(&mut self) {
        append_varint(UNREAD, &mut self.numbers);
        append_varint(NONE, &mut self.numbers);
    }

    /// Adds a pointer of the object at `start`. Omits one whose distance from [`distance_base`] is 0, and one that
    /// equals the pointer before.
    #[inline]
    pub(super) fn add_link(&mut self, start: u64, link: u64) {
        let distance = link
            .wrapping_sub(distance_base(start, self.shift))
            .cast_signed()
            >> self.shift;
        // Zigzag encoding, the sign in the lowest bit; then a bit for the flag `LAST`.
        let number = ((distance << 1) ^ (distance >> 63)).cast_unsigned() << 1;
        if number == UNREAD || self.pending == Some(number) {
            return;
        }
        if let Some(before) = self.pending.replace(number) {
            append_varint(before, &mut self.numbers);
        }
    }

    /// Ends an object whose links were added; one without links counts as an object without pointers.
    pub(super) fn end_object(&mut self) {
        let last = self.pending.take().unwrap_or_default();
        append_varint(last | LAST, &mut self.numbers);
    }

    /// Removes the encoded part, but keeps the buffers.
    pub(super) fn clear(&mut self) {
        self.offsets.clear();
        self.numbers.clear();
    }
}

/// Address from which the distances of the object at `start` are counted: `start`, or if words are kept as they are
/// (`shift` is 0), the byte after it. A distance is never 0, so a word that points to this address is not encoded: it
/// points to the object itself, which holds nothing. Where words are kept, a word that points to `start` is encoded,
/// because [`Objects::mark_target`] records it.
fn distance_base(start: u64, shift: u32) -> u64 {
    start + u64::from(shift == 0)
}

/// Appends a number in groups of 7 bits, the lowest first; all but the last byte have the highest bit.
fn append_varint(mut number: u64, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Reads a number that [`append_varint`] wrote, and moves `bytes` behind it.
#[inline]
fn read_varint(bytes: &mut std::slice::Iter<'_, u8>) -> u64 {
    let (mut number, mut shift) = (0, 0);
    for byte in bytes.by_ref() {
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
        shift += 7;
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Span;

    #[test]
    fn links_of_each_object_are_found_again() {
        let mut span = Span::new(0x1010..0x80_1010, 16, 8);
        for index in 0..0x4_0000 {
            span.add_object(0x1010 + index * 0x20, index % 3 != 0);
        }
        let far = 0x7f00_0000_0010..0x7f00_0000_1008;
        let objects = Objects::new(vec![span, Span::single_object(far.clone())]);
        let links = |start: u64| -> Vec<u64> {
            let next = 0x1010 + (start.wrapping_mul(0x9e37_79b9) & 0x7f_ffe0);
            match start / 0x20 % 4 {
                0 => vec![],
                1 => vec![next],
                2 => vec![far.start, next, 0x1010],
                _ => vec![next, next, start, far.start],
            }
        };
        let check = |max_bytes, is_complete: bool| {
            let (table, parts) = PointerTable::new(&objects, max_bytes);
            let mut encoder = table.new_encoder();
            for part in &parts {
                for (position, object) in objects.used_objects_in(part.span, part.words.clone()) {
                    encoder.begin_word(position.word_index() - part.words.start);
                    for link in links(object.range.start) {
                        encoder.add_link(object.range.start, link);
                    }
                    encoder.end_object();
                }
                table.add_part(part, &mut encoder);
            }
            let mut missing = 0;
            for (position, object) in parts
                .iter()
                .flat_map(|part| objects.used_objects_in(part.span, part.words.clone()))
            {
                let start = object.range.start;
                let numbers = table.encoded_pointers(position);
                let Some(found) =
                    numbers.and_then(|numbers| table.decode_links(start, position, numbers))
                else {
                    missing += 1;
                    continue;
                };
                let mut expected = links(start);
                expected.dedup();
                expected.retain(|link| *link != start);
                assert!(found.eq(expected), "{start:#x}");
            }
            assert_eq!(missing == 0, is_complete);
            assert!(missing < objects.count() as usize);
        };
        check(u64::MAX, true);
        // The first of two parts fits.
        check(700_000, false);
    }

    #[test]
    fn unread_objects_are_missing_between_others() {
        let mut span = Span::new(0x1010..0x2010, 16, 8);
        for start in [0x1010, 0x1030, 0x1050] {
            span.add_object(start, true);
        }
        let objects = Objects::new(vec![span]);
        let (table, parts) = PointerTable::new(&objects, u64::MAX);
        let mut encoder = table.new_encoder();
        encoder.begin_word(0);
        encoder.add_unread_object();
        encoder.add_object_without_pointers();
        encoder.add_link(0x1050, 0x1010);
        encoder.end_object();
        table.add_part(&parts[0], &mut encoder);
        let links = |start: u64| {
            let position = objects.unscanned_position(start).unwrap();
            let links =
                table.decode_links(start, position, table.encoded_pointers(position).unwrap());
            links.map(Iterator::collect::<Vec<_>>)
        };
        assert_eq!(links(0x1010), None);
        assert_eq!(links(0x1030), Some(vec![]));
        assert_eq!(links(0x1050), Some(vec![0x1010]));
    }
}
