//! Kind of each object.
//!
//! The dict with the attributes of a Python object has a kind of its own, one per type: among all dicts, it
//! would be grouped with a dict that holds the object.

use std::collections::HashMap;
use std::rc::Rc;

use crate::names::NameResolver;
use crate::objects::{Object, ObjectIndex};
use crate::python::DICT_TYPE;

/// Size in bytes up to which each size is a kind. Larger objects have one kind per power of two.
const MAX_EXACT_SIZE: u64 = 1024;

/// Kind of a heap object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HeapObjectKind {
    /// A class in C++, or a type in Python.
    Class(Rc<str>),
    /// Only the size is known, in bytes; above 1 KiB it is rounded up to a power of two.
    Size(u64),
}

/// Kinds of objects, numbered.
#[derive(Debug, Default)]
pub(super) struct KindNumbers {
    all: Vec<HeapObjectKind>,
    numbers: HashMap<HeapObjectKind, u32>,
}

impl KindNumbers {
    /// Returns the number of an object's kind: its class, or its size if its class is not known. A new kind gets the
    /// next number.
    pub(super) fn find_or_add_kind(
        &mut self,
        object: &Object,
        names: &mut NameResolver<'_>,
    ) -> u32 {
        let kind = match names.class_name(object) {
            Some(class) => HeapObjectKind::Class(class),
            None => HeapObjectKind::for_size(object.size()),
        };
        let next = self.all.len() as u32;
        *self.numbers.entry(kind).or_insert_with_key(|kind| {
            self.all.push(kind.clone());
            next
        })
    }

    /// Returns the kind with a number that [`Self::find_or_add_kind`] returned. Panics for another number.
    pub(super) fn kind(&self, number: u32) -> &HeapObjectKind {
        &self.all[number as usize]
    }
}

/// Kinds of all objects.
pub(super) struct HeapObjectKinds {
    all: Vec<HeapObjectKind>,
    /// Index of each object's kind, by the object's number.
    by_object: Vec<u32>,
}

impl HeapObjectKinds {
    /// Reads the kinds of all objects from the snapshot.
    pub(super) fn read(object_index: &ObjectIndex<'_>, names: &mut NameResolver<'_>) -> Self {
        let mut known = KindNumbers::default();
        let by_object = object_index
            .all()
            .map(|object| known.find_or_add_kind(&object, names));
        let by_object = by_object.collect();
        let KindNumbers { all, numbers } = known;
        let mut kinds = Self { by_object, all };
        if let Some(dict) = numbers.get(&HeapObjectKind::Class(DICT_TYPE.into())) {
            kinds.assign_attribute_kinds(*dict, object_index, names);
        }
        kinds
    }

    /// Gives the dicts with the attributes of objects a kind for each class, such as `Node.__dict__`. A dict's table
    /// gets the same kind, unless its first words name a class. Reads the objects in the order of their addresses,
    /// which is fast.
    fn assign_attribute_kinds(
        &mut self,
        dict: u32,
        object_index: &ObjectIndex<'_>,
        names: &mut NameResolver<'_>,
    ) {
        let first = self.all.len() as u32;
        let mut kinds_of: HashMap<Rc<str>, u32> = HashMap::new();
        for object in object_index.all() {
            if let Some((class, address)) = names.attributes_dict(&object)
                && let Some(number) = object_index.number(address)
                && self.kind_index(number) == dict
            {
                let kind = *kinds_of.entry(class).or_insert_with_key(|class| {
                    self.all
                        .push(HeapObjectKind::Class(format!("{class}.__dict__").into()));
                    self.all.len() as u32 - 1
                });
                self.set_kind(number, kind);
            }
        }
        // A dict's table has no type, so its kind was its size.
        for (number, object) in (0..).zip(object_index.all()) {
            let kind = self.kind_index(number);
            if kind >= first
                && let Some(table) = names
                    .dict_table(&object)
                    .and_then(|table| object_index.number(table))
                && matches!(
                    self.all[self.kind_index(table) as usize],
                    HeapObjectKind::Size(_)
                )
            {
                self.set_kind(table, kind);
            }
        }
    }

    /// Sets the kind of the object with that number; `kind` is an index in `all`.
    fn set_kind(&mut self, number: u32, kind: u32) {
        self.by_object[number as usize] = kind;
    }

    /// Index in `all` of the kind of the object with that number, and the kind.
    pub(super) fn kind_of(&self, number: u32) -> (u32, &HeapObjectKind) {
        let kind = self.kind_index(number);
        (kind, &self.all[kind as usize])
    }

    /// Index in `all` of the kind of the object with that number.
    fn kind_index(&self, number: u32) -> u32 {
        self.by_object[number as usize]
    }
}

impl HeapObjectKind {
    /// Kind of an object that has no known class, by its size in bytes. Sizes above 1 KiB are rounded up to a power of
    /// two.
    pub fn for_size(size: u64) -> Self {
        Self::Size(match size {
            size if size <= MAX_EXACT_SIZE => size,
            size => size.checked_next_power_of_two().unwrap_or(u64::MAX),
        })
    }
}
