//! One type of Python objects: its flags, sizes and what precedes its objects.

use std::rc::Rc;

use crate::objects::GC_HEAD_SIZE;

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
}

impl PythonType {
    /// Whether the type has a bit of `tp_flags`.
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
