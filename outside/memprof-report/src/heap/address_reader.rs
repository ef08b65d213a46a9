//! Reads the addresses of a stack line, interned by their text.
//!
//! A dump repeats few addresses many times, so the text itself, 16 bytes from the `0x` on, is the key: only an
//! address that is new is checked and converted.

use super::numbers::parse_hexadecimal;
use crate::profile::Address;
use crate::pseudo_frames::{PseudoFrame, StackMarks};
use crate::stacks::{AddressId, StackHasher, Stacks};

/// First 16 bytes of the text, as two little-endian words.
type TextPrefix = (u64, u64);

const PREFIX_LEN: usize = 16;

/// A word of 8 to 15 bytes with the blank after it, the rest cleared. Other words are read without a table: a
/// process has few addresses below 1 MiB, and none above 2^52.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Key(u64, u64);

/// Width of the word of a [`Key`], as the number of bits beyond its first 8 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Width(u32);

/// A word of a stack line.
#[derive(Clone, Copy, Debug)]
enum StackWord {
    Frame(AddressId),
    Mark(PseudoFrame),
}

/// Reads stack lines, with a hash table of the addresses so far.
#[derive(Debug, Default)]
pub(super) struct AddressReader {
    /// Table by key with open addressing; an empty slot has the key 0. The size is a power of two, at most a
    /// quarter is used. Keys are stored in the slots: reading is bound by cache misses, and this saves one of two.
    slots: Vec<(Key, AddressId)>,
    used: usize,
    seed: StackHasher,
}

impl AddressReader {
    /// Pushes the addresses of the text `0x… 0x…` to the pending stack of `stacks`. Returns the pseudo frames among the
    /// words, which stand for data, not code. On failure, returns the text from the malformed word on.
    ///
    /// Most words are as wide as the one before. By guessing this width, the processor need not wait for the end of a
    /// word to find the next; after a wrong guess no key of the table matches.
    pub(super) fn read_addresses<'t>(
        &mut self,
        mut text: &'t [u8],
        stacks: &mut Stacks,
    ) -> Result<StackMarks, &'t [u8]> {
        let mut width = Width::default();
        let mut marks = StackMarks::default();
        while !text.is_empty() {
            let prefix = text_prefix(text);
            let (word, length) = match width.key(prefix).and_then(|key| self.get(key)) {
                Some(id) => (StackWord::Frame(id), width.length()),
                None => {
                    width = Width::from_prefix(prefix);
                    self.read_word(text, width, prefix, stacks).ok_or(text)?
                }
            };
            match word {
                StackWord::Frame(id) => stacks.push_frame(id),
                StackWord::Mark(mark) => marks.add(mark),
            }
            // One byte more, for the blank after the word.
            text = text.get(length + 1..).unwrap_or_default();
        }
        Ok(marks)
    }

    /// Reads the word `0x…` at the start of `text`, and adds its address to `stacks` and to the table if it is new.
    /// `prefix` and `width` are those of this word. Returns the word, as a frame or a pseudo frame, and its length in
    /// bytes. `None` if the word is malformed.
    fn read_word(
        &mut self,
        text: &[u8],
        width: Width,
        prefix: TextPrefix,
        stacks: &mut Stacks,
    ) -> Option<(StackWord, usize)> {
        let key = width.key(prefix);
        if let Some(id) = key.and_then(|key| self.get(key)) {
            return Some((StackWord::Frame(id), width.length()));
        }
        let length = memchr::memchr(b' ', text).unwrap_or(text.len());
        let address = parse_address(&text[..length])?;
        if let Some(mark) = PseudoFrame::from_stack_word(address.0) {
            return Some((StackWord::Mark(mark), length));
        }
        let id = stacks.intern_address(address);
        if let Some(key) = key.filter(|_| length == width.length()) {
            self.insert_address(key, id);
        }
        Some((StackWord::Frame(id), length))
    }

    /// Returns the id of an address by the key of its word. `None` if the table does not contain the key.
    fn get(&self, key: Key) -> Option<AddressId> {
        let size = self.slots.len();
        if size == 0 {
            return None;
        }
        let mut slot = self.home_index(key);
        loop {
            match self.slots[slot] {
                (other, id) if other == key => return Some(id),
                (Key(0, 0), _) => return None,
                _ => slot = (slot + 1) & (size - 1),
            }
        }
    }

    /// Inserts an address. If more than a quarter of the table would be used, enlarges it first, to a power of two of
    /// at least 4096 slots.
    fn insert_address(&mut self, key: Key, id: AddressId) {
        self.used += 1;
        if self.slots.len() < 4 * self.used {
            let size = (4 * self.used + 1).next_power_of_two().max(4096);
            let before =
                std::mem::replace(&mut self.slots, vec![(Key::default(), AddressId(0)); size]);
            for (key, id) in before.into_iter().filter(|(key, _)| *key != Key::default()) {
                self.insert_in_free_slot(key, id);
            }
        }
        self.insert_in_free_slot(key, id);
    }

    /// Inserts an address that is not in the table, which must have a free slot.
    fn insert_in_free_slot(&mut self, key: Key, id: AddressId) {
        let mut slot = self.home_index(key);
        while self.slots[slot].0 != Key::default() {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = (key, id);
    }

    /// Slot at which probing for `key` starts.
    fn home_index(&self, key: Key) -> usize {
        self.seed.with_words(key.0, key.1).slot(self.slots.len())
    }
}

const BLANKS: u64 = u64::from_ne_bytes([b' '; 8]);

/// First `PREFIX_LEN` bytes of `text`, padded with blanks, as two little-endian words.
fn text_prefix(text: &[u8]) -> TextPrefix {
    let bytes = match text.first_chunk::<PREFIX_LEN>() {
        Some(chunk) => *chunk,
        None => {
            let mut padded = [b' '; PREFIX_LEN];
            padded[..text.len()].copy_from_slice(text);
            padded
        }
    };
    let word = u128::from_le_bytes(bytes);
    (word as u64, (word >> 64) as u64)
}

impl Width {
    /// Width of the first word of `prefix`; arbitrary if the word does not end in the upper half.
    fn from_prefix((_, high): TextPrefix) -> Self {
        const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
        const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
        let other = high ^ BLANKS;
        // The lowest byte whose high bit is set here is the first blank; those above it may be wrong.
        let blanks = other.wrapping_sub(ONES) & !other & HIGHS;
        // The mask leaves whole bytes; without a blank, it makes 0 of 64.
        Self(blanks.trailing_zeros() & 0b11_1000)
    }

    /// Key of the first word of `prefix` if it has this width. Otherwise `None`, or a key that no address has: the
    /// blank is elsewhere.
    fn key(self, (low, high): TextPrefix) -> Option<Key> {
        let end = high >> self.0;
        let blank = end as u8 == b' ';
        // All bytes after the blank are cleared: they are of the next word.
        blank.then_some(Key(low, high ^ (end & !0xff) << self.0))
    }

    /// Length of the word in bytes: 8 in the lower half of the prefix, and those before the blank in the upper one.
    fn length(self) -> usize {
        8 + self.0 as usize / 8
    }
}

/// Parses a word `0x…`. `None` if it has another form, or the number has more than 64 bits.
fn parse_address(word: &[u8]) -> Option<Address> {
    match parse_hexadecimal(word.strip_prefix(b"0x")?)? {
        (address, []) => Some(Address(address)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::AddressReader;
    use crate::pseudo_frames::StackMarks;
    use crate::stacks::Stacks;

    fn check(line: &str, expected: Result<&[u64], &str>) {
        let (mut reader, mut stacks) = (AddressReader::default(), Stacks::default());
        let known = b"0x123456 0x1234567 0x7f9538aa2630 0x123456";
        assert_eq!(
            reader.read_addresses(known, &mut stacks),
            Ok(StackMarks::default())
        );
        stacks.clear_pending();
        let result = reader.read_addresses(line.as_bytes(), &mut stacks);
        assert_eq!(
            result,
            expected
                .map(|_| StackMarks::default())
                .map_err(str::as_bytes)
        );
        if let Ok(expected) = expected {
            let stack = stacks.finish_stack();
            let read = stacks.frames(stack).iter().map(|&id| stacks.address(id).0);
            assert_eq!(read.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn addresses_of_all_widths_are_read() {
        check("", Ok(&[]));
        check("0x1 0x123456 0x12", Ok(&[0x1, 0x12_3456, 0x12]));
        check(
            "0x7f9538aa2630 0x123456 0x1234567 0x123456",
            Ok(&[0x7f95_38aa_2630, 0x12_3456, 0x123_4567, 0x12_3456]),
        );
        check(
            "0xffffffffffffffff 0x00123456 0x7f9538aa2630",
            Ok(&[u64::MAX, 0x12_3456, 0x7f95_38aa_2630]),
        );
    }

    #[test]
    fn word_similar_to_known_one_is_refused() {
        for malformed in [
            "0x123456\0\0 0x1",
            "0x123456\0",
            "0x123456g 0x123456",
            "0x12345678901234567",
            " 0x123456",
            "0x",
        ] {
            check(malformed, Err(malformed));
            check(&format!("0x123456 {malformed}"), Err(malformed));
        }
    }
}
