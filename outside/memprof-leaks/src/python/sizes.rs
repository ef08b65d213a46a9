//! Sizes of objects as `sys.getsizeof()` counts them: the object with what precedes it, and the table that it owns.

use std::ops::Range;

use super::dicts::{KeyTable, TextForm};
use super::interpreters::Interpreters;
use super::types::{FLAGS_OFFSET, PythonType, TypeFlag};
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Largest size of an object's elements, in bytes.
const MAX_ELEMENTS_SIZE: u64 = 1 << 47;
/// Bytes of an entry of a set.
const SET_ENTRY: u64 = 16;

/// Size of the object at an address, in bytes. `None` if its fields are inconsistent.
pub(crate) fn size_of_object(
    view: &SnapshotMemory,
    memory: &mut CachedReader<'_>,
    interpreters: &Interpreters,
    object: u64,
    class: &PythonType,
) -> Option<u64> {
    let layout = &interpreters.layout;
    let mut word = |offset: u64| memory.word(object.checked_add(offset)?);
    let elements = |count: u64, size: u64| {
        let bytes = count.checked_mul(size)?;
        (bytes <= MAX_ELEMENTS_SIZE).then_some(bytes)
    };
    let own = class.basic_size;
    let size = if class.has(TypeFlag::Long) {
        let digits = match layout.minor {
            // The sign is that of the number of digits.
            ..=11 => word(16)?.cast_signed().unsigned_abs(),
            _ => (word(16)? >> 3).max(1),
        };
        own + elements(digits, class.item_size)?
    } else if class.has(TypeFlag::Text) {
        let text = TextForm::parse(word(16)?, word(32)?)?;
        let head = match (text.is_compact, text.is_ascii) {
            (true, true) => layout.text_ascii,
            (true, false) => layout.text_compact,
            (false, _) => own,
        };
        head + elements(text.len.checked_add(1)?, text.width)?
    } else if class.has(TypeFlag::List) {
        own + elements(word(32)?, 8)?
    } else if class.has(TypeFlag::Dict) {
        own + dict_tables(view, interpreters, object)?
    } else if class.has(TypeFlag::Class) {
        let keys = word(layout.cached_keys)?;
        let is_made_by_program = word(FLAGS_OFFSET)? >> TypeFlag::Heap as u32 & 1 != 0;
        let keys = match is_made_by_program && keys != 0 {
            true => elements(KeyTable::read(view, layout, keys)?.size()?, 1)?,
            false => 0,
        };
        own + keys
    } else if class.is_set {
        let (mask, table) = (word(32)?, word(40)?);
        // `PySetObject.smalltable` is in the object.
        let is_own = table != object + 64;
        own + if is_own {
            elements(mask.checked_add(1)?, SET_ENTRY)?
        } else {
            0
        }
    } else if class.is_bytearray {
        own + elements(word(24)?, 1)?
    } else if class.item_size > 0 {
        let count = word(16)?.cast_signed().unsigned_abs();
        own + elements(count, class.item_size)?
    } else {
        own
    };
    Some(size + class.prefix(Some(layout.minor)))
}

/// Parts of an object's tables that have its elements: a list's, a dict's, a class's, or the values of its attributes.
/// Behind them, there may be pointers of what was there before.
pub(crate) fn elements_of_object(
    view: &SnapshotMemory,
    memory: &mut CachedReader<'_>,
    interpreters: &Interpreters,
    object: u64,
    class: &PythonType,
) -> [Option<Range<u64>>; 2] {
    let layout = &interpreters.layout;
    let mut word = |offset: i64| memory.word(object.checked_add_signed(offset)?);
    let elements = |start: Option<u64>, size: Option<u64>| {
        let start = start.filter(|start| *start != 0)?;
        Some(start..start.checked_add(size?)?)
    };
    let keys = |table: Option<u64>| KeyTable::read(view, layout, table?);
    if class.has(TypeFlag::List) {
        let size = word(16).and_then(|count| count.checked_mul(8));
        return [elements(word(24), size), None];
    }
    if class.has(TypeFlag::Dict) {
        let (table, values) = (word(32), word(40));
        let form = keys(table);
        // `PyDictValues` of 3.13 has a word before them.
        let head = if layout.minor >= 13 { 8 } else { 0 };
        let size = form.and_then(|form| form.room.checked_mul(8)?.checked_add(head));
        let used = form.and_then(|form| form.size_of_used());
        return [elements(table, used), elements(values, size)];
    }
    if class.has(TypeFlag::Class) {
        let table = word(layout.cached_keys.cast_signed());
        let used = keys(table).and_then(|form| form.size_of_used());
        return [elements(table, used), None];
    }
    if !class.has(TypeFlag::ManagedDict) {
        return [None, None];
    }
    // 3.12 has one word for the dict or, with a set bit, one below the values.
    let values = match layout.minor {
        11 => word(-32),
        12 => word(-24).filter(|word| word & 1 != 0),
        _ => None,
    };
    let values = values.and_then(|values| values.checked_add(values & 1));
    let size = keys(class.cached_keys).and_then(|form| form.room.checked_mul(8));
    [elements(values, size), None]
}

/// Bytes of a dict's tables; a table of keys that it shares belongs to the class.
fn dict_tables(view: &SnapshotMemory, interpreters: &Interpreters, dict: u64) -> Option<u64> {
    let keys = KeyTable::read(view, &interpreters.layout, view.field(dict, 32)?)?;
    let values = match view.field(dict, 40)? {
        0 => 0,
        _ => keys.room.checked_mul(8)?,
    };
    let own = if keys.references == 1 {
        keys.size()?
    } else {
        0
    };
    let size = values.checked_add(own)?;
    (size <= MAX_ELEMENTS_SIZE).then_some(size)
}
