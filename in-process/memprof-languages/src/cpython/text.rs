//! Strings of the interpreter, read in place.

use core::iter;

use super::layout::FieldOffsets;
use crate::names::NameText;
use crate::reader::{ReadableRange, Reader};

/// Most characters of a function's name that are kept: the first ones.
const MAX_FUNCTION: usize = 240;
/// Most characters of a file's path that are kept: the last ones.
const MAX_FILE: usize = 480;
/// Most characters of a string that is read.
const MAX_TEXT: usize = 1 << 14;
/// Stands for characters that are left out.
const CUT: char = '…';

/// A compact `str` object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    data: ReadableRange,
    /// Bytes per character: 1, 2 or 4.
    width: usize,
}

impl Text {
    /// Reads the header of the `str` object at address `object`, and checks that its characters are readable. `None` if
    /// the object is unreadable, empty, not compact, or longer than [`MAX_TEXT`] characters, or if its characters have
    /// not 1, 2 or 4 bytes each.
    pub(super) fn read(
        layout: &FieldOffsets,
        object: usize,
        reader: &mut Reader<'_>,
    ) -> Option<Self> {
        // `PyASCIIObject.state`: interned (2 bits), kind (3), compact, ascii.
        let state = reader.read_u32(object, layout.text_state)?;
        let (width, is_compact, is_ascii) =
            (state >> 2 & 7, state >> 5 & 1 != 0, state >> 6 & 1 != 0);
        let len = reader.read_word(object, layout.text_len)?;
        if !is_compact || !matches!(width, 1 | 2 | 4) || !(1..=MAX_TEXT).contains(&len) {
            return None;
        }
        let head = match is_ascii {
            true => layout.text_ascii,
            false => layout.text_compact,
        };
        let width = width as usize;
        let data = reader.readable_range(object, head, len * width)?;
        Some(Self { data, width })
    }

    /// Number of characters (not bytes).
    fn len(self) -> usize {
        self.data.len() / self.width
    }

    /// Returns the character at an index; U+FFFD for a surrogate. `None` beyond the end.
    fn char_at(self, index: usize) -> Option<char> {
        let offset = index * self.width;
        let code = match self.width {
            1 => self.data.read_u8(offset)?.into(),
            2 => self.data.read_u16(offset)?.into(),
            _ => self.data.read_u32(offset)?,
        };
        // `CPython` stores a byte of a path that is no UTF-8 as a surrogate.
        Some(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    /// Iterates over the first `max` characters, followed by [`CUT`] if there are more.
    fn first_chars(self, max: usize) -> impl Iterator<Item = char> {
        let cut = (self.len() > max).then_some(CUT);
        let chars = (0..self.len().min(max)).map_while(move |index| self.char_at(index));
        chars.chain(cut)
    }

    /// Iterates over the last `max` characters, after [`CUT`] if there are more.
    fn last_chars(self, max: usize) -> impl Iterator<Item = char> {
        let skipped = self.len().saturating_sub(max);
        let cut = (skipped > 0).then_some(CUT);
        let chars = (skipped..self.len()).map_while(move |index| self.char_at(index));
        cut.into_iter().chain(chars)
    }
}

/// Name of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameName {
    pub(super) function: Text,
    pub(super) file: Text,
}

impl FrameName {
    /// Hashes the function's name, the file's path and a line. The hash is of the characters, not of the objects'
    /// addresses, because other objects may be at these addresses later.
    pub(super) fn hash(&self, line: u32) -> u64 {
        let lens = [self.function.len() as u64, self.file.len() as u64];
        let chars = self
            .function_chars()
            .chain(iter::once('\0'))
            .chain(self.file_chars());
        let numbers = chars.map(|c| u64::from(u32::from(c)));
        let words = iter::once(u64::from(line)).chain(lens).chain(numbers);
        words.fold(1, |hash: u64, word| {
            // An odd factor whose bits are well mixed: 2^64 divided by the golden ratio.
            let mixed = (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            mixed ^ mixed >> 29
        })
    }

    /// Iterates over the function's name, of which at most [`MAX_FUNCTION`] characters are kept.
    fn function_chars(&self) -> impl Iterator<Item = char> + use<> {
        self.function.first_chars(MAX_FUNCTION)
    }

    /// Iterates over the file's path, of which at most [`MAX_FILE`] characters are kept.
    fn file_chars(&self) -> impl Iterator<Item = char> + use<> {
        self.file.last_chars(MAX_FILE)
    }
}

impl NameText for FrameName {
    fn write_function_name(&self, write: &mut dyn FnMut(u8)) {
        write_utf8(self.function_chars(), write);
    }

    fn write_file_name(&self, write: &mut dyn FnMut(u8)) {
        write_utf8(self.file_chars(), write);
    }

    fn max_len(&self) -> u32 {
        let chars = self.function_chars().chain(self.file_chars());
        chars.map(char::len_utf8).sum::<usize>() as u32
    }
}

/// Passes each byte of the characters' UTF-8 to `write`.
fn write_utf8(chars: impl Iterator<Item = char>, write: &mut dyn FnMut(u8)) {
    for c in chars {
        c.encode_utf8(&mut [0; 4]).bytes().for_each(&mut *write);
    }
}
