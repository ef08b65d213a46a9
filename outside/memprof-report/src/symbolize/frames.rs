//! Frames that one file yields for addresses.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::ptr;

use super::source_path::{RustCrate, qualified_name};
use crate::demangle::{demangle, demangle_dotted};
use crate::names::{Frame, Names, StringId, Strings};
use crate::stacks::AddressId;

/// Frames of addresses, with their own strings because several threads collect them.
#[derive(Default)]
pub(super) struct Frames<'s> {
    strings: Strings,
    /// Frames of one address are consecutive, innermost first.
    list: Vec<(AddressId, Frame)>,
    functions: HashMap<StrAddress<'s>, FunctionName>,
    files: HashMap<StrAddress<'s>, StringId>,
    /// Qualified names by function, file and unit.
    in_files: HashMap<(StrAddress<'s>, StrAddress<'s>, StrAddress<'s>), StringId>,
    has_dotted_names: bool,
}

/// Displayed name of a function, and that of its symbol if it is another.
type FunctionName = (StringId, Option<StringId>);

/// Returns whether a source file is of a language in whose names dots separate packages: Go, Zig.
fn has_dotted_names(path: &str) -> bool {
    path.ends_with(".go") || path.ends_with(".zig")
}

/// Text compared by its address: a file stores most names once, and most are looked up repeatedly.
#[derive(Clone, Copy)]
struct StrAddress<'s>(&'s [u8]);

impl PartialEq for StrAddress<'_> {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl Eq for StrAddress<'_> {}

impl Hash for StrAddress<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        ptr::from_ref(self.0).hash(state);
    }
}

impl<'s> Frames<'s> {
    /// Creates an empty list. `has_dotted_names` says that names of the file may have a package and a dot before the
    /// function's.
    pub(super) fn new(has_dotted_names: bool) -> Self {
        Self {
            has_dotted_names,
            ..Self::default()
        }
    }

    /// Adds the next frame of an address. `function` is the name in the file, which is demangled here. `file` is `None`
    /// and `line` 0 if they are unknown.
    pub(super) fn push(
        &mut self,
        address: AddressId,
        function: &'s [u8],
        file: Option<&'s str>,
        line: u32,
    ) {
        let has_dots = self.has_dotted_names || file.is_some_and(has_dotted_names);
        let (function, linkage) = self.intern_function(function, has_dots);
        let frame = Frame {
            function,
            linkage,
            file: file.map(|file| self.intern_file(file)),
            line,
            named: true,
        };
        self.list.push((address, frame));
    }

    /// Adds the next frame of an address, for a Rust function of which debug information has only the last part of the
    /// name. The path of the source file and the name of its `unit` give the crate and module, as far as they show
    /// them.
    pub(super) fn push_in_file(
        &mut self,
        address: AddressId,
        function: &'s [u8],
        (file, line): (&'s str, u32),
        unit: &'s [u8],
    ) {
        let key = (
            StrAddress(function),
            StrAddress(file.as_bytes()),
            StrAddress(unit),
        );
        let function = match self.in_files.get(&key) {
            Some(known) => *known,
            None => {
                let name = String::from_utf8_lossy(function);
                let unit = str::from_utf8(unit)
                    .ok()
                    .and_then(RustCrate::from_unit_name);
                let whole = qualified_name(&name, file, unit);
                let id = self.strings.intern(whole.as_deref().unwrap_or(&name));
                self.in_files.insert(key, id);
                id
            }
        };
        let frame = Frame {
            function,
            linkage: None,
            file: Some(self.intern_file(file)),
            line,
            named: true,
        };
        self.list.push((address, frame));
    }

    /// Adds the next frame of an address, with the scope of its function from debug information: `scope::function`. The
    /// file is `None` and the line 0 if they are unknown.
    pub(super) fn push_in_scope(
        &mut self,
        address: AddressId,
        function: &'s [u8],
        scope: &str,
        (file, line): (Option<&'s str>, u32),
    ) {
        let name = format!("{scope}::{}", String::from_utf8_lossy(function));
        let frame = Frame {
            function: self.strings.intern(&name),
            linkage: None,
            file: file.map(|file| self.intern_file(file)),
            line,
            named: true,
        };
        self.list.push((address, frame));
    }

    /// Gives the last frame another function, by its name in the file, which is demangled here. Does nothing without a
    /// frame.
    pub(super) fn rename_last(&mut self, function: &'s [u8]) {
        let (function, linkage) = self.intern_function(function, false);
        if let Some((_, last)) = self.list.last_mut() {
            (last.function, last.linkage) = (function, linkage);
        }
    }

    /// Returns the ids of a function's demangled name and of its symbol. They are cached by the address of the symbol's
    /// text, which is in the file's tables. `has_dots` says that in the function's language, dots separate packages.
    fn intern_function(&mut self, symbol: &'s [u8], has_dots: bool) -> FunctionName {
        let known = self.functions.entry(StrAddress(symbol));
        *known.or_insert_with(|| {
            let symbol = String::from_utf8_lossy(symbol);
            let name = match has_dots {
                true => demangle_dotted(&symbol),
                false => demangle(&symbol),
            };
            let linkage = (name != symbol).then(|| self.strings.intern(&symbol));
            (self.strings.intern(&name), linkage)
        })
    }

    /// Returns the id of a source file, adding it if it is new.
    fn intern_file(&mut self, path: &'s str) -> StringId {
        let known = self.files.entry(StrAddress(path.as_bytes()));
        *known.or_insert_with(|| self.strings.intern(path))
    }

    /// Number of frames of all addresses so far.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Removes all frames but the first `len`.
    pub(super) fn truncate(&mut self, len: usize) {
        self.list.truncate(len);
    }

    /// Converts the list to one that does not borrow from the file.
    pub(super) fn finish(self) -> CollectedFrames {
        CollectedFrames {
            strings: self.strings,
            list: self.list,
        }
    }
}

/// Frames that do not borrow from a file.
pub(super) struct CollectedFrames {
    strings: Strings,
    list: Vec<(AddressId, Frame)>,
}

impl CollectedFrames {
    /// Moves the frames into `names`, with new string ids. Replaces earlier frames of their addresses.
    pub(super) fn move_to(self, names: &mut Names) {
        let ids: Vec<StringId> = (0..self.strings.len() as u32)
            .map(|id| names.strings.intern(self.strings.get(StringId(id))))
            .collect();
        let mut frames = Vec::new();
        for group in self.list.chunk_by(|(a, _), (b, _)| a == b) {
            frames.clear();
            frames.extend(group.iter().map(|&(_, frame)| Frame {
                function: ids[frame.function.0 as usize],
                linkage: frame.linkage.map(|linkage| ids[linkage.0 as usize]),
                file: frame.file.map(|file| ids[file.0 as usize]),
                ..frame
            }));
            names.set_frames(group[0].0, &frames);
        }
    }
}
