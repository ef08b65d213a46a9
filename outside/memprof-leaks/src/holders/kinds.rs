//! What each object is.
//!
//! The dict in which an object of Python's has its attributes is of a kind of its own with those of its type: as one
//! among all dicts it would be told with the dict that holds the object.

use std::collections::HashMap;
use std::rc::Rc;

use crate::names::{DICT, NameResolver};
use crate::objects::ObjectIndex;

/// Objects that are larger are of one kind with those of more than half the size.
const EXACT: u64 = 1024;

/// What an object is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HeapObjectKind {
    /// Of a class in C++, or a type in Python.
    Class(Rc<str>),
    /// Nothing is known but its size in bytes; above 1 KiB rounded up to a power of two.
    Size(u64),
}

/// The kinds of all objects.
pub(super) struct HeapObjectKinds {
    pub(super) all: Vec<HeapObjectKind>,
    /// By an object's number: that of its kind.
    of: Vec<u32>,
}

impl HeapObjectKinds {
    pub(super) fn of(numbers: &ObjectIndex<'_>, names: &mut NameResolver<'_>) -> Self {
        let mut numbers_of: HashMap<HeapObjectKind, u32> = HashMap::new();
        let mut all = Vec::new();
        let of = numbers.all().map(|object| {
            let kind = match names.class(&object) {
                Some(class) => HeapObjectKind::Class(class),
                None => HeapObjectKind::of_size(object.size()),
            };
            let next = all.len() as u32;
            *numbers_of.entry(kind).or_insert_with_key(|kind| {
                all.push(kind.clone());
                next
            })
        });
        let of = of.collect();
        let mut kinds = Self { of, all };
        if let Some(dict) = numbers_of.get(&HeapObjectKind::Class(DICT.into())) {
            kinds.assign_attribute_kinds(*dict, numbers, names);
        }
        kinds
    }

    /// Gives dicts of attributes, and their tables, kinds of their own. Reads objects in order, which is quick.
    fn assign_attribute_kinds(
        &mut self,
        dict: u32,
        numbers: &ObjectIndex<'_>,
        names: &mut NameResolver<'_>,
    ) {
        let first = self.all.len() as u32;
        let mut kinds_of: HashMap<Rc<str>, u32> = HashMap::new();
        for object in numbers.all() {
            if let Some((of, address)) = names.attributes(&object)
                && let Some(number) = numbers.number(address)
                && self.kind(number) == dict
            {
                let kind = *kinds_of.entry(of).or_insert_with_key(|of| {
                    self.all
                        .push(HeapObjectKind::Class(format!("{of}.__dict__").into()));
                    self.all.len() as u32 - 1
                });
                self.set_kind(number, kind);
            }
        }
        for (number, object) in (0..).zip(numbers.all()) {
            let kind = self.kind(number);
            if kind >= first
                && let Some(table) = names.table(&object).and_then(|at| numbers.number(at))
                && matches!(self.all[self.kind(table) as usize], HeapObjectKind::Size(_))
            {
                self.set_kind(table, kind);
            }
        }
    }

    fn set_kind(&mut self, number: u32, kind: u32) {
        self.of[number as usize] = kind;
    }

    /// The number of an object's kind.
    pub(super) fn kind(&self, number: u32) -> u32 {
        self.of[number as usize]
    }
}

impl HeapObjectKind {
    /// The kind of an object of which nothing is known but its size in bytes.
    pub fn of_size(size: u64) -> Self {
        Self::Size(match size {
            size if size <= EXACT => size,
            size => size.checked_next_power_of_two().unwrap_or(u64::MAX),
        })
    }
}
