//! Variables of Python as holders.
//!
//! Each function has a pointer to the dict of its module, so in the graph all objects hold all variables. Therefore the
//! pointers of variables are taken from the tables that contain them: each is its own holder. A weak reference holds
//! nothing, and neither does a string, whose end in its block often has the rest of a pointer that was there before.

use std::collections::HashMap;
use std::ops::Range;

use super::holder::Holder;
use crate::analysis::AnalyzedSnapshot;
use crate::objects::{Object, ObjectIndex};
use crate::python::{VariableOwner, elements_of_object, find_variables};
use crate::snapshot_memory::CachedReader;

/// Bits of a word of a bitmap.
const BITS: usize = u64::BITS as usize;
/// Bytes of a pointer.
const WORD: u64 = 8;
/// Most tables whose ends are known; further ones are scanned whole.
const MAX_ENDS: usize = 1 << 20;
/// Bytes of which the sizes of blocks are multiples.
const PADDING: u64 = 16;

/// Pointers of Python's variables, and objects without pointers.
#[derive(Debug, Default)]
pub(super) struct PythonPointers {
    /// Each variable with the number of the object that is its value.
    pub(super) variables: Vec<(Holder, u32)>,
    /// Values in the table with that number, sorted.
    tables: HashMap<u32, Vec<u32>>,
    /// A bit for each object, by its number: whether it holds nothing. Empty if there is no interpreter.
    empty: Vec<u64>,
    /// A bit for each object: whether its block's last word is behind it.
    padded: Vec<u64>,
    /// Ends of the pointers in tables that have room for more.
    ends: HashMap<u32, u64>,
    /// Warnings about what was not read.
    pub(super) warnings: Vec<String>,
}

impl PythonPointers {
    /// Finds in a snapshot which pointers are variables of Python, and where the pointers in each object end. Finds
    /// nothing if the process has no interpreter whose layout is known.
    pub(super) fn find(analyzed: &AnalyzedSnapshot<'_>, object_index: &ObjectIndex<'_>) -> Self {
        let mut found = Self::default();
        let Some(interpreters) = &analyzed.python else {
            return found;
        };
        let mut types = interpreters.new_type_reader(&analyzed.view);
        let (variables, left_out) = find_variables(&analyzed.view, interpreters, &mut types);
        for variable in variables {
            // Constants of the interpreter are in no heap.
            let Some(value) = object_index.number(variable.value) else {
                continue;
            };
            if let Some(table) = object_index.number(variable.table) {
                found.tables.entry(table).or_default().push(value);
            }
            let (name, class) = match variable.owner {
                VariableOwner::Data { name, class } => (name, class),
                VariableOwner::Module(name) => (name.to_string(), "module".into()),
            };
            let class = class.to_string();
            found
                .variables
                .push((Holder::PythonVariable { name, class }, value));
        }
        found
            .tables
            .values_mut()
            .for_each(|values| values.sort_unstable());
        let mut memory = CachedReader::new(&analyzed.view);
        let words = (object_index.count() as usize).div_ceil(BITS);
        (found.empty, found.padded) = (vec![0; words], vec![0; words]);
        for (number, object) in (0_usize..).zip(object_index.all()) {
            let end = types.end_of_pointers(&mut memory, &object);
            found.record_pointers_end(number, &object, end.unwrap_or(object.range.end));
            let Some((before, class)) = types.find_type(&mut memory, &object) else {
                continue;
            };
            let start = object.range.start + before;
            let view = &analyzed.view;
            let tables = elements_of_object(view, &mut memory, interpreters, start, &class);
            for elements in tables.into_iter().flatten() {
                if let Some(number) = object_index.number(elements.start) {
                    let table = object_index.object(number);
                    found.record_pointers_end(number as usize, &table, elements.end);
                }
            }
        }
        let warnings = [
            interpreters.skipped_warning(),
            left_out,
            types.type_warning(),
        ];
        found.warnings.extend(warnings.into_iter().flatten());
        found
    }

    /// Whether the pointer from one object to another, both given by their numbers, is a variable of Python.
    pub(super) fn is_variable_pointer(&self, object: u32, target: u32) -> bool {
        let values = self.tables.get(&object);
        values.is_some_and(|values| values.binary_search(&target).is_ok())
    }

    /// Records that the last pointer of an object is in front of the address `end`; if `end` is the object's start,
    /// that the object has no pointers. If the rest of the object's block behind `end` has 8 to 15 bytes, records only
    /// that the block's last word is no pointer. Records nothing if the rest is less than a word, if `end` lies in
    /// front of the object, or if [`MAX_ENDS`] are recorded.
    fn record_pointers_end(&mut self, number: usize, object: &Object, end: u64) {
        let Range { start, end: last } = object.range;
        let bit = 1 << (number % BITS);
        match last.saturating_sub(end) {
            ..WORD => {}
            _ if end == start => self.empty[number / BITS] |= bit,
            // The object's fields are inconsistent.
            _ if end < start => {}
            WORD..PADDING => self.padded[number / BITS] |= bit,
            _ if self.ends.len() < MAX_ENDS => {
                self.ends.insert(number as u32, end);
            }
            _ => {}
        }
    }

    /// Returns the part of the object with this number that may have pointers; empty if none of it may.
    pub(super) fn pointer_range(&self, number: u32, object: &Object) -> Range<u64> {
        let Range { start, end } = object.range;
        let (word, bit) = (number as usize / BITS, number as usize % BITS);
        let has = |bits: &[u64]| bits.get(word).is_some_and(|word| word >> bit & 1 != 0);
        match (has(&self.empty), has(&self.padded)) {
            (true, _) => start..start,
            (_, true) => start..end - WORD,
            _ => start..self.ends.get(&number).map_or(end, |known| end.min(*known)),
        }
    }

    /// Whether the object with that number contains pointers that are variables of Python.
    pub(super) fn has_variables(&self, object: u32) -> bool {
        self.tables.contains_key(&object)
    }

    /// Memory of the tables and the bitmaps, in bytes. The memory of the variables is counted with the holders.
    pub(super) fn memory_size(&self) -> u64 {
        let values: usize = self.tables.values().map(Vec::capacity).sum();
        // A hash table has a control byte for each entry.
        let ends = self.ends.capacity() * (size_of::<(u32, u64)>() + 1);
        let tables = self.tables.len() * (size_of::<(u32, Vec<u32>)>() + size_of::<u64>());
        (size_of::<u32>() * values + tables + ends + 2 * size_of::<u64>() * self.empty.len()) as u64
    }
}
