//! Addresses of a stack line, interned by their text.
//!
//! A dump repeats few addresses many times, so the text itself, 16 bytes from the `0x` on, is the key:
//! only an address seen for the first time is checked and converted.

use super::numbers::hexadecimal;
use crate::profile::Address;
use crate::pseudo_frames::{PseudoFrame, StackMarks};
use crate::stacks::{AddressId, StackHasher, Stacks};

/// The first 16 bytes of the text, as two words.
type TextPrefix = (u64, u64);

const HEAD: usize = 16;

/// A word of 8 to 15 bytes with the blank behind it, the rest cleared. All others go the long way: a process
/// has few addresses below 1 MiB, and none above 2^52.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Key(u64, u64);

/// The width of such a word: the bits beyond its first 8 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Width(u32);

/// What a word of a stack line is.
#[derive(Clone, Copy, Debug)]
enum StackWord {
    Frame(AddressId),
    Mark(PseudoFrame),
}

#[derive(Debug, Default)]
pub(super) struct AddressReader {
    /// By key; that of an empty slot is 0. Open addressing, a power of two, at most a quarter full. Keys lie in
    /// the slots: reading is bound by cache misses, and this is one of them instead of two.
    slots: Vec<(Key, AddressId)>,
    used: usize,
    seed: StackHasher,
}

impl AddressReader {
    /// Pushes the addresses of `0x… 0x…`, and returns the marks that stand among them; on failure, the text of
    /// the wrong one.
    ///
    /// A word is most often as wide as the one before. Guessing that, the processor need not wait for the end
    /// of one to find the next; a wrong guess is no key.
    pub(super) fn read<'t>(
        &mut self,
        mut text: &'t [u8],
        stacks: &mut Stacks,
    ) -> Result<StackMarks, &'t [u8]> {
        let mut width = Width::default();
        let mut marks = StackMarks::default();
        while !text.is_empty() {
            let head = head(text);
            let (word, length) = match width.key(head).and_then(|key| self.get(key)) {
                Some(id) => (StackWord::Frame(id), width.length()),
                None => {
                    width = Width::of(head);
                    self.read_word(text, width, head, stacks).ok_or(text)?
                }
            };
            match word {
                StackWord::Frame(id) => stacks.push(id),
                StackWord::Mark(mark) => marks.add(mark),
            }
            text = text.get(length + 1..).unwrap_or_default();
        }
        Ok(marks)
    }

    /// The address at the start of `text`, new or not, and the length of its word.
    fn read_word(
        &mut self,
        text: &[u8],
        width: Width,
        head: TextPrefix,
        stacks: &mut Stacks,
    ) -> Option<(StackWord, usize)> {
        let key = width.key(head);
        if let Some(id) = key.and_then(|key| self.get(key)) {
            return Some((StackWord::Frame(id), width.length()));
        }
        let length = memchr::memchr(b' ', text).unwrap_or(text.len());
        let address = address(&text[..length])?;
        if let Some(mark) = PseudoFrame::from_frame(address.0) {
            return Some((StackWord::Mark(mark), length));
        }
        let id = stacks.intern_address(address);
        if let Some(key) = key.filter(|_| length == width.length()) {
            self.insert(key, id);
        }
        Some((StackWord::Frame(id), length))
    }

    fn get(&self, key: Key) -> Option<AddressId> {
        let size = self.slots.len();
        if size == 0 {
            return None;
        }
        let mut slot = self.home_index(key);
        loop {
            match self.slots[slot] {
                (found, id) if found == key => return Some(id),
                (Key(0, 0), _) => return None,
                _ => slot = (slot + 1) & (size - 1),
            }
        }
    }

    fn insert(&mut self, key: Key, id: AddressId) {
        self.used += 1;
        if self.slots.len() < 4 * self.used {
            let size = (4 * self.used + 1).next_power_of_two().max(4096);
            let before =
                std::mem::replace(&mut self.slots, vec![(Key::default(), AddressId(0)); size]);
            for (key, id) in before.into_iter().filter(|(key, _)| *key != Key::default()) {
                self.place(key, id);
            }
        }
        self.place(key, id);
    }

    fn place(&mut self, key: Key, id: AddressId) {
        let mut slot = self.home_index(key);
        while self.slots[slot].0 != Key::default() {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = (key, id);
    }

    fn home_index(&self, key: Key) -> usize {
        self.seed.with(key.0, key.1).slot(self.slots.len())
    }
}

const BLANKS: u64 = u64::from_ne_bytes([b' '; 8]);

/// The first bytes of `text`; where it is shorter, blanks follow.
fn head(text: &[u8]) -> TextPrefix {
    let bytes = match text.first_chunk::<HEAD>() {
        Some(chunk) => *chunk,
        None => {
            let mut padded = [b' '; HEAD];
            padded[..text.len()].copy_from_slice(text);
            padded
        }
    };
    let word = u128::from_le_bytes(bytes);
    (word as u64, (word >> 64) as u64)
}

impl Width {
    /// That of the first word of `head`; any, where it has no end there.
    fn of((_, high): TextPrefix) -> Self {
        const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
        const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
        let other = high ^ BLANKS;
        // The lowest byte whose high bit is set here is the first blank; those above it may be wrong.
        let blanks = other.wrapping_sub(ONES) & !other & HIGHS;
        Self(blanks.trailing_zeros() & 0b11_1000)
    }

    /// The key of the first word of `head`, if it is this wide. It is that of no address if it is not: the
    /// blank lies elsewhere.
    fn key(self, (low, high): TextPrefix) -> Option<Key> {
        let end = high >> self.0;
        let blank = end as u8 == b' ';
        blank.then_some(Key(low, high ^ (end & !0xff) << self.0))
    }

    fn length(self) -> usize {
        8 + self.0 as usize / 8
    }
}

fn address(word: &[u8]) -> Option<Address> {
    match hexadecimal(word.strip_prefix(b"0x")?)? {
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
        assert_eq!(reader.read(known, &mut stacks), Ok(StackMarks::default()));
        stacks.clear();
        let result = reader.read(line.as_bytes(), &mut stacks);
        assert_eq!(
            result,
            expected
                .map(|_| StackMarks::default())
                .map_err(str::as_bytes)
        );
        if let Ok(expected) = expected {
            let stack = stacks.finish();
            let read = stacks.frames(stack).iter().map(|&id| stacks.address(id).0);
            assert_eq!(read.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn words_of_all_widths() {
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
    fn what_only_looks_like_a_known_word() {
        for wrong in [
            "0x123456\0\0 0x1",
            "0x123456\0",
            "0x123456g 0x123456",
            "0x12345678901234567",
            " 0x123456",
            "0x",
        ] {
            check(wrong, Err(wrong));
            check(&format!("0x123456 {wrong}"), Err(wrong));
        }
    }
}
