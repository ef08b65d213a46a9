//! The dictionary of a message while it grows.

use std::collections::HashMap;
use std::hash::Hash;

use memprof_report::{Address, AddressId, StackId, StringId, Strings, SymbolizedProfile};

use super::messages::{Dictionary, Empty, Function, Line, Location, Mapping, Stack};

/// A table of the dictionary. Its first entry is zero, and none is there twice.
struct Table<T> {
    entries: Vec<T>,
    indices: HashMap<T, i32>,
}

impl<T: Clone + Default + Eq + Hash> Table<T> {
    fn new() -> Self {
        let mut table = Self {
            entries: Vec::new(),
            indices: HashMap::new(),
        };
        table.index(T::default());
        table
    }

    /// The index of an entry, new or not.
    fn index(&mut self, entry: T) -> i32 {
        let next = self.entries.len() as i32;
        let index = *self.indices.entry(entry.clone()).or_insert(next);
        if index == next {
            self.entries.push(entry);
        }
        index
    }
}

/// What the samples of a profile refer to.
pub(super) struct Tables<'n> {
    named: &'n SymbolizedProfile,
    strings: Strings,
    functions: Table<Function>,
    mappings: Table<Mapping>,
    locations: Table<Location>,
    stacks: Table<Stack>,
    known_locations: HashMap<AddressId, i32>,
    known_stacks: HashMap<StackId, i32>,
}

impl<'n> Tables<'n> {
    pub(super) fn new(named: &'n SymbolizedProfile) -> Self {
        let mut strings = Strings::default();
        strings.intern("");
        Self {
            named,
            strings,
            functions: Table::new(),
            mappings: Table::new(),
            locations: Table::new(),
            stacks: Table::new(),
            known_locations: HashMap::new(),
            known_stacks: HashMap::new(),
        }
    }

    pub(super) fn string(&mut self, text: &str) -> i32 {
        self.strings.intern(text).0 as i32
    }

    pub(super) fn stack(&mut self, id: StackId) -> i32 {
        if let Some(index) = self.known_stacks.get(&id) {
            return *index;
        }
        let frames = self.named.profile.stacks.frames(id);
        let location_indices = frames.iter().map(|frame| self.location(*frame)).collect();
        let index = self.stacks.index(Stack { location_indices });
        self.known_stacks.insert(id, index);
        index
    }

    /// A function of a module. There are no addresses: many builds and machines are one sum.
    fn location(&mut self, id: AddressId) -> i32 {
        if let Some(index) = self.known_locations.get(&id) {
            return *index;
        }
        let named = self.named;
        let call = Address(named.profile.stacks.address(id).0.wrapping_sub(1));
        let mapping = named.profile.mapping_of(call);
        let frames = named.names.frames(id).iter();
        let functions = frames.map(|frame| self.function(named.names.strings.get(frame.function)));
        let lines = functions
            .filter(|index| *index != 0)
            .map(|function_index| Line { function_index })
            .collect();
        let location = Location {
            lines,
            mapping_index: mapping.map_or(0, |mapping| self.mapping(mapping)),
        };
        let index = self.locations.index(location);
        self.known_locations.insert(id, index);
        index
    }

    fn function(&mut self, name: &str) -> i32 {
        let name_strindex = self.string(name);
        self.functions.index(Function { name_strindex })
    }

    fn mapping(&mut self, at: usize) -> i32 {
        let mapping = &self.named.profile.mappings[at];
        // The module of a function that lies in none has no path.
        let name = match mapping.path.is_empty() {
            true => "",
            false => mapping.file_name(),
        };
        let filename_strindex = self.string(name);
        self.mappings.index(Mapping { filename_strindex })
    }

    pub(super) fn finish(self) -> Dictionary {
        let strings = (0..self.strings.len() as u32).map(StringId);
        Dictionary {
            mapping_table: self.mappings.entries,
            location_table: self.locations.entries,
            function_table: self.functions.entries,
            link_table: vec![Empty {}],
            string_table: strings.map(|id| self.strings.get(id).to_owned()).collect(),
            attribute_table: vec![Empty {}],
            stack_table: self.stacks.entries,
        }
    }
}
