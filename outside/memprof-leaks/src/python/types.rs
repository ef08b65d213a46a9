//! Types of Python 3 objects, by the pointer to its type that each has (Include/object.h). A type is
//! recognized because the type of its type is `type`, which is its own type. The type also says where an
//! object has the dict of its attributes (`__dict__`); since 3.11 most objects have none until it is
//! requested.

use std::ops::Range;
use std::rc::Rc;

use super::layout::Layout;
use super::python_type::{Builtin, PythonType, TYPE_OFFSET, TypeFlag};
use super::type_cache::TypeCache;
use crate::objects::{GC_HEAD_SIZE, Object};
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Possible sizes of what precedes an object: nothing, the collector's `PyGC_Head` (next and previous object
/// in its list), or since 3.11 also two pointers before that.
pub(super) const PREFIX_SIZES: [u64; 3] = [0, GC_HEAD_SIZE, GC_HEAD_SIZE + 16];
/// Name of the type of dicts.
pub(crate) const DICT_TYPE: &str = "dict";
/// Offset of a dict's pointer to its table of keys.
const KEYS_OFFSET: u64 = 32;
/// Offset of a dict's pointer to its table of values, null unless it shares its keys with other dicts.
const VALUES_OFFSET: u64 = 40;
/// Bytes of the debug hooks' data in front of a block.
const DEBUG_HEAD_SIZE: u64 = 16;
/// Bytes of the smallest Python object.
const MIN_OBJECT_SIZE: u64 = 16;
/// Least reference count of an immortal object: since 3.12, the sign bit of a 32-bit count
/// (`_Py_IsImmortal`).
const MIN_IMMORTAL_COUNT: u32 = 1 << 31;
/// Most entries of dicts that are read for names of classes; further classes have no module in their names.
const MAX_NAME_ENTRIES: u64 = 1 << 23;
/// Most names that are read, which takes some seconds; further variables and classes are not named.
const MAX_NAMES: u32 = 1 << 20;
/// Offsets in a `PySetObject` of the pointer to its table and of the one in it (`smalltable`), and its size. The weak
/// references to it, which hold nothing, are behind the table.
pub(super) const SET_TABLE: u64 = 40;
pub(super) const SET_OWN_TABLE: u64 = 64;
const SET_SIZE: u64 = 200;
/// Offset of the number of elements of an object that has some (`ob_size`).
const LENGTH_OFFSET: u64 = 16;
/// Offset of the state of a `str`, and its bits for one whose characters are ASCII and follow it.
const TEXT_STATE_OFFSET: u64 = 32;
const COMPACT_ASCII: u64 = 0b110_0000;

/// Types of the Python objects in a snapshot, with a cache.
#[derive(Debug)]
pub(crate) struct PythonTypes<'a> {
    pub(super) view: &'a SnapshotMemory,
    /// Layout of the version, if it is known.
    layout: Option<Layout>,
    /// Memory of pymalloc's pools, by address.
    pools: Vec<Range<u64>>,
    cache: TypeCache,
    /// Number of entries of dicts that may still be read for names of classes.
    name_budget: u64,
    /// Number of names that may still be read.
    names_left: u32,
    /// Whether the name of a class is being read.
    is_naming: bool,
    /// Number of classes whose module was not read because of the budgets. One that was dropped from the cache counts
    /// again.
    unnamed_classes: u64,
}

impl<'a> PythonTypes<'a> {
    /// Creates a reader of the types of a `CPython`'s objects, with an empty cache. `layout` is `None` if that of its
    /// version is not known; `pools` are the addresses of its pools, sorted.
    pub(super) fn new(
        view: &'a SnapshotMemory,
        layout: Option<Layout>,
        pools: Vec<Range<u64>>,
    ) -> Self {
        Self {
            view,
            layout,
            pools,
            cache: TypeCache::new(),
            name_budget: MAX_NAME_ENTRIES,
            names_left: MAX_NAMES,
            is_naming: false,
            unnamed_classes: 0,
        }
    }

    /// Creates a reader for an interpreter of unknown layout. `None` if no file is mapped that has the name of an
    /// interpreter or of its library.
    pub(crate) fn without_layout(view: &'a SnapshotMemory) -> Option<Self> {
        let is_python = |name: &str| {
            let file = name.rsplit('/').next().unwrap_or(name);
            file.starts_with("python3") || file.starts_with("libpython3")
        };
        let is_found = view.regions.iter().any(|region| is_python(&region.name));
        is_found.then(|| Self::new(view, None, Vec::new()))
    }

    /// `CPython`'s minor version, 8 for 3.8. `None` if its layout is unknown.
    fn minor_version(&self) -> Option<u32> {
        self.layout.map(|layout| layout.minor)
    }

    /// Whether an address is in a pool of pymalloc.
    pub(crate) fn is_in_pool(&self, address: u64) -> bool {
        let at = self.pools.partition_point(|pool| pool.end <= address);
        self.pools.get(at).is_some_and(|pool| pool.start <= address)
    }

    /// Type of the Python object at an address. `None` if no Python object is there, or its type was not read because
    /// too many were read before.
    fn type_of(&mut self, object: u64) -> Option<PythonType> {
        if object == 0 || !object.is_multiple_of(8) {
            return None;
        }
        self.type_at(self.view.read_word(object.checked_add(TYPE_OFFSET)?)?)
    }

    /// Name of the type of the Python object at an address. `None` if no Python object is there, or its type was not
    /// read because too many were read before.
    pub(super) fn class_name_of(&mut self, object: u64) -> Option<Rc<str>> {
        Some(self.type_of(object)?.name)
    }

    /// Whether the object at an address is of a type with that flag.
    pub(super) fn has_flag(&mut self, object: u64, flag: TypeFlag) -> bool {
        self.type_of(object)
            .is_some_and(|found| found.has_flag(flag))
    }

    /// Counts a name that is to be read. `None` if [`MAX_NAMES`] were read.
    pub(super) fn charge_name(&mut self) -> Option<()> {
        self.names_left = self.names_left.checked_sub(1)?;
        Some(())
    }

    /// Whether [`MAX_NAMES`] names were read.
    pub(super) fn is_name_budget_used_up(&self) -> bool {
        self.names_left == 0
    }

    /// Whether the object at an address is a module.
    pub(super) fn is_module(&mut self, object: u64) -> bool {
        let found = self.type_of(object);
        found.is_some_and(|found| found.is_a(Builtin::Module))
    }

    /// Warnings about types and names that this reader has not read, with the numbers of these. Empty if it has read
    /// all.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let unnamed = (self.unnamed_classes > 0).then(|| {
            format!(
                "{} classes of Python are shown without their module, because too many names were read before",
                self.unnamed_classes
            )
        });
        self.type_warning().into_iter().chain(unnamed).collect()
    }

    /// Warning about types that this reader has not read. `None` if it has read all.
    pub(crate) fn type_warning(&self) -> Option<String> {
        self.cache.unread_types_warning()
    }

    /// Number of reads of types that were refused so far, because too many types were read. A type that several objects
    /// have counts for each of them.
    pub(crate) fn unread_types(&self) -> u64 {
        self.cache.refused_reads()
    }

    /// Name of the type of an object. `None` if it is no Python object.
    pub(crate) fn type_name(
        &mut self,
        memory: &mut CachedReader<'_>,
        object: &Object,
    ) -> Option<Rc<str>> {
        let (_, object_type) = self.find_type(memory, object)?;
        Some(object_type.name)
    }

    /// Address where the pointers in an object end. Behind that address, the object's block may have pointers of an
    /// object that was there before. `None` if the object is no Python object, or its pointers may be anywhere.
    ///
    /// The result is the object's start if no pointer counts: in a weak reference, in a type without pointers (numbers,
    /// bytes, strings of ASCII), and in an object that the interpreter has freed but keeps for the next of its type.
    pub(crate) fn end_of_pointers(
        &mut self,
        memory: &mut CachedReader<'_>,
        object: &Object,
    ) -> Option<u64> {
        let Some((before, object_type)) = self.find_type(memory, object) else {
            return self
                .is_freed_object(memory, object)
                .then_some(object.range.start);
        };
        let start = object.range.start + before;
        let is_collected = object_type.has_flag(TypeFlag::Collected);
        let is_plain = object_type.is_a(Builtin::Number)
            || object_type.has_flag(TypeFlag::Bytes)
            || object_type.has_flag(TypeFlag::Text)
                && memory.read_word(start + TEXT_STATE_OFFSET)? & COMPACT_ASCII == COMPACT_ASCII;
        if object_type.is_a(Builtin::WeakReference) || is_plain && !is_collected {
            return Some(object.range.start);
        }
        // A set has a table of its own at first, whose pointers stay when it takes a larger one.
        if object_type.is_a(Builtin::Set) && object_type.basic_size == SET_SIZE {
            let own_table = start + SET_OWN_TABLE;
            let is_own = memory.read_word(start + SET_TABLE)? == own_table;
            return (!is_own).then_some(own_table);
        }
        let elements = match object_type.item_size {
            0 => 0,
            // Subtypes may have more fields than their length says, as `os.stat_result` has.
            _ if &*object_type.name == "tuple" => memory.read_word(start + LENGTH_OFFSET)?,
            _ => return None,
        };
        let has_values_behind = object_type.has_flag(TypeFlag::InlineValues);
        let size = elements
            .checked_mul(8)?
            .checked_add(object_type.basic_size)?;
        (!has_values_behind).then_some(start.checked_add(size)?)
    }

    /// Name of an object's type, and the address of the dict with its attributes. `None` if the object is no Python
    /// object, its type has no such dict, or the pointer to the dict lies outside the object or cannot be read.
    pub(crate) fn attributes_dict(
        &mut self,
        memory: &mut CachedReader<'_>,
        object: &Object,
    ) -> Option<(Rc<str>, u64)> {
        let (before, object_type) = self.find_type(memory, object)?;
        let pointer = (object.range.start + before).checked_add_signed(object_type.dict?)?;
        let is_inside = object.range.contains(&pointer);
        Some((
            object_type.name,
            is_inside.then(|| memory.read_word(pointer))??,
        ))
    }

    /// Returns the address of the table that only this dict uses: its keys, or its values if it shares the keys with
    /// other dicts. `None` if the object is no dict, or cannot be read.
    pub(crate) fn dict_table(
        &mut self,
        memory: &mut CachedReader<'_>,
        dict: &Object,
    ) -> Option<u64> {
        let (before, object_type) = self.find_type(memory, dict)?;
        let start = dict.range.start + before;
        if &*object_type.name != DICT_TYPE || start + VALUES_OFFSET >= dict.range.end {
            return None;
        }
        match memory.read_word(start + VALUES_OFFSET)? {
            0 => memory.read_word(start + KEYS_OFFSET),
            values => Some(values),
        }
    }

    /// Whether an object has a type but a reference count of 0: the interpreter has freed it, but keeps it for reuse.
    fn is_freed_object(&mut self, memory: &mut CachedReader<'_>, object: &Object) -> bool {
        let head = debug_head_size(memory, object);
        PREFIX_SIZES.into_iter().any(|before| {
            let start = object.range.start + head + before;
            let is_inside = start + MIN_OBJECT_SIZE <= object.range.end;
            let is_unreferenced = is_inside && memory.read_word(start) == Some(0);
            let class = is_unreferenced
                .then(|| memory.read_word(start + TYPE_OFFSET))
                .flatten();
            let found = class.and_then(|class| self.type_at(class));
            found.is_some_and(|found| found.prefix_size(self.minor_version()) == before)
        })
    }

    /// Finds the type of an object. Also returns the bytes in front of the Python object, with those of debug hooks.
    /// `None` if it is no Python object, or if its type cannot be read.
    pub(crate) fn find_type(
        &mut self,
        memory: &mut CachedReader<'_>,
        object: &Object,
    ) -> Option<(u64, PythonType)> {
        let minor = self.minor_version();
        let head = debug_head_size(memory, object);
        PREFIX_SIZES.into_iter().find_map(|before| {
            let start = object.range.start + head + before;
            if start + MIN_OBJECT_SIZE > object.range.end
                || !may_be_reference_count(memory.read_word(start)?, minor)
            {
                return None;
            }
            let address = memory.read_word(start + TYPE_OFFSET)?;
            let object_type = self.type_at(address)?;
            let is_there = minor.is_none() || object_type.prefix_size(minor) == before;
            is_there.then_some((head + before, object_type))
        })
    }

    /// Type at an address, its name completed by its module. `None` if no type is at the address, or too many were read
    /// before.
    fn type_at(&mut self, address: u64) -> Option<PythonType> {
        // No type lies in the first page, or in a pool: it has more bytes than an object there.
        if !address.is_multiple_of(8) || address < 4096 || self.is_in_pool(address) {
            return None;
        }
        let (mut found, is_named) =
            self.cache
                .find_or_read_type(self.view, self.layout, address)?;
        // The name of a part of another class's name is not needed, and such parts may form a long chain.
        if is_named || self.is_naming || !found.has_flag(TypeFlag::Heap) {
            return Some(found);
        }
        self.is_naming = true;
        let name = self
            .qualified_class_name(address, &found.name)
            .map(Rc::from);
        self.is_naming = false;
        self.cache.complete_name(address, name.clone());
        found.name = name.unwrap_or(found.name);
        Some(found)
    }

    /// Name of the class at an address, with its module. `own` is the name that its type has. `None` if `own` has the
    /// module already, or the module is not known.
    fn qualified_class_name(&mut self, address: u64, own: &str) -> Option<String> {
        let layout = self.layout.filter(|_| !own.contains('.'))?;
        let mut budget = self.name_budget;
        let name = layout.class_name(self.view, address, self, &mut budget);
        let is_late = self.is_name_budget_used_up() || budget == 0;
        self.unnamed_classes += u64::from(name.is_none() && is_late);
        self.name_budget = budget;
        name
    }
}

/// Bytes that the debug hooks of Python's allocators have in front of an object (`PYTHONMALLOC=debug`): for each hook
/// the size, and the letter of its allocator before seven `PYMEM_FORBIDDENBYTE`. A block of more than 512 bytes has
/// passed two hooks. 0 if there are none, which is usual.
fn debug_head_size(memory: &mut CachedReader<'_>, object: &Object) -> u64 {
    const FORBIDDEN: u64 = 0x00fd_fdfd_fdfd_fdfd;
    const MAX_HEADS: u64 = 2;
    let mut is_head = |number: &u64| {
        let second = object.range.start + number * DEBUG_HEAD_SIZE + 8;
        let word = (second + 8 <= object.range.end).then(|| memory.read_word(second));
        let is_letter = |word: u64| matches!(word as u8, b'o' | b'm' | b'r');
        word.flatten()
            .is_some_and(|word| word >> 8 == FORBIDDEN && is_letter(word))
    };
    (0..MAX_HEADS).take_while(|number| is_head(number)).count() as u64 * DEBUG_HEAD_SIZE
}

/// Whether the first word of an object may be its reference count. In the versions whose layouts are known it has 32
/// bits, so that few pointers are taken for one; since 3.14 an immortal object has flags in the upper 16 bits. If
/// `minor` is `None`, the version is unknown, and flags may be above the count.
fn may_be_reference_count(word: u64, minor: Option<u32>) -> bool {
    /// `_Py_STATIC_FLAG_BITS`.
    const IMMORTAL_FLAGS: u64 = 0b101 << 48;
    let count = word as u32;
    let flags = match minor {
        Some(14..) if count >= MIN_IMMORTAL_COUNT => IMMORTAL_FLAGS,
        Some(_) => 0,
        None => u64::MAX >> 16,
    };
    count != 0 && word & !flags & !u64::from(u32::MAX) == 0
}

/// Reference count of the Python object at `start`; 0 for an immortal one, whose references are not counted, and if it
/// cannot be read.
pub(crate) fn reference_count(memory: &mut CachedReader<'_>, start: u64) -> u32 {
    let count = memory.read_word(start).unwrap_or_default() as u32;
    if count < MIN_IMMORTAL_COUNT { count } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_word_of_object_is_its_count() {
        let check = |minor, word, expected| {
            assert_eq!(
                may_be_reference_count(word, minor),
                expected,
                "{minor:?}: {word:x}"
            );
        };
        let immortal = u64::from(MIN_IMMORTAL_COUNT) + (1 << 30);
        for minor in [None, Some(8), Some(13), Some(14)] {
            check(minor, 1, true);
            check(minor, immortal, true);
            check(minor, 0, false);
            check(minor, 1 << 32, false);
            check(minor, u64::MAX, false);
        }
        // The flags of 3.14; a pointer.
        check(Some(14), immortal | 1 << 48, true);
        check(Some(14), immortal | 5 << 48, true);
        check(Some(14), 7 | 1 << 48, false);
        check(Some(14), immortal | 1 << 32, false);
        check(Some(13), immortal | 1 << 48, false);
        check(Some(14), 0x7f12_8000_1000, false);
        check(None, 0x7f12_8000_1000, true);
    }
}
