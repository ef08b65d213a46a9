//! Addresses of a stack line, interned by their text.
//!
//! A dump repeats few addresses many times, so the text itself, 16 bytes from the `0x` on, is the key:
//! only an address seen for the first time is checked and converted.

use super::numbers::hexadecimal;
use crate::profile::Address;
use crate::stacks::{AddressId, Mix, Stacks};

/// `0x` and up to 13 digits, so that the key ends in a blank; kernel addresses go the long way.
const KEY: usize = 16;

#[derive(Debug, Default)]
pub(super) struct FrameReader {
    /// By key; an empty slot has key 0. Open addressing, a power of two, at most a quarter full. Keys lie in
    /// the slots: reading is bound by cache misses, and this is one of them instead of two.
    slots: Vec<(u128, AddressId)>,
    used: usize,
    seed: Mix,
}

impl FrameReader {
    /// Appends the addresses of `0x… 0x…` to `stack`; on failure, the text of the wrong one.
    pub(super) fn read<'t>(
        &mut self,
        mut text: &'t [u8],
        stacks: &mut Stacks,
        stack: &mut Vec<AddressId>,
    ) -> Result<(), &'t [u8]> {
        while !text.is_empty() {
            let (key, short) = key_of(text);
            let length = short.unwrap_or_else(|| memchr::memchr(b' ', text).unwrap_or(text.len()));
            let id = match short.and_then(|_| self.get(key)) {
                Some(id) => id,
                None => {
                    let id = stacks.intern_address(address(&text[..length]).ok_or(text)?);
                    if short.is_some() {
                        self.insert(key, id);
                    }
                    id
                }
            };
            stack.push(id);
            text = text.get(length + 1..).unwrap_or_default();
        }
        Ok(())
    }

    fn get(&self, key: u128) -> Option<AddressId> {
        let size = self.slots.len();
        if size == 0 {
            return None;
        }
        let mut slot = self.home(key);
        loop {
            match self.slots[slot] {
                (found, id) if found == key => return Some(id),
                (0, _) => return None,
                _ => slot = (slot + 1) & (size - 1),
            }
        }
    }

    fn insert(&mut self, key: u128, id: AddressId) {
        self.used += 1;
        if self.slots.len() < 4 * self.used {
            let size = (4 * self.used + 1).next_power_of_two().max(4096);
            let before = std::mem::replace(&mut self.slots, vec![(0, AddressId(0)); size]);
            for (key, id) in before.into_iter().filter(|(key, _)| *key != 0) {
                self.place(key, id);
            }
        }
        self.place(key, id);
    }

    fn place(&mut self, key: u128, id: AddressId) {
        let mut slot = self.home(key);
        while self.slots[slot].0 != 0 {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = (key, id);
    }

    fn home(&self, key: u128) -> usize {
        self.seed
            .with(key as u64, (key >> 64) as u64)
            .slot(self.slots.len())
    }
}

/// The first word of `text` as a number, and its length; no length when it does not fit.
fn key_of(text: &[u8]) -> (u128, Option<usize>) {
    const BLANKS: u128 = u128::from_ne_bytes([b' '; KEY]);
    const ONES: u128 = u128::from_ne_bytes([0x01; KEY]);
    const HIGHS: u128 = u128::from_ne_bytes([0x80; KEY]);
    let word = match text.first_chunk::<KEY>() {
        Some(chunk) => u128::from_le_bytes(*chunk),
        None => {
            let mut padded = [b' '; KEY];
            padded[..text.len()].copy_from_slice(text);
            u128::from_le_bytes(padded)
        }
    };
    let other = word ^ BLANKS;
    // The lowest byte whose high bit is set here is the first blank; those above it may be wrong.
    let blanks = other.wrapping_sub(ONES) & !other & HIGHS;
    match blanks {
        0 => (word, None),
        _ => {
            let length = blanks.trailing_zeros() as usize / 8;
            (word & ((1 << (8 * length)) - 1), Some(length))
        }
    }
}

fn address(word: &[u8]) -> Option<Address> {
    match hexadecimal(word.strip_prefix(b"0x")?)? {
        (address, []) => Some(Address(address)),
        _ => None,
    }
}
