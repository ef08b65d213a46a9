//! Finds the namespaces and classes of inlined C++ functions without a linkage name, such as those of anonymous
//! namespaces and lambdas: they are the enclosing entries.

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

/// Offset of an entry in its unit.
pub(super) type Offset = addr2line::gimli::UnitOffset<usize>;

type Entry<'s> = DebuggingInformationEntry<Slice<'s>>;

/// Most entries between an inlined function and its declaration; compilers write fewer.
const MAX_REFERENCES: usize = 8;

/// Most entries visited in one file, which may be hostile; further names stay short.
const MAX_ENTRIES: usize = 20_000_000;

const CPP: [DwLang; 6] = [
    DW_LANG_C_plus_plus,
    DW_LANG_C_plus_plus_03,
    DW_LANG_C_plus_plus_11,
    DW_LANG_C_plus_plus_14,
    DW_LANG_C_plus_plus_17,
    DW_LANG_C_plus_plus_20,
];

const CLASSES: [DwTag; 3] = [DW_TAG_class_type, DW_TAG_structure_type, DW_TAG_union_type];

/// Cache of scopes of the functions of one file.
pub(super) struct Scopes {
    /// By the offsets of the unit and of the declaration.
    cache: RefCell<HashMap<(usize, usize), Option<String>>>,
    remaining: Cell<usize>,
}

impl Scopes {
    pub(super) fn new() -> Self {
        Self {
            cache: RefCell::default(),
            remaining: Cell::new(MAX_ENTRIES),
        }
    }

    /// Returns the scope of the inlined function at `inlined`, such as `shop::(anonymous namespace)`. `None` if it
    /// is not inlined, not C++, or in no scope.
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
        let unit_offset = unit.header.debug_info_offset().map_or(0, |offset| offset.0);
        let key = (unit_offset, declared.0);
        if let Some(cache) = self.cache.borrow().get(&key) {
            return cache.clone();
        }
        let found = self.scope_path(unit, declared, MAX_REFERENCES);
        self.cache.borrow_mut().insert(key, found.clone());
        found
    }

    /// Returns the names of the scopes from the unit down to an entry, joined by `::`. `None` if there are none, or a
    /// limit is reached: `functions` is the number of declarations elsewhere that may still be followed. Siblings are
    /// in the order of their offsets, so the last one that starts at or before the entry contains it.
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
            let declared =
                declaration(unit, scope.clone()).filter(|offset| *offset != scope.offset());
            if let Some(declared) = declared {
                // A function that is declared elsewhere and contains a lambda.
                let outer = self.scope_path(unit, declared, functions.checked_sub(1)?);
                path = outer.unwrap_or_default();
            }
            let named = declared.and_then(|offset| unit.entry(offset).ok());
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
                self.remaining.set(self.remaining.get().checked_sub(1)?);
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

/// Returns the entry at which the function is declared, `entry` itself if it refers to no other. `None` if it is in
/// another unit, or too many references lead there.
fn declaration<'s>(unit: UnitRef<'_, Slice<'s>>, mut entry: Entry<'s>) -> Option<Offset> {
    for _ in 0..MAX_REFERENCES {
        match reference(unit, &entry) {
            Some(offset) => entry = unit.entry(offset?).ok()?,
            None => return Some(entry.offset()),
        }
    }
    None
}

/// Returns the entry of which this one is an instance or the definition. `None` if it refers to none; `Some(None)` if
/// that entry is in another unit.
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

/// Returns the name of a namespace, class or function; `{lambda}` for a class without one. `None` for other entries and
/// for a function without a name.
fn scope_name<'s>(unit: UnitRef<'_, Slice<'s>>, scope: &Entry<'s>) -> Option<String> {
    let name = scope.attr_value(DW_AT_name);
    let name = name.and_then(|name| unit.attr_string(name).ok());
    let name = name.map(|name| String::from_utf8_lossy(name.slice()).into_owned());
    match scope.tag() {
        tag if tag == DW_TAG_namespace => {
            Some(name.unwrap_or_else(|| "(anonymous namespace)".to_owned()))
        }
        // GCC names a lambda "<lambda(int)>", clang does not name it.
        tag if CLASSES.contains(&tag) => {
            let name = name.filter(|name| !name.starts_with("<lambda"));
            Some(name.unwrap_or_else(|| "{lambda}".to_owned()))
        }
        tag if tag == DW_TAG_subprogram => name,
        _ => None,
    }
}
