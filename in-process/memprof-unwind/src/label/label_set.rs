//! The labels of one thread, in a bounded number of words.

use core::mem::MaybeUninit;
use core::ptr;
use core::slice;

/// Words of a set, at the most.
pub(super) const SET_WORDS: usize = 23;

const WORD: usize = size_of::<u64>();
/// The key and the length that stand before a value.
const HEAD: usize = 2;

// A length is one byte.
const _: () = assert!(SET_WORDS * WORD <= u8::MAX as usize);

/// Room for the words of a set, which need not be cleared: there is a set for each sample.
pub(super) type LabelSetBuffer = [MaybeUninit<u64>; SET_WORDS];

/// Labels as they are kept: `key index, length, bytes` of each, filled up with zeros to whole words. So they are
/// copied, hashed and compared by words: bytes that were written one by one and are read as a word at once wait
/// for the processor's store buffer.
pub(super) struct LabelSet<'a> {
    words: &'a mut LabelSetBuffer,
    /// So many of them are written.
    length: usize,
}

impl<'a> LabelSet<'a> {
    pub(super) const fn new(words: &'a mut LabelSetBuffer) -> Self {
        Self { words, length: 0 }
    }

    /// Adds a label whose value lies in memory that its thread may have been changing when it was interrupted. A
    /// later label of the same key counts. What does not fit is cut, between two characters.
    ///
    /// # Safety
    /// So many bytes can be read there, and the eight bytes before them.
    #[inline(always)]
    pub(super) unsafe fn add(&mut self, key: u8, value: usize, length: usize) {
        self.remove(key);
        let left = (SET_WORDS - self.length.min(SET_WORDS)) * WORD;
        let mut kept = length;
        if HEAD + length > left {
            if left == 0 {
                return;
            }
            // SAFETY: promised by the caller.
            kept = unsafe { truncate_at_char(value, left - HEAD) };
        }
        let (start, size) = (value.wrapping_sub(HEAD), HEAD + kept);
        let count = size.div_ceil(WORD);
        let room = self.words.get_mut(self.length..self.length + count);
        let Some([whole @ .., last]) = room else {
            return;
        };
        for (at, word) in whole.iter_mut().enumerate() {
            // SAFETY: promised by the caller: it begins in the head, or later.
            word.write(unsafe { read_once(start.wrapping_add(at * WORD)) });
        }
        // SAFETY: promised by the caller: it ends where the value ends.
        let end: u64 = unsafe { read_once(start.wrapping_add(size).wrapping_sub(WORD)) };
        last.write(end >> (u8::BITS as usize * (count * WORD - size)));
        let head = (kept as u64) << 8 | u64::from(key);
        if let Some(first) = self.words.get_mut(self.length) {
            // SAFETY: written just now.
            first.write(unsafe { first.assume_init() } & !0xffff | head);
        }
        self.length += count;
    }

    #[inline(always)]
    fn remove(&mut self, key: u8) {
        let mut at = 0;
        while let Some(head) = self.words().get(at) {
            let [found, length, ..] = head.to_le_bytes();
            let end = at + (HEAD + usize::from(length)).div_ceil(WORD);
            if found == key {
                let end = end.min(self.length);
                self.words.copy_within(end..self.length, at);
                self.length -= end - at;
                return;
            }
            at = end;
        }
    }

    pub(super) fn words(&self) -> &[u64] {
        let written = self.words.get(..self.length).unwrap_or_default();
        // SAFETY: so many are written.
        unsafe { slice::from_raw_parts(written.as_ptr().cast(), written.len()) }
    }
}

/// Where a value of more bytes is cut, so that at most `most` remain and no character is broken.
///
/// # Safety
/// `most + 1` bytes can be read there.
#[cold]
unsafe fn truncate_at_char(value: usize, most: usize) -> usize {
    let continues = |at: usize| {
        // SAFETY: promised by the caller.
        let byte: u8 = unsafe { read_once(value.wrapping_add(at)) };
        // The rest of a character of UTF-8 begins with the bits 10.
        byte & 0xc0 == 0x80
    };
    let mut end = most;
    while end > 0 && continues(end) {
        end -= 1;
    }
    end
}

/// Reads a number from any address, exactly once.
///
/// # Safety
/// As many bytes as `T` has can be read there.
#[inline(always)]
pub(super) unsafe fn read_once<T: Copy>(address: usize) -> T {
    #[repr(C, packed)]
    struct Anywhere<T>(T);
    // SAFETY: promised by the caller; it need not be aligned.
    unsafe { ptr::with_exposed_provenance::<Anywhere<T>>(address).read_volatile() }.0
}

/// The labels of a kept set: the key, as its number among those that count, and the value of each.
#[derive(Clone, Debug)]
pub struct LabelIter<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for LabelIter<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = self.0.split_at_checked(HEAD)?;
        let [key, length] = *head else {
            return None;
        };
        let value = rest.get(..usize::from(length))?;
        let size = (HEAD + value.len()).next_multiple_of(WORD);
        self.0 = self.0.get(size..).unwrap_or_default();
        Some((key, value))
    }
}

#[cfg(test)]
pub(super) mod tests {
    extern crate std;

    use std::string::String;
    use std::vec::Vec;

    use super::*;

    /// What a set holds.
    pub(crate) fn labels(set: &LabelSet<'_>) -> Vec<(u8, String)> {
        let bytes: Vec<u8> = set
            .words()
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let labels = LabelIter(&bytes);
        labels
            .map(|(key, value)| (key, String::from_utf8(value.to_vec()).unwrap()))
            .collect()
    }

    /// Adds a value that stands behind other bytes.
    pub(crate) fn add(set: &mut LabelSet<'_>, key: u8, value: &str) {
        let bytes = [&[0xff; WORD], value.as_bytes()].concat();
        let start = bytes.as_ptr().expose_provenance();
        // SAFETY: these bytes, and eight before them, are there.
        unsafe { set.add(key, start + WORD, value.len()) };
    }

    #[test]
    fn the_last_label_of_a_key_counts() {
        let mut room = [MaybeUninit::uninit(); SET_WORDS];
        let mut set = LabelSet::new(&mut room);
        let long = "a value of several words";
        for (key, value) in [(3, "a"), (0, ""), (3, long), (1, "sixsix"), (0, "f")] {
            add(&mut set, key, value);
        }
        let kept =
            [(3, long), (1, "sixsix"), (0, "f")].map(|(key, value)| (key, String::from(value)));
        assert_eq!(labels(&set), kept);
    }

    #[test]
    fn values_of_any_length_are_kept_and_what_fills_them_up_is_zero() {
        let text: String = ('!'..='~').cycle().take(SET_WORDS * WORD - HEAD).collect();
        for length in 0..=text.len() {
            let mut room = [MaybeUninit::uninit(); SET_WORDS];
            let mut set = LabelSet::new(&mut room);
            let value = &text[..length];
            add(&mut set, 7, value);
            assert_eq!(labels(&set), [(7, String::from(value))]);
            let bytes = set.words().iter().flat_map(|word| word.to_ne_bytes());
            let filling: Vec<u8> = bytes.skip(HEAD + length).collect();
            assert!(filling.len() < WORD && filling.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_long_label_is_cut_between_two_characters() {
        let mut room = [MaybeUninit::uninit(); SET_WORDS];
        let mut set = LabelSet::new(&mut room);
        add(&mut set, 0, &"ä".repeat(100));
        let kept = labels(&set);
        assert_eq!(kept, [(0, "ä".repeat((SET_WORDS * WORD - HEAD) / 2))]);
        add(&mut set, 1, "no room");
        assert_eq!(labels(&set), kept);
        add(&mut set, 0, "short");
        add(&mut set, 1, "room");
        assert_eq!(labels(&set), [(0, "short".into()), (1, "room".into())]);
    }
}
