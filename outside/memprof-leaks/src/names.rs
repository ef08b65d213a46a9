//! Names of objects and variables: classes of C++ and types of Python are read from the process's memory,
//! names of variables from the symbols of its files.

mod classes;
mod symbols;

use std::collections::HashMap;
use std::rc::Rc;

use self::symbols::Symbols;
pub(crate) use self::symbols::{Variable, read_functions_of_file};
use crate::objects::Object;
use crate::python::{Interpreters, PythonTypes};
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Most classes in the cache, including addresses that are no class. A full cache is cleared; a process has some
/// thousand classes.
const MAX_CACHED_CLASSES: usize = 1 << 18;

/// Names of a snapshot's objects and variables, with caches.
pub(crate) struct NameResolver<'a> {
    view: &'a SnapshotMemory,
    memory: CachedReader<'a>,
    symbols: Symbols<'a>,
    classes: HashMap<u64, Option<Rc<str>>>,
    python: Option<PythonTypes<'a>>,
}

impl<'a> NameResolver<'a> {
    /// Prepares the caches. `interpreters` are those of Python in the process. If they are `None`, because none runs or
    /// their layout is not known, types of Python are recognized without their layout.
    pub(crate) fn new(view: &'a SnapshotMemory, interpreters: Option<&Interpreters>) -> Self {
        Self {
            view,
            memory: CachedReader::new(view),
            symbols: Symbols::new(view),
            classes: HashMap::new(),
            python: interpreters
                .map(|interpreters| interpreters.new_type_reader(view))
                .or_else(|| PythonTypes::without_layout(view)),
        }
    }

    /// Class or Python type of an object. `None` if its first words identify none. Fast for objects sorted by
    /// address.
    pub(crate) fn class_name(&mut self, object: &Object) -> Option<Rc<str>> {
        let start = object.range.start;
        let python = self.python.as_mut();
        if let Some(types) = python
            && types.is_in_pool(start)
        {
            return types.type_name(&mut self.memory, object);
        }
        let first = self.memory.read_word(start)?;
        if self.classes.len() > MAX_CACHED_CLASSES {
            self.classes.clear();
        }
        let (view, symbols) = (self.view, &mut self.symbols);
        let may_be_vtable = first % 8 == 0 && first > 0;
        let class = may_be_vtable.then(|| {
            let entry = self.classes.entry(first);
            entry
                .or_insert_with(|| classes::class_of_vtable(view, symbols, first).map(Rc::from))
                .clone()
        });
        let python = self.python.as_mut();
        class
            .flatten()
            .or_else(|| python?.type_name(&mut self.memory, object))
    }

    /// Name of a Python object's type, and the address of the dict with its attributes. `None` if the object has no
    /// such dict, or is no Python object, or the dict's address cannot be read.
    pub(crate) fn attributes_dict(&mut self, object: &Object) -> Option<(Rc<str>, u64)> {
        self.python
            .as_mut()?
            .attributes_dict(&mut self.memory, object)
    }

    /// Returns the address of the table that only this Python dict uses: its keys, or its values if other dicts share
    /// the keys. `None` if the object is no dict, or cannot be read.
    pub(crate) fn dict_table(&mut self, dict: &Object) -> Option<u64> {
        self.python.as_mut()?.dict_table(&mut self.memory, dict)
    }

    /// Warnings about types of Python that were not read.
    pub(crate) fn python_warnings(&self) -> Vec<String> {
        self.python
            .as_ref()
            .map_or_else(Vec::new, PythonTypes::warnings)
    }

    /// Variable that contains an address. `None` if no program or library has its variables there.
    pub(crate) fn variable_at(&mut self, address: u64) -> Option<Variable> {
        self.symbols.variable_at(address)
    }
}
