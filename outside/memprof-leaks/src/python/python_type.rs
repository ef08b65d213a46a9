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
/// Bytes of a type of which its fields are read at once.
const HEAD_SIZE: usize = 296;

/// Types of the interpreter's own whose objects have a form of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Builtin {
    Set,
    ByteArray,
    WeakReference,
    Number,
    /// Its objects contain the local variables of a function.
    Generator,
    Module,
}

/// Names of these types, in all versions.
const BUILTIN_NAMES: [(&str, Builtin); 16] = [
    ("set", Builtin::Set),
    ("frozenset", Builtin::Set),
    ("bytearray", Builtin::ByteArray),
    ("weakref", Builtin::WeakReference),
    ("weakref.ReferenceType", Builtin::WeakReference),
    ("weakproxy", Builtin::WeakReference),
    ("weakref.ProxyType", Builtin::WeakReference),
    ("weakcallableproxy", Builtin::WeakReference),
    ("weakref.CallableProxyType", Builtin::WeakReference),
    ("int", Builtin::Number),
    ("float", Builtin::Number),
    ("complex", Builtin::Number),
    ("generator", Builtin::Generator),
    ("coroutine", Builtin::Generator),
    ("async_generator", Builtin::Generator),
    ("module", Builtin::Module),
];

/// Those that a type is, or of which it is a subtype: a bit for each [`Builtin`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BuiltinBases(u8);

impl BuiltinBases {
    /// Returns the built-in type of that name; empty if none of [`BUILTIN_NAMES`] has it.
    fn from_name(name: &str) -> Self {
        let known = BUILTIN_NAMES.iter().find(|(known, _)| *known == name);
        Self(known.map_or(0, |(_, builtin)| 1 << *builtin as u8))
    }

    /// Returns the bases that are in one of the two or in both.
    pub(super) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

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
    bases: BuiltinBases,
}

impl PythonType {
    /// Reads the fields of the type at an address where [`is_type_at`] says that one is. `None` if they cannot be read,
    /// or are inconsistent.
    pub(super) fn read(
        view: &SnapshotMemory,
        layout: Option<Layout>,
        address: u64,
        bases: BuiltinBases,
    ) -> Option<Self> {
        let head = TypeHead::read(view, address)?;
        let size = |offset| Some(head.word(offset)).filter(|size| *size <= MAX_BASIC_SIZE);
        let flags = head.word(FLAGS_OFFSET);
        let layout = layout.filter(|_| is_heap_type(flags));
        Some(Self {
            name: read_name(view, head.word(NAME_OFFSET))?.into(),
            flags,
            basic_size: size(BASIC_SIZE_OFFSET)?,
            item_size: size(ITEM_SIZE_OFFSET)?,
            dict: dict_offset(head.word(DICT_OFFSET), flags),
            cached_keys: layout.and_then(|layout| view.read_field(address, layout.cached_keys)),
            bases,
        })
    }

    /// Whether this type is `builtin`, or a subtype of it.
    pub(crate) fn is_a(&self, builtin: Builtin) -> bool {
        self.bases.0 >> builtin as u8 & 1 != 0
    }

    pub(crate) fn has_flag(&self, flag: TypeFlag) -> bool {
        self.flags >> flag as u32 & 1 != 0
    }

    /// Bytes in front of an object: one of [`PREFIX_SIZES`](super::types::PREFIX_SIZES). If `minor` is `None`, the
    /// version is not known, and what precedes the `PyGC_Head` does not count.
    pub(crate) fn prefix_size(&self, minor: Option<u32>) -> u64 {
        let has_pointers = match minor {
            Some(12..) => {
                self.has_flag(TypeFlag::ManagedDict)
                    || self.has_flag(TypeFlag::ManagedWeakReference)
            }
            Some(11) => self.has_flag(TypeFlag::ManagedDict),
            _ => false,
        };
        let head = if self.has_flag(TypeFlag::Collected) {
            GC_HEAD_SIZE
        } else {
            0
        };
        // Two pointers precede the head.
        head + if has_pointers { 16 } else { 0 }
    }
}

/// Whether a type with these flags is a heap type, one that the program has made.
fn is_heap_type(flags: u64) -> bool {
    flags >> TypeFlag::Heap as u32 & 1 != 0
}

/// The first bytes of a type.
struct TypeHead([u8; HEAD_SIZE]);

impl TypeHead {
    /// Reads the type at an address. `None` if it cannot be read.
    fn read(view: &SnapshotMemory, address: u64) -> Option<Self> {
        let mut bytes = [0; HEAD_SIZE];
        (view.read(address, &mut bytes) == HEAD_SIZE).then_some(Self(bytes))
    }

    /// Returns the word at an offset. Panics unless all its bytes are below [`HEAD_SIZE`].
    fn word(&self, offset: u64) -> u64 {
        let offset = offset as usize;
        let bytes = self.0[offset..offset + 8].try_into();
        u64::from_le_bytes(bytes.expect("eight bytes"))
    }
}

/// Whether a type is at an address: the type of its type is `type`, which is its own type.
pub(super) fn is_type_at(view: &SnapshotMemory, address: u64) -> bool {
    let is_type = || {
        let above = view.read_field(address, TYPE_OFFSET)?;
        let topmost = view.read_field(above, TYPE_OFFSET)?;
        let is_its_own = view.read_field(topmost, TYPE_OFFSET)? == topmost;
        let name =
            is_its_own.then(|| read_name(view, view.read_field(topmost, NAME_OFFSET)?))??;
        Some(name == "type")
    };
    is_type() == Some(true)
}

/// Reads the type at an address: the built-in type that it is itself, if any, and the address of the type of which it
/// is a subtype (`tp_base`; 0 if there is none). `None` if it cannot be read.
pub(super) fn read_builtin_and_base(
    view: &SnapshotMemory,
    address: u64,
) -> Option<(BuiltinBases, u64)> {
    let head = TypeHead::read(view, address)?;
    let own = if is_heap_type(head.word(FLAGS_OFFSET)) {
        BuiltinBases::default()
    } else {
        BuiltinBases::from_name(&read_name(view, head.word(NAME_OFFSET))?)
    };
    Some((own, head.word(BASE_OFFSET)))
}

/// Name at an address, cut after [`NAME_LIMIT`] bytes. `None` if its memory cannot be read or is no name.
fn read_name(view: &SnapshotMemory, address: u64) -> Option<String> {
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

/// Offset of the dict pointer in a type's objects, by its `tp_dictoffset`. `None` if they have no dict, or the offset
/// depends on their length.
fn dict_offset(offset: u64, flags: u64) -> Option<i64> {
    if flags >> TypeFlag::ManagedDict as u32 & 1 != 0 {
        return Some(MANAGED_DICT_OFFSET);
    }
    let offset = offset.cast_signed();
    (offset > 0).then_some(offset)
}
