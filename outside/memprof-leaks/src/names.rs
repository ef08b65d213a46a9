//! What an object is, and what a variable is called: of classes of C++ and types of Python as the process itself
//! holds them, of variables as their file's symbols say.

mod classes;
mod python;
mod symbols;

use std::collections::HashMap;
use std::rc::Rc;

pub(crate) use self::python::{DICT, Python, references};
use self::symbols::Symbols;
pub(crate) use self::symbols::Variable;
use crate::objects::Object;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Of pointers whose target is known or known to be nothing: a process has some thousands.
const KNOWN_LIMIT: usize = 1 << 18;

/// The names of a snapshot.
pub(crate) struct NameResolver<'a> {
    view: &'a SnapshotMemory,
    memory: CachedReader<'a>,
    symbols: Symbols<'a>,
    classes: HashMap<u64, Option<Rc<str>>>,
    python: Option<Python<'a>>,
}

impl<'a> NameResolver<'a> {
    pub(crate) fn new(view: &'a SnapshotMemory) -> Self {
        Self {
            view,
            memory: CachedReader::new(view),
            symbols: Symbols::new(view),
            classes: HashMap::new(),
            python: Python::find(view),
        }
    }

    /// The class of an object, where its first words tell one. Quick for objects by address.
    pub(crate) fn class(&mut self, object: &Object) -> Option<Rc<str>> {
        let start = object.range.start;
        let first = self.memory.word(start)?;
        if self.classes.len() > KNOWN_LIMIT {
            self.classes.clear();
        }
        let (view, symbols) = (self.view, &mut self.symbols);
        let is_table = first % 8 == 0 && first > 0;
        let named = is_table.then(|| {
            let class = self.classes.entry(first);
            class
                .or_insert_with(|| classes::class_of_vtable(view, symbols, first).map(Rc::from))
                .clone()
        });
        let python = self.python.as_mut();
        named
            .flatten()
            .or_else(|| python?.type_of(&mut self.memory, object))
    }

    /// The type of an object of Python's, and the address of the dict of its attributes, where it has one.
    pub(crate) fn attributes(&mut self, object: &Object) -> Option<(Rc<str>, u64)> {
        self.python.as_mut()?.attributes(&mut self.memory, object)
    }

    /// The address of the table that a dict of Python's shares with no other.
    pub(crate) fn table(&mut self, dict: &Object) -> Option<u64> {
        self.python.as_mut()?.table(&mut self.memory, dict)
    }

    /// The variable in which an address lies.
    pub(crate) fn variable(&mut self, address: u64) -> Option<Variable> {
        self.symbols.variable(address)
    }
}
