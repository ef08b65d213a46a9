//! Dictionary of a message, to which entries are added.

use std::collections::HashMap;
use std::hash::Hash;

use memprof_report::{AddressId, StackId, StringId, Strings, SymbolizedProfile};

use super::messages::{Dictionary, Empty, Function, Line, Location, Mapping, ProtoStack};

/// Table of the dictionary, without duplicates. Its first entry is zero.
struct Table<T> {
    entries: Vec<T>,
    indices: HashMap<T, i32>,
}

impl<T: Clone + Default + Eq + Hash> Table<T> {
    /// Creates a table with the default entry at index 0, as OTLP requires.
    fn new() -> Self {
        let mut table = Self {
            entries: Vec::new(),
            indices: HashMap::new(),
        };
        table.intern(T::default());
        table
    }

    /// Returns the index of an entry. Adds the entry if it is new.
    fn intern(&mut self, entry: T) -> i32 {
        let next = self.entries.len() as i32;
        let index = *self.indices.entry(entry.clone()).or_insert(next);
        if index == next {
            self.entries.push(entry);
        }
        index
    }
}

/// Tables to which the samples of a profile refer.
pub(super) struct Tables<'n> {
    symbolized: &'n SymbolizedProfile,
    strings: Strings,
    functions: Table<Function>,
    mappings: Table<Mapping>,
    locations: Table<Location>,
    stacks: Table<ProtoStack>,
    known_locations: HashMap<AddressId, i32>,
    known_stacks: HashMap<StackId, i32>,
}

impl<'n> Tables<'n> {
    /// Creates the tables for stacks of `symbolized`. Each table has the default entry at index 0, as OTLP requires.
    pub(super) fn new(symbolized: &'n SymbolizedProfile) -> Self {
        let mut strings = Strings::default();
        strings.intern("");
        Self {
            symbolized,
            strings,
            functions: Table::new(),
            mappings: Table::new(),
            locations: Table::new(),
            stacks: Table::new(),
            known_locations: HashMap::new(),
            known_stacks: HashMap::new(),
        }
    }

    /// Returns the index of a string. Adds the string if it is new.
    pub(super) fn intern_string(&mut self, text: &str) -> i32 {
        self.strings.intern(text).0 as i32
    }

    /// Returns the index of a stack. Adds the stack and its locations if they are new.
    pub(super) fn intern_stack(&mut self, id: StackId) -> i32 {
        if let Some(index) = self.known_stacks.get(&id) {
            return *index;
        }
        let frames = self.symbolized.profile.stacks.frames(id);
        let location_indices = frames
            .iter()
            .map(|frame| self.intern_location(*frame))
            .collect();
        let index = self.stacks.intern(ProtoStack { location_indices });
        self.known_stacks.insert(id, index);
        index
    }

    /// Returns the index of a location: the functions of an address, and their module. Adds the location if it is new.
    /// It has no address, because the profile is a sum over builds and machines.
    fn intern_location(&mut self, id: AddressId) -> i32 {
        if let Some(index) = self.known_locations.get(&id) {
            return *index;
        }
        let symbolized = self.symbolized;
        let mapping = symbolized.profile.mapping_of_frame(id);
        let frames = symbolized.names.frames(id).iter();
        let functions =
            frames.map(|frame| self.intern_function(symbolized.names.strings.get(frame.function)));
        let lines = functions
            .filter(|index| *index != 0)
            .map(|function_index| Line { function_index })
            .collect();
        let location = Location {
            lines,
            mapping_index: mapping.map_or(0, |mapping| self.intern_mapping(mapping)),
        };
        let index = self.locations.intern(location);
        self.known_locations.insert(id, index);
        index
    }

    /// Returns the index of a function; 0 for an empty name. Adds the function if it is new.
    fn intern_function(&mut self, name: &str) -> i32 {
        let name_strindex = self.intern_string(name);
        self.functions.intern(Function { name_strindex })
    }

    /// Returns the index of the module of the mapping `index` in the profile; 0 for a mapping without a path. Adds the
    /// module if it is new.
    fn intern_mapping(&mut self, index: usize) -> i32 {
        let mapping = &self.symbolized.profile.mappings[index];
        // A function outside every module has a mapping without a path.
        let name = match mapping.path.is_empty() {
            true => "",
            false => mapping.file_name(),
        };
        let filename_strindex = self.intern_string(name);
        self.mappings.intern(Mapping { filename_strindex })
    }

    /// Returns the dictionary of all entries. The tables of links and attributes, which are not used, only have the
    /// default entry.
    pub(super) fn into_dictionary(self) -> Dictionary {
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
