//! Whole names of inlined C++ functions that have no linkage name, as those of anonymous namespaces and
//! lambdas: their namespaces and classes are the entries around theirs.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use addr2line::gimli::constants::{DwLang, DwTag};
use addr2line::gimli::{
    AttributeValue, DW_AT_abstract_origin, DW_AT_language, DW_AT_name, DW_AT_specification,
    DW_LANG_C_plus_plus, DW_LANG_C_plus_plus_03, DW_LANG_C_plus_plus_11, DW_LANG_C_plus_plus_14,
    DW_LANG_C_plus_plus_17, DW_LANG_C_plus_plus_20, DW_TAG_class_type, DW_TAG_namespace,
    DW_TAG_structure_type, DW_TAG_subprogram, DW_TAG_union_type, DebuggingInformationEntry,
    EndianSlice, RunTimeEndian, UnitRef,
};

pub(super) type Slice<'d> = EndianSlice<'d, RunTimeEndian>;

/// An entry's place in its unit.
pub(super) type Offset = addr2line::gimli::UnitOffset<usize>;

type Entry<'s> = DebuggingInformationEntry<Slice<'s>>;

/// No compiler has an inlined function refer to its declaration through more entries.
const MOST_REFERENCES: usize = 8;

/// So many entries are looked at in one file, which may be hostile; then names stay short.
const MOST_ENTRIES: usize = 20_000_000;

const CPP: [DwLang; 6] = [
    DW_LANG_C_plus_plus,
    DW_LANG_C_plus_plus_03,
    DW_LANG_C_plus_plus_11,
    DW_LANG_C_plus_plus_14,
    DW_LANG_C_plus_plus_17,
    DW_LANG_C_plus_plus_20,
];

const CLASSES: [DwTag; 3] = [DW_TAG_class_type, DW_TAG_structure_type, DW_TAG_union_type];

/// Scopes of the functions of one file.
pub(super) struct Scopes {
    /// By the unit's and the declaration's place.
    known: RefCell<HashMap<(usize, usize), Option<String>>>,
    left: Cell<usize>,
}

impl Scopes {
    pub(super) fn new() -> Self {
        Self {
            known: RefCell::default(),
            left: Cell::new(MOST_ENTRIES),
        }
    }

    /// `shop::(anonymous namespace)` of the inlined function at `inlined`; none where it is no inlined one,
    /// no C++, or in no scope.
    pub(super) fn inlined_scope(
        &self,
        unit: UnitRef<'_, Slice<'_>>,
        inlined: Offset,
    ) -> Option<String> {
        let entry = unit.entry(inlined).ok()?;
        if entry.tag() == DW_TAG_subprogram || !is_cpp(unit) {
            return None;
        }
        let declared = declaration(unit, entry)?;
        let at = unit.header.debug_info_offset().map_or(0, |offset| offset.0);
        let key = (at, declared.0);
        if let Some(known) = self.known.borrow().get(&key) {
            return known.clone();
        }
        let found = self.scope_path(unit, declared, MOST_REFERENCES);
        self.known.borrow_mut().insert(key, found.clone());
        found
    }

    /// The names of the scopes from the unit down to an entry. Siblings stand in the order of their places,
    /// so the last one that begins before the entry, or there, is around it.
    fn scope_path(
        &self,
        unit: UnitRef<'_, Slice<'_>>,
        target: Offset,
        functions: usize,
    ) -> Option<String> {
        let mut path = String::new();
        let mut scopes = unit.entries();
        scopes.next_entry().ok()?;
        loop {
            let scope = scopes.current()?;
            if scope.offset() == target {
                break;
            }
            let declared = declaration(unit, scope.clone()).filter(|at| *at != scope.offset());
            if let Some(declared) = declared {
                // A function that is declared elsewhere, around a lambda of its.
                let outer = self.scope_path(unit, declared, functions.checked_sub(1)?);
                path = outer.unwrap_or_default();
            }
            let named = declared.and_then(|at| unit.entry(at).ok());
            if let Some(name) = scope_name(unit, named.as_ref().unwrap_or(scope)) {
                path += if path.is_empty() { "" } else { "::" };
                path += &name;
            }
            if !scope.has_children() {
                return None;
            }
            scopes.next_entry().ok()?;
            let mut later = scopes.clone();
            while let Ok(Some(sibling)) = later.next_sibling() {
                if sibling.offset() > target {
                    break;
                }
                self.left.set(self.left.get().checked_sub(1)?);
                scopes = later.clone();
            }
        }
        (!path.is_empty()).then_some(path)
    }
}

fn is_cpp(unit: UnitRef<'_, Slice<'_>>) -> bool {
    let mut entries = unit.entries();
    let language = match entries.next_entry() {
        Ok(true) => entries
            .current()
            .and_then(|root| root.attr_value(DW_AT_language)),
        Ok(false) | Err(_) => None,
    };
    matches!(language, Some(AttributeValue::Language(language)) if CPP.contains(&language))
}

/// The entry that stands where the function is declared. None where that is another unit.
fn declaration<'s>(unit: UnitRef<'_, Slice<'s>>, mut entry: Entry<'s>) -> Option<Offset> {
    for _ in 0..MOST_REFERENCES {
        match reference(unit, &entry) {
            Some(at) => entry = unit.entry(at?).ok()?,
            None => return Some(entry.offset()),
        }
    }
    None
}

/// The entry that this one is an instance or the definition of.
fn reference<'s>(unit: UnitRef<'_, Slice<'s>>, entry: &Entry<'s>) -> Option<Option<Offset>> {
    let value = [DW_AT_abstract_origin, DW_AT_specification]
        .into_iter()
        .find_map(|name| entry.attr_value(name))?;
    Some(match value {
        AttributeValue::UnitRef(offset) => Some(offset),
        AttributeValue::DebugInfoRef(offset) => offset.to_unit_offset(&unit.header),
        _ => None,
    })
}

fn scope_name<'s>(unit: UnitRef<'_, Slice<'s>>, scope: &Entry<'s>) -> Option<String> {
    let name = scope.attr_value(DW_AT_name);
    let name = name.and_then(|name| unit.attr_string(name).ok());
    let name = name.map(|name| String::from_utf8_lossy(name.slice()).into_owned());
    match scope.tag() {
        tag if tag == DW_TAG_namespace => {
            Some(name.unwrap_or_else(|| "(anonymous namespace)".to_owned()))
        }
        // GCC writes "<lambda(int)>", clang nothing.
        tag if CLASSES.contains(&tag) => {
            let name = name.filter(|name| !name.starts_with("<lambda"));
            Some(name.unwrap_or_else(|| "{lambda}".to_owned()))
        }
        tag if tag == DW_TAG_subprogram => name,
        _ => None,
    }
}
