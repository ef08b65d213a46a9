//! One type of Python objects: its flags, sizes and what precedes its objects.

use std::rc::Rc;

use super::layout::Layout;
use crate::objects::GC_HEAD_SIZE;
use crate::snapshot_memory::SnapshotMemory;

/// Offset of an object's type, after its reference count.
pub(super) const TYPE_OFFSET: u64 = 8;
/// Offset of a type's name (`tp_name`).
const NAME_OFFSET: u64 = 24;
/// Offsets of the size of its objects and of an element of them (`tp_basicsize`, `tp_itemsize`).
const BASIC_SIZE_OFFSET: u64 = 32;
const ITEM_SIZE_OFFSET: u64 = 40;
/// Offset of a type's flags (`tp_flags`).
pub(super) const FLAGS_OFFSET: u64 = 168;
/// Offset of the type of which it is a subtype (`tp_base`).
const BASE_OFFSET: u64 = 256;
/// Offset in a type of the offset at which its objects have the pointer to their dict (`tp_dictoffset`).
const DICT_OFFSET: u64 = 288;
/// Offset of the pointer to the dict from an object with [`TypeFlag::ManagedDict`].
const MANAGED_DICT_OFFSET: i64 = -24;
/// Most bytes of a type's name.
const NAME_LIMIT: usize = 256;
/// Largest size of the fixed part of an object, or of an element, in bytes.
const MAX_BASIC_SIZE: u64 = 1 << 24;
/// Most types of which a type is a subtype, each of the next.
const MAX_BASES: usize = 64;
/// Names of the types whose objects contain the local variables of a function.
const GENERATORS: [&str; 3] = ["generator", "coroutine", "async_generator"];
/// Names of the types of weak references, in all versions.
const WEAK_REFERENCES: [&str; 6] = [
    "weakref",
    "weakref.ReferenceType",
    "weakproxy",
    "weakref.ProxyType",
    "weakcallableproxy",
    "weakref.CallableProxyType",
];

/// A bit of `tp_flags`, by its number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TypeFlag {
    /// `Py_TPFLAGS_INLINE_VALUES`, since 3.13: the values of its attributes follow an object.
    InlineValues = 2,
    /// `Py_TPFLAGS_MANAGED_WEAKREF`, since 3.12.
    ManagedWeakReference = 3,
    /// `Py_TPFLAGS_MANAGED_DICT`, since 3.11: the pointer to the dict precedes the object.
    ManagedDict = 4,
    /// `Py_TPFLAGS_HEAPTYPE`: the program has made the type.
    Heap = 9,
    /// `Py_TPFLAGS_HAVE_GC`: the collector may have the objects in its list.
    Collected = 14,
    Long = 24,
    List = 25,
    Bytes = 27,
    Text = 28,
    Dict = 29,
    Class = 31,
}

/// Type of Python objects.
#[derive(Clone, Debug)]
pub(crate) struct PythonType {
    pub(crate) name: Rc<str>,
    pub(super) flags: u64,
    /// Bytes of the fixed part of an object.
    pub(crate) basic_size: u64,
    /// Bytes of an element; 0 if the objects have one size.
    pub(crate) item_size: u64,
    /// Offset from an object's start of the pointer to the dict of its attributes.
    pub(super) dict: Option<i64>,
    /// Address of the table of keys that its objects share, if the program has made the type.
    pub(super) cached_keys: Option<u64>,
    pub(crate) is_set: bool,
    pub(crate) is_bytearray: bool,
    pub(super) is_weak_reference: bool,
    pub(super) is_number: bool,
    pub(super) is_generator: bool,
}

impl PythonType {
    /// Reads the type at an address. `None` if there is none.
    pub(super) fn read(
        view: &SnapshotMemory,
        layout: Option<Layout>,
        address: u64,
    ) -> Option<Self> {
        // The word may be any number, so its sum with an offset may overflow.
        let type_of = |object: u64| view.word(object.checked_add(TYPE_OFFSET)?);
        let above = type_of(address)?;
        let topmost = type_of(above)?;
        let is_its_own = type_of(topmost)? == topmost;
        let is_type = is_its_own && read_type_name(view, topmost)? == "type";
        let name = is_type.then(|| read_type_name(view, address)).flatten()?;
        let size = |offset| {
            let size = view.field(address, offset)?;
            (size <= MAX_BASIC_SIZE).then_some(size)
        };
        let flags = view.field(address, FLAGS_OFFSET)?;
        let layout = layout.filter(|_| is_class(flags));
        Some(Self {
            name: name.into(),
            flags,
            basic_size: size(BASIC_SIZE_OFFSET)?,
            item_size: size(ITEM_SIZE_OFFSET)?,
            dict: dict_offset(view, address, flags),
            cached_keys: layout.and_then(|layout| view.field(address, layout.cached_keys)),
            is_set: has_base(view, address, &["set", "frozenset"]),
            is_bytearray: has_base(view, address, &["bytearray"]),
            is_weak_reference: has_base(view, address, &WEAK_REFERENCES),
            is_number: has_base(view, address, &["int", "float", "complex"]),
            is_generator: has_base(view, address, &GENERATORS),
        })
    }

    pub(crate) fn has(&self, flag: TypeFlag) -> bool {
        self.flags >> flag as u32 & 1 != 0
    }

    /// Bytes in front of an object: one of [`PREFIX_SIZES`](super::types::PREFIX_SIZES). If `minor` is `None`, the
    /// version is not known, and what precedes the `PyGC_Head` does not count.
    pub(crate) fn prefix(&self, minor: Option<u32>) -> u64 {
        let has_pointers = match minor {
            Some(12..) => {
                self.has(TypeFlag::ManagedDict) || self.has(TypeFlag::ManagedWeakReference)
            }
            Some(11) => self.has(TypeFlag::ManagedDict),
            _ => false,
        };
        let head = if self.has(TypeFlag::Collected) {
            GC_HEAD_SIZE
        } else {
            0
        };
        head + if has_pointers { 16 } else { 0 }
    }
}

/// Whether the program has made a type with these flags.
fn is_class(flags: u64) -> bool {
    flags >> TypeFlag::Heap as u32 & 1 != 0
}

/// Name of a type, cut after [`NAME_LIMIT`] bytes. `None` if its memory cannot be read or is no name.
fn read_type_name(view: &SnapshotMemory, object_type: u64) -> Option<String> {
    let address = view.field(object_type, NAME_OFFSET)?;
    let mut bytes = [0; NAME_LIMIT];
    let read = view.read(address, &mut bytes);
    let end = bytes[..read].iter().position(|byte| *byte == 0);
    let name = match end {
        Some(end) => str::from_utf8(&bytes[..end]).ok()?.to_owned(),
        None if read < NAME_LIMIT => return None,
        // A character may begin before the limit and end behind it.
        None => bytes[..read].utf8_chunks().next()?.valid().to_owned() + "…",
    };
    (!name.is_empty() && !name.contains(char::is_control)).then_some(name)
}

/// Offset of the dict pointer in a type's objects. `None` if they have no dict, or the offset depends on
/// their length.
fn dict_offset(view: &SnapshotMemory, object_type: u64, flags: u64) -> Option<i64> {
    if flags >> TypeFlag::ManagedDict as u32 & 1 != 0 {
        return Some(MANAGED_DICT_OFFSET);
    }
    let offset = view.word(object_type + DICT_OFFSET)? as i64;
    (offset > 0).then_some(offset)
}

/// Whether a type, or one of which it is a subtype, is the interpreter's own of one of these names.
pub(super) fn has_base(view: &SnapshotMemory, object_type: u64, names: &[&str]) -> bool {
    let mut next = Some(object_type);
    for _ in 0..MAX_BASES {
        let Some(name) = next.and_then(|base| read_type_name(view, base)) else {
            return false;
        };
        let flags = next.and_then(|base| view.word(base.checked_add(FLAGS_OFFSET)?));
        if names.contains(&name.as_str()) && flags.is_some_and(|flags| !is_class(flags)) {
            return true;
        }
        next = next.and_then(|base| view.word(base.checked_add(BASE_OFFSET)?));
    }
    false
}
