//! Types that were read, each once, and the limit of what is read of them: a process may have any number of them, and
//! each may be a subtype of any other.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::layout::Layout;
use super::python_type::{BuiltinBases, PythonType, is_type_at, read_builtin_and_base};
use crate::snapshot_memory::SnapshotMemory;

/// Most bytes of the types in the cache, with their names. A full cache is cleared; a large program has some ten
/// thousand classes, of 200 bytes each.
const MAX_CACHED_BYTES: usize = 32 << 20;
/// Most addresses without a type in the cache, which is cleared when it is full.
const MAX_CACHED_OTHERS: usize = 1 << 18;
/// Most types of which a type is a subtype, each of the next.
const MAX_BASES: usize = 64;
/// Most types and bases that are read, each again after it was dropped from the cache: some seconds, and 600 bytes of
/// the process's memory each.
const MAX_READ_TYPES: u32 = 1 << 19;

/// Cache of types by address.
#[derive(Debug)]
pub(super) struct TypeCache {
    types: HashMap<u64, CachedType>,
    /// Bytes of `types`.
    bytes: usize,
    /// Addresses where no type is.
    others: HashSet<u64>,
    bases: HashMap<u64, BuiltinBases>,
    /// Number of types and bases that may still be read.
    budget: u32,
    /// Number of attempts to read a type or a base that failed because of the budget.
    refused: u64,
}

/// A type, and whether its name has been completed by its module.
#[derive(Debug)]
struct CachedType {
    python_type: PythonType,
    is_named: bool,
}

impl TypeCache {
    pub(super) fn new() -> Self {
        Self {
            types: HashMap::new(),
            bytes: 0,
            others: HashSet::new(),
            bases: HashMap::new(),
            budget: MAX_READ_TYPES,
            refused: 0,
        }
    }

    /// Warning about the types that were not read. `None` if all were.
    pub(super) fn unread_types_warning(&self) -> Option<String> {
        (self.refused > 0).then(|| {
            format!(
                "only {MAX_READ_TYPES} types of Python were read: objects of further ones are shown without their type, and \
                 those that the collector knows count as in use"
            )
        })
    }

    /// Returns the type at an address, and whether [`complete_name`](Self::complete_name) was called for it. Reads the
    /// type unless it is in the cache. `None` if no type that can be read is there, or [`MAX_READ_TYPES`] were read.
    pub(super) fn find_or_read_type(
        &mut self,
        view: &SnapshotMemory,
        layout: Option<Layout>,
        address: u64,
    ) -> Option<(PythonType, bool)> {
        if let Some(known) = self.types.get(&address) {
            return Some((known.python_type.clone(), known.is_named));
        }
        if self.others.contains(&address) {
            return None;
        }
        let is_type = is_type_at(view, address);
        if is_type && !self.charge_read() {
            return None;
        }
        let bases = is_type.then(|| self.builtin_bases(view, address));
        let found = bases.and_then(|bases| PythonType::read(view, layout, address, bases));
        let Some(found) = found else {
            if self.others.len() >= MAX_CACHED_OTHERS {
                self.others.clear();
            }
            self.others.insert(address);
            return None;
        };
        self.reserve_bytes(size_of::<(u64, CachedType)>() + found.name.len());
        let cached = CachedType {
            python_type: found.clone(),
            is_named: false,
        };
        self.types.insert(address, cached);
        Some((found, false))
    }

    /// Sets the name of the type at an address, and counts it as complete; `None` keeps the name that it has. Sets
    /// nothing if the type was dropped from the cache meanwhile.
    pub(super) fn complete_name(&mut self, address: u64, name: Option<Rc<str>>) {
        self.reserve_bytes(name.as_ref().map_or(0, |name| name.len()));
        if let Some(cached) = self.types.get_mut(&address) {
            cached.is_named = true;
            if let Some(name) = name {
                cached.python_type.name = name;
            }
        }
    }

    /// Counts `bytes` more for the types in the cache. Removes all types first if the cache becomes too large.
    fn reserve_bytes(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes > MAX_CACHED_BYTES {
            self.types.clear();
            self.bytes = bytes;
        }
    }

    /// The interpreter's own types that the type at an address is, or of which it is a subtype. Caches the result of a
    /// complete search. Misses types beyond [`MAX_BASES`] steps, and those beyond the budget of reads.
    fn builtin_bases(&mut self, view: &SnapshotMemory, address: u64) -> BuiltinBases {
        let mut found = BuiltinBases::default();
        let mut chain = Vec::new();
        let mut next = address;
        let is_whole = loop {
            if let Some(known) = self.bases.get(&next) {
                found = *known;
                break true;
            }
            if chain.len() >= MAX_BASES || !self.charge_read() {
                break false;
            }
            let Some((own, base)) = read_builtin_and_base(view, next) else {
                break true;
            };
            chain.push((next, own));
            next = base;
        };
        for (address, own) in chain.into_iter().rev() {
            found = found.union(own);
            // The result of a search that ended early depends on where it began.
            if is_whole {
                self.bases.insert(address, found);
            }
        }
        found
    }

    /// Takes one read of a type or a base from the budget. If nothing is left, counts a refused read and returns false.
    fn charge_read(&mut self) -> bool {
        let left = self.budget.checked_sub(1);
        self.budget = left.unwrap_or(0);
        self.refused += u64::from(left.is_none());
        left.is_some()
    }

    /// Number of attempts to read a type or a base that failed because of the budget.
    pub(super) fn refused_reads(&self) -> u64 {
        self.refused
    }
}
