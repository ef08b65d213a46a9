//! The frames that a file gives to addresses.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::ptr;

use super::source_path::{RustCrate, qualified};
use crate::demangle::demangle;
use crate::names::{Frame, Names, StringId, Strings};
use crate::stacks::AddressId;

/// Frames of addresses, with strings of their own: several threads collect them.
#[derive(Default)]
pub(super) struct Frames<'s> {
    strings: Strings,
    /// Those of one address follow each other, innermost first.
    list: Vec<(AddressId, Frame)>,
    functions: HashMap<StrAddress<'s>, StringId>,
    files: HashMap<StrAddress<'s>, StringId>,
    /// By function, file and unit.
    in_files: HashMap<(StrAddress<'s>, StrAddress<'s>, StrAddress<'s>), StringId>,
}

/// Text known by where it lies: a file has most of its names once, and most are asked for again and again.
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
    /// Adds the next frame of an address, by the name that the linker knows.
    pub(super) fn push(
        &mut self,
        address: AddressId,
        function: &'s [u8],
        file: Option<&'s str>,
        line: u32,
    ) {
        let frame = Frame {
            function: self.function(function),
            file: file.map(|file| self.file(file)),
            line,
            named: true,
        };
        self.list.push((address, frame));
    }

    /// Adds the next frame of an address, which debug information calls by the last part of its name only.
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
                let whole = qualified(&name, file, unit);
                let id = self.strings.intern(whole.as_deref().unwrap_or(&name));
                self.in_files.insert(key, id);
                id
            }
        };
        let frame = Frame {
            function,
            file: Some(self.file(file)),
            line,
            named: true,
        };
        self.list.push((address, frame));
    }

    /// Adds the next frame of an address, of a function whose scope debug information tells.
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
            file: file.map(|file| self.file(file)),
            line,
            named: true,
        };
        self.list.push((address, frame));
    }

    /// Renames the frame that was added last.
    pub(super) fn rename_last(&mut self, function: &'s [u8]) {
        let function = self.function(function);
        if let Some((_, last)) = self.list.last_mut() {
            last.function = function;
        }
    }

    fn function(&mut self, linked: &'s [u8]) -> StringId {
        let name = || demangle(&String::from_utf8_lossy(linked)).into_owned();
        let known = self.functions.entry(StrAddress(linked));
        *known.or_insert_with(|| self.strings.intern(&name()))
    }

    fn file(&mut self, path: &'s str) -> StringId {
        let known = self.files.entry(StrAddress(path.as_bytes()));
        *known.or_insert_with(|| self.strings.intern(path))
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.list.truncate(len);
    }

    /// Without what the file lent.
    pub(super) fn finish(self) -> CollectedFrames {
        CollectedFrames {
            strings: self.strings,
            list: self.list,
        }
    }
}

/// Frames whose file is closed.
pub(super) struct CollectedFrames {
    strings: Strings,
    list: Vec<(AddressId, Frame)>,
}

impl CollectedFrames {
    pub(super) fn move_to(self, names: &mut Names) {
        let ids: Vec<StringId> = (0..self.strings.len() as u32)
            .map(|id| names.strings.intern(self.strings.get(StringId(id))))
            .collect();
        let mut frames = Vec::new();
        for group in self.list.chunk_by(|(a, _), (b, _)| a == b) {
            frames.clear();
            frames.extend(group.iter().map(|&(_, frame)| Frame {
                function: ids[frame.function.0 as usize],
                file: frame.file.map(|file| ids[file.0 as usize]),
                ..frame
            }));
            names.set(group[0].0, &frames);
        }
    }
}
