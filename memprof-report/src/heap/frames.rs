//! Addresses of a stack line, interned by their text.
//!
//! A dump repeats few addresses many times, so the text itself, 16 bytes from the `0x` on, is the key:
//! only an address seen for the first time is checked and converted.

use super::numbers::hexadecimal;
use crate::profile::Address;
use crate::stacks::{AddressId, Mix, Stacks};

/// The first 16 bytes of a word of 8 to 15 bytes, from its blank on cleared. All others go the long way: a
/// process has few addresses below 1 MiB, and none above 2^52.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Key(u64, u64);

const KEY: usize = 16;

#[derive(Debug, Default)]
pub(super) struct FrameReader {
    /// By key; that of an empty slot is 0. Open addressing, a power of two, at most a quarter full. Keys lie in
    /// the slots: reading is bound by cache misses, and this is one of them instead of two.
    slots: Vec<(Key, AddressId)>,
    used: usize,
    seed: Mix,
}

impl FrameReader {
    /// Pushes the addresses of `0x… 0x…`; on failure, the text of the wrong one.
    pub(super) fn read<'t>(
        &mut self,
        mut text: &'t [u8],
        stacks: &mut Stacks,
    ) -> Result<(), &'t [u8]> {
        while !text.is_empty() {
            let (key, mut length) = key_of(text);
            let id = match self.get(key) {
                Some(id) => id,
                None => {
                    let whole = memchr::memchr(b' ', text).unwrap_or(text.len());
                    let id = stacks.intern_address(address(&text[..whole]).ok_or(text)?);
                    if whole == length && length < KEY {
                        self.insert(key, id);
                    }
                    length = whole;
                    id
                }
            };
            stacks.push(id);
            text = text.get(length + 1..).unwrap_or_default();
        }
        Ok(())
    }

    fn get(&self, key: Key) -> Option<AddressId> {
        let size = self.slots.len();
        if size == 0 {
            return None;
        }
        let mut slot = self.home(key);
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
        let mut slot = self.home(key);
        while self.slots[slot].0 != Key::default() {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = (key, id);
    }

    fn home(&self, key: Key) -> usize {
        self.seed.with(key.0, key.1).slot(self.slots.len())
    }
}

/// The key and the length of the first word of `text`, right for words that have one. Another word's key is
/// that of no address: it has a blank where keys have none, or no blank at all.
fn key_of(text: &[u8]) -> (Key, usize) {
    const BLANKS: u64 = u64::from_ne_bytes([b' '; 8]);
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    let word = match text.first_chunk::<KEY>() {
        Some(chunk) => u128::from_le_bytes(*chunk),
        None => {
            let mut padded = [b' '; KEY];
            padded[..text.len()].copy_from_slice(text);
            u128::from_le_bytes(padded)
        }
    };
    let (low, high) = (word as u64, (word >> 64) as u64);
    let other = high ^ BLANKS;
    // The lowest byte whose high bit is set here is the first blank; those above it may be wrong.
    let blanks = other.wrapping_sub(ONES) & !other & HIGHS;
    let before = blanks.wrapping_sub(1) & !blanks;
    (
        Key(low, high & before),
        8 + blanks.trailing_zeros() as usize / 8,
    )
}

fn address(word: &[u8]) -> Option<Address> {
    match hexadecimal(word.strip_prefix(b"0x")?)? {
        (address, []) => Some(Address(address)),
        _ => None,
    }
}
