//! Finds the namespaces and classes of inlined C++ functions without a linkage name, such as those of anonymous
//! namespaces and lambdas: they are the enclosing entries.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;

use addr2line::gimli::constants::{DwLang, DwTag};
use addr2line::gimli::{
    self, AttributeValue, DW_AT_abstract_origin, DW_AT_language, DW_AT_name, DW_AT_specification,
    DW_LANG_C_plus_plus, DW_LANG_C_plus_plus_03, DW_LANG_C_plus_plus_11, DW_LANG_C_plus_plus_14,
    DW_LANG_C_plus_plus_17, DW_LANG_C_plus_plus_20, DW_TAG_class_type, DW_TAG_namespace,
    DW_TAG_structure_type, DW_TAG_subprogram, DW_TAG_union_type, DebuggingInformationEntry,
    DwarfFileType, EndianSlice, RunTimeEndian, UnitHeader, UnitRef,
};

use super::debug_budget::DebugBudget;

pub(super) type Slice<'d> = EndianSlice<'d, RunTimeEndian>;

/// Offset of an entry in its unit.
pub(super) type Offset = addr2line::gimli::UnitOffset<usize>;

type Entry<'s> = DebuggingInformationEntry<Slice<'s>>;

/// Most entries between an inlined function and its declaration; compilers write fewer.
const MAX_REFERENCES: usize = 8;

/// Most entries visited in one file, which may be hostile; further names stay short.
const MAX_ENTRIES: usize = 20_000_000;

const CPP_LANGUAGES: [DwLang; 6] = [
    DW_LANG_C_plus_plus,
    DW_LANG_C_plus_plus_03,
    DW_LANG_C_plus_plus_11,
    DW_LANG_C_plus_plus_14,
    DW_LANG_C_plus_plus_17,
    DW_LANG_C_plus_plus_20,
];

const CLASS_TAGS: [DwTag; 3] = [DW_TAG_class_type, DW_TAG_structure_type, DW_TAG_union_type];

/// Units of a file of debug information, ascending by offset, up to the first damaged one. Read when they are first
/// needed.
type Units<'s> = OnceCell<Vec<UnitHeader<Slice<'s>>>>;

/// Cache of scopes of the functions of one file.
pub(super) struct Scopes<'s> {
    /// By the addresses of the debug information, and the offsets of the unit and of the declaration.
    cache: RefCell<HashMap<(usize, usize, usize), Option<String>>>,
    remaining: Cell<usize>,
    budget: RefCell<DebugBudget>,
    units: Units<'s>,
    supplementary_units: Units<'s>,
}

impl<'s> Scopes<'s> {
    /// Creates an empty cache. Units are read when they are first needed.
    pub(super) fn new() -> Self {
        Self {
            cache: RefCell::default(),
            remaining: Cell::new(MAX_ENTRIES),
            budget: RefCell::new(DebugBudget::new()),
            units: OnceCell::new(),
            supplementary_units: OnceCell::new(),
        }
    }

    /// Returns the scope of the inlined function at `inlined`, such as `shop::(anonymous namespace)`. `None` if the
    /// function is not inlined, not C++, or in no scope, or if a limit is reached.
    pub(super) fn inlined_scope(
        &self,
        unit: UnitRef<'_, Slice<'s>>,
        inlined: Offset,
    ) -> Option<String> {
        let entry = unit.entry(inlined).ok()?;
        if entry.tag() == DW_TAG_subprogram || !is_cpp(unit) {
            return None;
        }
        self.visit_declaration(unit, entry, MAX_REFERENCES, |unit, declared, functions| {
            self.cached_scope_path(unit, declared.offset(), functions)
        })
    }

    /// Returns the names of the scopes from the unit down to the entry `target`, joined by `::`, from the cache or by
    /// [`scope_path`](Self::scope_path), whose result is cached. `None` if there are none, or a limit is reached.
    fn cached_scope_path(
        &self,
        unit: UnitRef<'_, Slice<'s>>,
        target: Offset,
        functions: usize,
    ) -> Option<String> {
        let file = std::ptr::from_ref(unit.dwarf).addr();
        let unit_offset = unit.header.debug_info_offset().map_or(0, |offset| offset.0);
        let key = (file, unit_offset, target.0);
        if let Some(cache) = self.cache.borrow().get(&key) {
            return cache.clone();
        }
        let found = self.scope_path(unit, target, functions);
        self.cache.borrow_mut().insert(key, found.clone());
        found
    }

    /// Returns the names of the scopes from the unit down to an entry, joined by `::`. `None` if there are none, or a
    /// limit is reached: `functions` is the number of declarations elsewhere that may still be followed. Siblings are
    /// in the order of their offsets, so the last one that starts at or before the entry contains it.
    fn scope_path(
        &self,
        unit: UnitRef<'_, Slice<'s>>,
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
            let name = match origin_reference(scope) {
                None => scope_name(unit, scope),
                // A function that is declared elsewhere and contains a lambda.
                Some(_) => {
                    let declared = self.visit_declaration(
                        unit,
                        scope.clone(),
                        functions.checked_sub(1)?,
                        |unit, declared, functions| {
                            let outer = self.cached_scope_path(unit, declared.offset(), functions);
                            Some((outer.unwrap_or_default(), scope_name(unit, &declared)))
                        },
                    );
                    let (outer, name) = declared.unwrap_or_default();
                    path = outer;
                    name
                }
            };
            if let Some(name) = name {
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

    /// Follows up to `references` references from `entry` to the entry that declares the function. Calls `visit` with
    /// that entry, its unit, and the number of references that are left. `None` if the declaration is farther away, a
    /// reference is damaged or leads to a file that was not found, or a limit is reached.
    fn visit_declaration<T>(
        &self,
        unit: UnitRef<'_, Slice<'s>>,
        mut entry: Entry<'s>,
        mut references: usize,
        visit: impl FnOnce(UnitRef<'_, Slice<'s>>, Entry<'s>, usize) -> Option<T>,
    ) -> Option<T> {
        let (dwarf, units, offset) = loop {
            let Some(target) = origin_reference(&entry) else {
                return visit(unit, entry, references);
            };
            references = references.checked_sub(1)?;
            match target {
                AttributeValue::UnitRef(offset) => entry = unit.entry(offset).ok()?,
                // A split unit refers to no other.
                AttributeValue::DebugInfoRef(offset)
                    if unit.dwarf.file_type == DwarfFileType::Main =>
                {
                    break (unit.dwarf, &self.units, offset);
                }
                AttributeValue::DebugInfoRefSup(offset) => {
                    break (unit.dwarf.sup()?, &self.supplementary_units, offset);
                }
                _ => return None,
            }
        };
        // References of a supplementary file stay in it. It is the one without a supplementary file of its own.
        let is_supplementary =
            unit.dwarf.sup().is_none() && self.supplementary_units.get().is_some();
        let units = match is_supplementary {
            true => &self.supplementary_units,
            false => units,
        };
        let units = units.get_or_init(|| unit_headers(dwarf));
        let after = units.partition_point(|unit| unit.debug_info_offset() <= Some(offset));
        let header = units[after.checked_sub(1)?];
        let lists = header.debug_abbrev_offset();
        let mut budget = self.budget.borrow_mut();
        budget
            .charge_abbreviations(&dwarf.debug_abbrev, lists)
            .ok()?;
        // `visit` may follow further references.
        drop(budget);
        let unit = dwarf.unit(header).ok()?;
        let unit = UnitRef::new(dwarf, &unit);
        let entry = unit.entry(offset.to_unit_offset(&unit.header)?).ok()?;
        self.visit_declaration(unit, entry, references, visit)
    }
}

/// Returns the headers of all units up to the first damaged one.
fn unit_headers<'s>(dwarf: &gimli::Dwarf<Slice<'s>>) -> Vec<UnitHeader<Slice<'s>>> {
    let mut units = dwarf.units();
    std::iter::from_fn(|| units.next().ok()?).collect()
}

/// Returns whether a unit was compiled from C++, by its first entry.
fn is_cpp(unit: UnitRef<'_, Slice<'_>>) -> bool {
    let mut entries = unit.entries();
    let language = match entries.next_entry() {
        Ok(true) => entries
            .current()
            .and_then(|root| root.attr_value(DW_AT_language)),
        Ok(false) | Err(_) => None,
    };
    matches!(language, Some(AttributeValue::Language(language)) if CPP_LANGUAGES.contains(&language))
}

/// Returns an entry's reference to its declaration: to the abstract function of an inlined one, or to the declaration
/// in a class. `None` if it has no such reference.
fn origin_reference<'s>(entry: &Entry<'s>) -> Option<AttributeValue<Slice<'s>>> {
    let mut names = [DW_AT_abstract_origin, DW_AT_specification].into_iter();
    names.find_map(|name| entry.attr_value(name))
}

/// Returns the name of a namespace, class or function. A namespace without one is `(anonymous namespace)`; a lambda, or
/// a class without a name, is `{lambda}`. `None` for other entries and for a function without a name.
fn scope_name<'s>(unit: UnitRef<'_, Slice<'s>>, scope: &Entry<'s>) -> Option<String> {
    let name = scope.attr_value(DW_AT_name);
    let name = name.and_then(|name| unit.attr_string(name).ok());
    let name = name.map(|name| String::from_utf8_lossy(name.slice()).into_owned());
    match scope.tag() {
        tag if tag == DW_TAG_namespace => {
            Some(name.unwrap_or_else(|| "(anonymous namespace)".to_owned()))
        }
        // GCC names a lambda "<lambda(int)>", clang does not name it.
        tag if CLASS_TAGS.contains(&tag) => {
            let name = name.filter(|name| !name.starts_with("<lambda"));
            Some(name.unwrap_or_else(|| "{lambda}".to_owned()))
        }
        tag if tag == DW_TAG_subprogram => name,
        _ => None,
    }
}
