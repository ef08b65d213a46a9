//! Types of Python 3 objects, by the pointer to its type that each has (Include/object.h). A type is
//! recognized because the type of its type is `type`, which is its own type. The type also says where an
//! object has the dict of its attributes (`__dict__`); since 3.11 most objects have none until it is
//! requested.

use std::collections::HashMap;
use std::rc::Rc;

use crate::objects::{GC_HEAD_SIZE, Object, Objects};
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Possible sizes of what precedes an object: nothing, the collector's `PyGC_Head` (next and previous object
/// in its list), or since 3.11 also two pointers before that.
const PREFIX_SIZES: [u64; 3] = [0, GC_HEAD_SIZE, GC_HEAD_SIZE + 16];
/// Offset of the previous object in a `PyGC_Head`.
const PREVIOUS_OFFSET: u64 = 8;
/// Flags of the collector in the lowest bits of these pointers.
const LINK_FLAGS: u64 = 0b11;
/// Offset of an object's type, after its reference count.
const TYPE_OFFSET: u64 = 8;
/// Offset of a type's name (`tp_name`).
const NAME_OFFSET: u64 = 24;
/// Offset of a type's flags (`tp_flags`).
const FLAGS_OFFSET: u64 = 168;
/// Offset in a type of the offset at which its objects have the pointer to their dict (`tp_dictoffset`).
const DICT_OFFSET: u64 = 288;
/// `Py_TPFLAGS_HAVE_GC`: the collector may have the objects in its list.
const HAVE_GC_FLAG: u64 = 1 << 14;
/// `Py_TPFLAGS_MANAGED_DICT`, since 3.11: the pointer to the dict precedes the object.
const MANAGED_DICT_FLAG: u64 = 1 << 4;
/// Offset of that pointer from the object.
const MANAGED_DICT_OFFSET: i64 = -24;
/// Name of the type of dicts.
pub(crate) const DICT_TYPE: &str = "dict";
/// Offset of a dict's pointer to its table of keys.
const KEYS_OFFSET: u64 = 32;
/// Offset of a dict's pointer to its table of values, null unless it shares its keys with other dicts.
const VALUES_OFFSET: u64 = 40;
/// Bytes of the smallest Python object.
const MIN_OBJECT_SIZE: u64 = 16;
/// Least reference count of an immortal object: since 3.12, the sign bit of a 32-bit count
/// (`_Py_IsImmortal`).
const MIN_IMMORTAL_COUNT: u32 = 1 << 31;
/// Most bytes of a type's name.
const NAME_LIMIT: usize = 256;
/// Most types in the cache, which is cleared when it is full.
const MAX_CACHED_TYPES: usize = 1 << 18;

/// Types of the Python objects in a snapshot, with a cache.
#[derive(Debug)]
pub(crate) struct Python<'a> {
    view: &'a SnapshotMemory,
    types: HashMap<u64, Option<PythonType>>,
}

/// Type of Python objects.
#[derive(Clone, Debug)]
struct PythonType {
    name: Rc<str>,
    is_collected: bool,
    /// Offset from an object's start of the pointer to the dict of its attributes.
    dict: Option<i64>,
}

impl<'a> Python<'a> {
    /// Returns a reader of Python objects. `None` if neither an interpreter nor its library is mapped.
    pub(crate) fn find(view: &'a SnapshotMemory) -> Option<Self> {
        let is_python = |name: &str| {
            let file = name.rsplit('/').next().unwrap_or(name);
            file.starts_with("python3") || file.starts_with("libpython3")
        };
        let is_found = view.regions.iter().any(|region| is_python(&region.name));
        is_found.then(|| Self {
            view,
            types: HashMap::new(),
        })
    }

    /// Records the `PyGC_Head` of all objects. Its pointers link each object to all others, but do not hold
    /// them.
    pub(crate) fn record_gc_heads(&mut self, objects: &Objects) {
        let mut memory = CachedReader::new(self.view);
        for object in objects.all() {
            if let Some(head) = self.gc_head(&mut memory, &object) {
                objects.set_gc_head(head);
            }
        }
    }

    /// Address of an object's `PyGC_Head`. `None` unless the next object in its list points back to it.
    fn gc_head(&mut self, memory: &mut CachedReader<'_>, object: &Object) -> Option<u64> {
        let (before, object_type) = self.find_type(memory, object)?;
        let head = object.range.start + before.checked_sub(GC_HEAD_SIZE)?;
        let next = memory.word(head)? & !LINK_FLAGS;
        let is_linked = object_type.is_collected
            && next != 0
            && memory.uncached_word(next.checked_add(PREVIOUS_OFFSET)?)? & !LINK_FLAGS == head;
        is_linked.then_some(head)
    }

    /// Name of the type of an object. `None` if it is no Python object.
    pub(super) fn type_name(
        &mut self,
        memory: &mut CachedReader<'_>,
        object: &Object,
    ) -> Option<Rc<str>> {
        let (_, object_type) = self.find_type(memory, object)?;
        Some(object_type.name)
    }

    /// Name of an object's type, and the address of the dict with its attributes. `None` if it has no dict, or is no
    /// Python object.
    pub(super) fn attributes_dict(
        &mut self,
        memory: &mut CachedReader<'_>,
        object: &Object,
    ) -> Option<(Rc<str>, u64)> {
        let (before, object_type) = self.find_type(memory, object)?;
        let pointer = (object.range.start + before).checked_add_signed(object_type.dict?)?;
        let is_inside = object.range.contains(&pointer);
        Some((object_type.name, is_inside.then(|| memory.word(pointer))??))
    }

    /// Address of the table of keys, or of values if the keys are shared, which only this dict uses. `None`
    /// if the object is no dict.
    pub(super) fn dict_table(
        &mut self,
        memory: &mut CachedReader<'_>,
        dict: &Object,
    ) -> Option<u64> {
        let (before, object_type) = self.find_type(memory, dict)?;
        let start = dict.range.start + before;
        if &*object_type.name != DICT_TYPE || start + VALUES_OFFSET >= dict.range.end {
            return None;
        }
        match memory.word(start + VALUES_OFFSET)? {
            0 => memory.word(start + KEYS_OFFSET),
            values => Some(values),
        }
    }

    /// Finds the type of an object. Also returns the number of bytes in front of the Python object. `None` if it is no
    /// Python object.
    fn find_type(
        &mut self,
        memory: &mut CachedReader<'_>,
        object: &Object,
    ) -> Option<(u64, PythonType)> {
        PREFIX_SIZES.into_iter().find_map(|before| {
            let start = object.range.start + before;
            if start + MIN_OBJECT_SIZE > object.range.end
                || !may_be_reference_count(memory.word(start)?)
            {
                return None;
            }
            let address = memory.word(start + TYPE_OFFSET)?;
            Some((before, self.type_at(address)?))
        })
    }

    /// Reads the type at an address, or takes it from the cache. `None` if there is none.
    fn type_at(&mut self, address: u64) -> Option<PythonType> {
        if !address.is_multiple_of(8) || address < 4096 {
            return None;
        }
        if self.types.len() > MAX_CACHED_TYPES {
            self.types.clear();
        }
        let view = self.view;
        // The word may be any number, so its sum with an offset may overflow.
        let type_of = |object: u64| view.word(object.checked_add(TYPE_OFFSET)?);
        let object_type = || {
            let above = type_of(address)?;
            let topmost = type_of(above)?;
            let is_its_own = type_of(topmost)? == topmost;
            let is_type = is_its_own && read_type_name(view, topmost)? == "type";
            let name = is_type.then(|| read_type_name(view, address)).flatten()?;
            Some(PythonType {
                name: name.into(),
                is_collected: view.word(address + FLAGS_OFFSET)? & HAVE_GC_FLAG != 0,
                dict: dict_offset(view, address),
            })
        };
        let known = self.types.entry(address);
        known.or_insert_with(object_type).clone()
    }
}

/// Whether a word may be a reference count: 32 bits since 3.12, with flags above.
fn may_be_reference_count(word: u64) -> bool {
    word as u32 != 0 && word >> 48 == 0
}

/// Reference count of the Python object at `start`; 0 for an immortal one, whose references are not counted.
pub(crate) fn reference_count(memory: &mut CachedReader<'_>, start: u64) -> u32 {
    let count = memory.word(start).unwrap_or_default() as u32;
    if count < MIN_IMMORTAL_COUNT { count } else { 0 }
}

/// Name of a type. `None` if its memory cannot be read or is no name.
fn read_type_name(view: &SnapshotMemory, object_type: u64) -> Option<String> {
    let name = view.text(view.word(object_type + NAME_OFFSET)?, NAME_LIMIT)?;
    let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    (!name.is_empty() && is_name(&name)).then_some(name)
}

/// Offset of the dict pointer in a type's objects. `None` if they have no dict, or the offset depends on
/// their length.
fn dict_offset(view: &SnapshotMemory, object_type: u64) -> Option<i64> {
    if view.word(object_type + FLAGS_OFFSET)? & MANAGED_DICT_FLAG != 0 {
        return Some(MANAGED_DICT_OFFSET);
    }
    let offset = view.word(object_type + DICT_OFFSET)? as i64;
    (offset > 0).then_some(offset)
}
