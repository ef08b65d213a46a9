//! Sizes of objects as `sys.getsizeof()` counts them: the object with what precedes it, and the table that it owns.

use std::ops::Range;

use super::dicts::{KeyTable, TextForm};
use super::interpreters::Interpreters;
use super::python_type::{Builtin, FLAGS_OFFSET, PythonType, TypeFlag};
use super::types::{SET_OWN_TABLE, SET_TABLE};
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Offset in a `PySetObject` of the number of entries of its table, less one.
const SET_MASK: u64 = 32;
/// Bytes of an entry of a set.
const SET_ENTRY: u64 = 16;

/// Sizes of an object and of its tables. Fields that are inconsistent may give any size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectSize {
    /// Bytes of the object, without what precedes it.
    pub(crate) own: u64,
    /// Address and bytes of each table that it owns.
    pub(crate) tables: [Option<(u64, u64)>; 2],
}

/// Size of the object at an address, whose type is `class`, and addresses and sizes of its tables: of a list, a dict, a
/// set, a bytearray, or a class's cached keys. A table of keys that several dicts share counts 0 bytes. `None` if the
/// fields of the object are inconsistent or cannot be read.
pub(crate) fn size_of_object(
    view: &SnapshotMemory,
    memory: &mut CachedReader<'_>,
    interpreters: &Interpreters,
    object: u64,
    class: &PythonType,
) -> Option<ObjectSize> {
    let layout = &interpreters.layout;
    let mut word = |offset: u64| memory.read_word(object.checked_add(offset)?);
    let own = class.basic_size;
    let whole = |elements: Option<u64>| {
        let own = own.checked_add(elements?)?;
        let tables = [None, None];
        Some(ObjectSize { own, tables })
    };
    let with_table = |table: u64, size: Option<u64>| {
        let tables = [Some((table, size?)), None];
        Some(ObjectSize { own, tables })
    };
    if class.has_flag(TypeFlag::Long) {
        let digits = match layout.minor {
            // `ob_size`: the number of digits, with the sign of the value.
            ..=11 => word(16)?.cast_signed().unsigned_abs(),
            // `lv_tag`: flags in the lowest three bits.
            _ => (word(16)? >> 3).max(1),
        };
        return whole(digits.checked_mul(class.item_size));
    }
    if class.has_flag(TypeFlag::Text) {
        let text = TextForm::parse(word(16)?, word(32)?)?;
        let head = match (text.is_compact, text.is_ascii) {
            (true, true) => layout.text_ascii,
            (true, false) => layout.text_compact,
            (false, _) => return whole(Some(0)),
        };
        let chars = text.len.checked_add(1)?.checked_mul(text.width)?;
        let tables = [None, None];
        let own = head.checked_add(chars)?;
        return Some(ObjectSize { own, tables });
    }
    if class.has_flag(TypeFlag::List) {
        // `ob_item` and `allocated`.
        return with_table(word(24)?, word(32)?.checked_mul(8));
    }
    if class.has_flag(TypeFlag::Dict) {
        // `ma_keys` and `ma_values`.
        let (table, values) = (word(32)?, word(40)?);
        let keys = KeyTable::read(view, layout, table)?;
        // A table of keys that several dicts share belongs to the class.
        let keys_size = if keys.references == 1 {
            keys.size()?
        } else {
            0
        };
        let values_size = if values == 0 {
            0
        } else {
            keys.room.checked_mul(8)?
        };
        let tables = [Some((table, keys_size)), Some((values, values_size))];
        return Some(ObjectSize { own, tables });
    }
    if class.has_flag(TypeFlag::Class) {
        let keys = word(layout.cached_keys)?;
        let is_made_by_program = word(FLAGS_OFFSET)? >> TypeFlag::Heap as u32 & 1 != 0;
        return match is_made_by_program && keys != 0 {
            true => with_table(keys, KeyTable::read(view, layout, keys)?.size()),
            false => whole(Some(0)),
        };
    }
    if class.is_a(Builtin::Set) {
        let (mask, table) = (word(SET_MASK)?, word(SET_TABLE)?);
        return match table == object.checked_add(SET_OWN_TABLE)? {
            true => whole(Some(0)),
            false => with_table(table, mask.checked_add(1)?.checked_mul(SET_ENTRY)),
        };
    }
    if class.is_a(Builtin::ByteArray) {
        // `ob_bytes` and `ob_alloc`.
        return with_table(word(32)?, Some(word(24)?));
    }
    // Since 3.12 a generator has no field with the number of its local variables: it counts to the end of its block.
    if class.is_a(Builtin::Generator) && layout.minor >= 12 {
        return whole(Some(u64::MAX - own));
    }
    match class.item_size {
        0 => whole(Some(0)),
        // `ob_size`.
        size => whole(word(16)?.cast_signed().unsigned_abs().checked_mul(size)),
    }
}

/// Address ranges of the used parts of the tables that an object owns, whose type is `class`: of a list, a dict, a set,
/// a class's cached keys, or the values of its attributes (3.11 and 3.12). The memory behind them may have pointers
/// that were stored there before. `None` for a table that the object does not have, or that cannot be read.
pub(crate) fn elements_of_object(
    view: &SnapshotMemory,
    memory: &mut CachedReader<'_>,
    interpreters: &Interpreters,
    object: u64,
    class: &PythonType,
) -> [Option<Range<u64>>; 2] {
    let layout = &interpreters.layout;
    let mut word = |offset: i64| memory.read_word(object.checked_add_signed(offset)?);
    let elements = |start: Option<u64>, size: Option<u64>| {
        let start = start.filter(|start| *start != 0)?;
        Some(start..start.checked_add(size?)?)
    };
    let keys = |table: Option<u64>| KeyTable::read(view, layout, table?);
    if class.has_flag(TypeFlag::List) {
        // `ob_size` and `ob_item`.
        let size = word(16).and_then(|count| count.checked_mul(8));
        return [elements(word(24), size), None];
    }
    if class.has_flag(TypeFlag::Dict) {
        // `ma_keys` and `ma_values`.
        let (table, values) = (word(32), word(40));
        let form = keys(table);
        // `PyDictValues` of 3.13 has a word before them.
        let head = if layout.minor >= 13 { 8 } else { 0 };
        let size = form.and_then(|form| form.room.checked_mul(8)?.checked_add(head));
        let used = form.and_then(|form| form.used_size());
        return [elements(table, used), elements(values, size)];
    }
    if class.has_flag(TypeFlag::Class) {
        let table = word(layout.cached_keys.cast_signed());
        let used = keys(table).and_then(|form| form.used_size());
        return [elements(table, used), None];
    }
    if class.is_a(Builtin::Set) {
        let own_table = object.checked_add(SET_OWN_TABLE);
        let table = word(SET_TABLE.cast_signed()).filter(|table| Some(*table) != own_table);
        let entries = word(SET_MASK.cast_signed()).and_then(|mask| mask.checked_add(1));
        let size = entries.and_then(|entries| entries.checked_mul(SET_ENTRY));
        return [elements(table, size), None];
    }
    if !class.has_flag(TypeFlag::ManagedDict) {
        return [None, None];
    }
    // In front of the object, 3.11 has the address of the values. 3.12 has one word: the address of the dict, or that
    // of the values less 1, which is odd.
    let values = match layout.minor {
        11 => word(-32),
        12 => word(-24).filter(|word| word & 1 != 0),
        _ => None,
    };
    let values = values.and_then(|values| values.checked_add(values & 1));
    let size = keys(class.cached_keys).and_then(|form| form.room.checked_mul(8));
    [elements(values, size), None]
}
