//! Labels of one thread, in a bounded buffer.

use core::mem::MaybeUninit;
use core::ptr;
use core::slice;

/// Maximum number of words in a set.
pub(super) const SET_WORDS: usize = 23;

const WORD: usize = size_of::<u64>();
/// Number of bytes before a value: its key and its length.
const HEAD: usize = 2;

// A length is stored in one byte.
const _: () = assert!(SET_WORDS * WORD <= u8::MAX as usize);

/// Buffer for the words of a set. It is not initialized, because each sample uses a new one.
pub(super) type LabelSetBuffer = [MaybeUninit<u64>; SET_WORDS];

/// Labels as they are stored: for each label, the key index, the length and the value, padded with zeros to whole
/// words. Sets are copied, hashed and compared by whole words, because a word load right after byte stores would stall
/// on the processor's store buffer.
pub(super) struct LabelSet<'a> {
    words: &'a mut LabelSetBuffer,
    /// Number of written words.
    length: usize,
}

impl<'a> LabelSet<'a> {
    pub(super) const fn new(words: &'a mut LabelSetBuffer) -> Self {
        Self { words, length: 0 }
    }

    /// Adds a label. A later label with the same key replaces an earlier one. A value that does not fit is cut between
    /// two characters. If the set is full, the label is omitted. The value may be inconsistent if this runs in a signal
    /// handler that interrupted the thread while it changed the value.
    ///
    /// # Safety
    /// The `length` bytes from `value` on, and the eight bytes before them, are readable.
    #[inline(always)]
    pub(super) unsafe fn add_label(&mut self, key: u8, value: usize, length: usize) {
        self.remove_label(key);
        let available = (SET_WORDS - self.length.min(SET_WORDS)) * WORD;
        let mut kept = length;
        if HEAD + length > available {
            if available == 0 {
                return;
            }
            // SAFETY: the value is longer than `available - HEAD`, and the caller guarantees that it is readable.
            kept = unsafe { truncated_length(value, available - HEAD) };
        }
        let (start, size) = (value.wrapping_sub(HEAD), HEAD + kept);
        let count = size.div_ceil(WORD);
        let buffer = self.words.get_mut(self.length..self.length + count);
        let Some([whole @ .., last]) = buffer else {
            return;
        };
        for (index, word) in whole.iter_mut().enumerate() {
            // SAFETY: these bytes start at most `HEAD` before the value. The caller guarantees that they are readable.
            word.write(unsafe { read_once(start.wrapping_add(index * WORD)) });
        }
        // SAFETY: these are the last eight bytes of the value, or some before it. The caller guarantees that they are
        // readable.
        let end: u64 = unsafe { read_once(start.wrapping_add(size).wrapping_sub(WORD)) };
        last.write(end >> (u8::BITS as usize * (count * WORD - size)));
        let head = (kept as u64) << 8 | u64::from(key);
        // The two bytes before the value become its key and length.
        if let Some(first) = self.words.get_mut(self.length) {
            // SAFETY: the loop or `last.write` above has initialized the first word.
            first.write(unsafe { first.assume_init() } & !0xffff | head);
        }
        self.length += count;
    }

    /// Removes the label with this key, and moves the later labels to its place. Does nothing if there is none.
    #[inline(always)]
    fn remove_label(&mut self, key: u8) {
        let mut index = 0;
        while let Some(head) = self.words().get(index) {
            let [found, length, ..] = head.to_le_bytes();
            let end = index + (HEAD + usize::from(length)).div_ceil(WORD);
            if found == key {
                let end = end.min(self.length);
                self.words.copy_within(end..self.length, index);
                self.length -= end - index;
                return;
            }
            index = end;
        }
    }

    /// Returns the encoded labels: the words that were written so far.
    pub(super) fn words(&self) -> &[u64] {
        let written = self.words.get(..self.length).unwrap_or_default();
        // SAFETY: `add_label` has initialized the first `length` words.
        unsafe { slice::from_raw_parts(written.as_ptr().cast(), written.len()) }
    }
}

/// Returns the length at which to cut a longer value: at most `max`, and not inside a character.
///
/// # Safety
/// `max + 1` bytes from `value` on are readable.
#[cold]
unsafe fn truncated_length(value: usize, max: usize) -> usize {
    let continues = |index: usize| {
        // SAFETY: `index` is at most `max`, and the caller guarantees that `max + 1` bytes are readable.
        let byte: u8 = unsafe { read_once(value.wrapping_add(index)) };
        // Continuation bytes of UTF-8 start with the bits 10.
        byte & 0xc0 == 0x80
    };
    let mut end = max;
    while end > 0 && continues(end) {
        end -= 1;
    }
    end
}

/// Reads a number from an address, aligned or not, exactly once.
///
/// # Safety
/// `size_of::<T>()` bytes from `address` on are readable.
#[inline(always)]
pub(super) unsafe fn read_once<T: Copy>(address: usize) -> T {
    #[repr(C, packed)]
    struct Anywhere<T>(T);
    // SAFETY: a packed struct needs no alignment, and the caller guarantees that the bytes are readable.
    unsafe { ptr::with_exposed_provenance::<Anywhere<T>>(address).read_volatile() }.0
}

/// Labels of a stored set: the index of each key among the recorded keys, and the value.
#[derive(Clone, Debug)]
pub struct LabelIter<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for LabelIter<'a> {
    type Item = (u8, &'a [u8]);

    /// Returns the key and value of the next label. `None` after the last one, or if the rest is incomplete.
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

    /// Returns the labels of a set, each as the key's number and the value.
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

    /// Adds a label to a set. Eight other bytes precede the value, as [`LabelSet::add`] requires.
    pub(crate) fn add(set: &mut LabelSet<'_>, key: u8, value: &str) {
        let bytes = [&[0xff; WORD], value.as_bytes()].concat();
        let start = bytes.as_ptr().expose_provenance();
        // SAFETY: `bytes` holds the value and eight bytes before it.
        unsafe { set.add_label(key, start + WORD, value.len()) };
    }

    #[test]
    fn later_label_replaces_earlier_of_same_key() {
        let mut buffer = [MaybeUninit::uninit(); SET_WORDS];
        let mut set = LabelSet::new(&mut buffer);
        let long = "a value of several words";
        for (key, value) in [(3, "a"), (0, ""), (3, long), (1, "sixsix"), (0, "f")] {
            add(&mut set, key, value);
        }
        let kept =
            [(3, long), (1, "sixsix"), (0, "f")].map(|(key, value)| (key, String::from(value)));
        assert_eq!(labels(&set), kept);
    }

    #[test]
    fn values_of_all_lengths_are_kept_and_padded_with_zeros() {
        let text: String = ('!'..='~').cycle().take(SET_WORDS * WORD - HEAD).collect();
        for length in 0..=text.len() {
            let mut buffer = [MaybeUninit::uninit(); SET_WORDS];
            let mut set = LabelSet::new(&mut buffer);
            let value = &text[..length];
            add(&mut set, 7, value);
            assert_eq!(labels(&set), [(7, String::from(value))]);
            let bytes = set.words().iter().flat_map(|word| word.to_ne_bytes());
            let padding: Vec<u8> = bytes.skip(HEAD + length).collect();
            assert!(padding.len() < WORD && padding.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn long_value_is_cut_between_two_characters() {
        let mut buffer = [MaybeUninit::uninit(); SET_WORDS];
        let mut set = LabelSet::new(&mut buffer);
        add(&mut set, 0, &"ä".repeat(100));
        let kept = labels(&set);
        assert_eq!(kept, [(0, "ä".repeat((SET_WORDS * WORD - HEAD) / 2))]);
        add(&mut set, 1, "no buffer");
        assert_eq!(labels(&set), kept);
        add(&mut set, 0, "short");
        add(&mut set, 1, "buffer");
        assert_eq!(labels(&set), [(0, "short".into()), (1, "buffer".into())]);
    }
}
