//! Names of addresses: each address has one frame or, where functions were inlined, several.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::stacks::AddressId;

/// Strings, each kept once.
#[derive(Debug, Default)]
pub struct Strings {
    list: Vec<Box<str>>,
    ids: HashMap<Box<str>, StringId>,
}

/// Names a string of one [`Strings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StringId(pub u32);

impl Strings {
    /// The id of a string, new or not. All names pass through here and become printable: an ELF symbol may hold
    /// any byte but zero.
    pub fn intern(&mut self, string: &str) -> StringId {
        // What is kept is printable: this finds no other.
        if let Some(&id) = self.ids.get(string) {
            return id;
        }
        let string = &*printable(string);
        if let Some(&id) = self.ids.get(string) {
            return id;
        }
        let id = StringId(self.list.len() as u32);
        self.list.push(string.into());
        self.ids.insert(string.into(), id);
        id
    }

    /// The string behind an id.
    pub fn get(&self, id: StringId) -> &str {
        &self.list[id.0 as usize]
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// Text of a profile or a binary as it may be shown: what no terminal should be sent is replaced by U+FFFD.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    match !is_plain && text.contains(is_unprintable) {
        true => Cow::Owned(text.replace(is_unprintable, "\u{fffd}")),
        false => Cow::Borrowed(text),
    }
}

/// C0, C1 and the controls of text direction.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// A function at a place in a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The demangled name, or `libfoo.so+0x1234` where there is none.
    pub function: StringId,
    /// The source file.
    pub file: Option<StringId>,
    /// The line in it; 0 is unknown.
    pub line: u32,
    /// Whether `function` is a name, not a number.
    pub named: bool,
}

/// The frames of all addresses of a profile.
#[derive(Debug, Default)]
pub struct Names {
    /// Functions and files.
    pub strings: Strings,
    frames: Vec<Frame>,
    /// By [`AddressId`].
    ranges: Vec<(u32, u32)>,
}

impl Names {
    /// The frames of an address, innermost first; none until [`set`](Self::set).
    pub fn frames(&self, address: AddressId) -> &[Frame] {
        match self.ranges.get(address.0 as usize) {
            Some(&(start, end)) => &self.frames[start as usize..end as usize],
            None => &[],
        }
    }

    /// Gives an address its frames, innermost first.
    pub fn set(&mut self, address: AddressId, frames: &[Frame]) {
        let index = address.0 as usize;
        if self.ranges.len() <= index {
            self.ranges.resize(index + 1, (0, 0));
        }
        let start = self.frames.len() as u32;
        self.frames.extend_from_slice(frames);
        self.ranges[index] = (start, self.frames.len() as u32);
    }

    /// Whether any frame is a name; any has a file; any has a line; any address has several frames.
    pub(crate) fn detail(&self) -> NameDetail {
        NameDetail {
            functions: self.frames.iter().any(|f| f.named),
            files: self.frames.iter().any(|f| f.file.is_some()),
            lines: self.frames.iter().any(|f| f.line != 0),
            inlines: self.ranges.iter().any(|(start, end)| end - start > 1),
        }
    }
}

/// What [`Names`] hold; pprof mappings say it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameDetail {
    /// Function names.
    pub(crate) functions: bool,
    /// Source files.
    pub(crate) files: bool,
    /// Line numbers.
    pub(crate) lines: bool,
    /// Inlined functions.
    pub(crate) inlines: bool,
}
