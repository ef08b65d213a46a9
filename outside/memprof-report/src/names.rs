//! Names of addresses: the frames of each address, several where functions were inlined.

use std::borrow::Cow;
use std::hash::BuildHasher;

use foldhash::HashMap;
use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::call_shape::CallShape;
use crate::stacks::AddressId;

/// Interned strings.
#[derive(Debug, Default)]
pub struct Strings {
    list: Vec<Box<str>>,
    /// Ids by the hashes of their strings.
    ids: HashTable<StringId>,
    hasher: RandomState,
}

/// Id of a string in one [`Strings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StringId(pub u32);

impl Strings {
    /// Returns the id of a string, adding it if it is new. Unprintable characters are replaced first, because an
    /// ELF symbol may hold any byte but zero.
    pub fn intern(&mut self, string: &str) -> StringId {
        // Stored strings are printable, so only a printable one is found.
        if let Some(id) = self.find(string) {
            return id;
        }
        match replace_unprintable(string) {
            Cow::Borrowed(string) => self.add(string),
            Cow::Owned(string) => self.find(&string).unwrap_or_else(|| self.add(&string)),
        }
    }

    /// Returns the id of a printable string; `None` if it is not in the table.
    fn find(&self, string: &str) -> Option<StringId> {
        let is_equal = |id: &StringId| self.get(*id) == string;
        self.ids
            .find(self.hasher.hash_one(string), is_equal)
            .copied()
    }

    /// Adds a printable string that is not in the table.
    fn add(&mut self, string: &str) -> StringId {
        let id = StringId(self.list.len() as u32);
        self.list.push(string.into());
        let hash = |id: &StringId| self.hasher.hash_one(&*self.list[id.0 as usize]);
        self.ids.insert_unique(hash(&id), id, hash);
        id
    }

    /// Whether a string, with its unprintable characters replaced, is in the table.
    pub(crate) fn contains(&self, string: &str) -> bool {
        self.find(string).is_some() || self.find(&replace_unprintable(string)).is_some()
    }

    /// Returns the string with this id. Panics if the id is not in this table.
    pub fn get(&self, id: StringId) -> &str {
        &self.list[id.0 as usize]
    }

    /// The strings, in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|string| &**string)
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// Replaces characters that must not be sent to a terminal by U+FFFD.
pub(crate) fn replace_unprintable(text: &str) -> Cow<'_, str> {
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    match !is_plain && text.contains(is_unprintable) {
        true => Cow::Owned(text.replace(is_unprintable, "\u{fffd}")),
        false => Cow::Borrowed(text),
    }
}

/// Returns whether a character is a control character (C0, C1, or of text direction), a separator of lines or
/// paragraphs, or one of the noncharacters U+FFFE and U+FFFF.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// One function in a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Demangled name, or `libfoo.so+0x1234` if it has no symbol.
    pub function: StringId,
    /// Name of the symbol, where `function` is only a part of it. `None` if they are equal, or the file that has the
    /// symbol was not read.
    pub linkage: Option<StringId>,
    /// Source file. `None` if unknown.
    pub file: Option<StringId>,
    /// Line number; 0 if unknown.
    pub line: u32,
    /// Whether `function` is a symbol's name, not an offset.
    pub named: bool,
}

/// Frames of all addresses of a profile.
#[derive(Debug, Default)]
pub struct Names {
    /// Names of functions and files.
    pub strings: Strings,
    frames: Vec<Frame>,
    /// By [`AddressId`]: start and end in `frames`.
    ranges: Vec<(u32, u32)>,
    /// Language of each managed word's function.
    managed: HashMap<AddressId, StringId>,
    /// Whether the profile says if it has the objects of an interpreter's own heap.
    pub(crate) has_objects_line: bool,
    /// Shapes of calls near the leaf, as far as machine code was read.
    pub(crate) call_shapes: HashMap<AddressId, CallShape>,
}

impl Names {
    /// Returns the frames of an address, innermost first; empty until [`set_frames`](Self::set_frames).
    pub fn frames(&self, address: AddressId) -> &[Frame] {
        match self.ranges.get(address.0 as usize) {
            Some(&(start, end)) => &self.frames[start as usize..end as usize],
            None => &[],
        }
    }

    /// Sets the frames of an address, innermost first, in place of earlier ones.
    pub fn set_frames(&mut self, address: AddressId, frames: &[Frame]) {
        let index = address.0 as usize;
        if self.ranges.len() <= index {
            self.ranges.resize(index + 1, (0, 0));
        }
        let start = self.frames.len() as u32;
        self.frames.extend_from_slice(frames);
        self.ranges[index] = (start, self.frames.len() as u32);
    }

    /// Sets the frame and the language of a managed word, which stands for a function of an interpreted program.
    pub(crate) fn set_managed_word(&mut self, word: AddressId, frame: Frame, language: StringId) {
        self.set_frames(word, &[frame]);
        self.managed.insert(word, language);
    }

    /// Returns the language of a managed word's function. `None` for native code.
    pub(crate) fn language(&self, address: AddressId) -> Option<StringId> {
        self.managed.get(&address).copied()
    }

    /// Returns whether an address is a managed word, which stands for a function of an interpreted program.
    pub(crate) fn is_managed_word(&self, address: AddressId) -> bool {
        self.managed.contains_key(&address)
    }

    /// Returns whether any function is one of an interpreted program.
    pub(crate) fn has_managed_words(&self) -> bool {
        !self.managed.is_empty()
    }

    /// Returns whether any frame has a symbol, a source file or a line, and whether any address has inlined functions.
    pub(crate) fn detail(&self) -> NameDetail {
        NameDetail {
            functions: self.frames.iter().any(|f| f.named),
            files: self.frames.iter().any(|f| f.file.is_some()),
            lines: self.frames.iter().any(|f| f.line != 0),
            inlines: self.ranges.iter().any(|(start, end)| end - start > 1),
        }
    }
}

/// Details that [`Names`] contain, as pprof's mappings declare them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameDetail {
    /// Some frame has a function name.
    pub(crate) functions: bool,
    /// Some frame has a source file.
    pub(crate) files: bool,
    /// Some frame has a line number.
    pub(crate) lines: bool,
    /// Some address has inlined functions.
    pub(crate) inlines: bool,
}
