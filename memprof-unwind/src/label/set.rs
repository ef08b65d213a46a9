//! The labels of one thread, in a bounded number of bytes.

use core::mem::MaybeUninit;
use core::ptr;
use core::slice;

/// What is kept of a set: `key index, length, bytes` for each of its labels.
pub(super) const SET_BYTES: usize = 184;

/// Labels as they are kept.
pub(super) struct Set {
    /// Not cleared at the start: there is a set for each sample.
    bytes: [MaybeUninit<u8>; SET_BYTES],
    /// So many of them are written.
    length: usize,
}

impl Set {
    pub(super) fn new() -> Self {
        Self {
            bytes: [MaybeUninit::uninit(); SET_BYTES],
            length: 0,
        }
    }

    /// A later label of the same key counts. What does not fit is cut, between two characters.
    pub(super) fn add(&mut self, key: u8, value: &[u8]) {
        // SAFETY: a slice can be read.
        unsafe { self.add_from(key, value.as_ptr(), value.len()) }
    }

    /// The same of a value that lies in memory which its thread may have been changing when it was interrupted.
    ///
    /// # Safety
    /// So many bytes can be read there.
    #[inline(always)]
    pub(super) unsafe fn add_from(&mut self, key: u8, value: *const u8, length: usize) {
        self.remove(key);
        let Some([at_key, at_length, room @ ..]) = self.bytes.get_mut(self.length..) else {
            return;
        };
        let mut kept = length.min(room.len()).min(usize::from(u8::MAX));
        let continues = |at: usize| {
            // SAFETY: promised by the caller.
            let byte = unsafe { value.wrapping_add(at).read_volatile() };
            // The rest of a character of UTF-8 begins with the bits 10.
            byte & 0xc0 == 0x80
        };
        while kept > 0 && kept < length && continues(kept) {
            kept -= 1;
        }
        at_key.write(key);
        at_length.write(kept as u8);
        // SAFETY: no more than can be read, and than there is room for in bytes of our own.
        unsafe { ptr::copy_nonoverlapping(value, room.as_mut_ptr().cast(), kept) };
        self.length += 2 + kept;
    }

    fn remove(&mut self, key: u8) {
        let mut at = 0;
        while let Some([found, length, ..]) = self.bytes().get(at..) {
            let (found, end) = (*found, at + 2 + usize::from(*length));
            if found == key {
                let end = end.min(self.length);
                self.bytes.copy_within(end..self.length, at);
                self.length -= end - at;
                return;
            }
            at = end;
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let written = self.bytes.get(..self.length).unwrap_or_default();
        // SAFETY: so many are written.
        unsafe { slice::from_raw_parts(written.as_ptr().cast(), written.len()) }
    }
}

#[cfg(test)]
pub(super) mod tests {
    extern crate std;

    use std::string::String;
    use std::vec::Vec;

    use super::*;

    /// What a set holds.
    pub(crate) fn labels(mut set: &[u8]) -> Vec<(u8, String)> {
        let mut labels = Vec::new();
        while let [key, length, rest @ ..] = set {
            let (value, rest) = rest.split_at(usize::from(*length));
            labels.push((*key, String::from_utf8(value.to_vec()).unwrap()));
            set = rest;
        }
        labels
    }

    #[test]
    fn the_last_label_of_a_key_counts() {
        let mut set = Set::new();
        for (key, value) in [(3, "a"), (0, ""), (3, "bcd"), (1, "e"), (0, "f")] {
            set.add(key, value.as_bytes());
        }
        let kept = [(3, "bcd"), (1, "e"), (0, "f")].map(|(key, value)| (key, String::from(value)));
        assert_eq!(labels(set.bytes()), kept);
    }

    #[test]
    fn a_long_label_is_cut_between_two_characters() {
        let mut set = Set::new();
        set.add(0, "ä".repeat(100).as_bytes());
        let kept = labels(set.bytes());
        assert_eq!(kept, [(0, "ä".repeat((SET_BYTES - 2) / 2))]);
        set.add(1, b"no room");
        assert_eq!(labels(set.bytes()), kept);
        set.add(0, b"short");
        set.add(1, b"room");
        assert_eq!(
            labels(set.bytes()),
            [(0, "short".into()), (1, "room".into())]
        );
    }
}
