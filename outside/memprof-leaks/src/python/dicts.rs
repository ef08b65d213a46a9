//! Dicts and strings of `CPython`, read in place.

use super::layout::Layout;
use super::python_type::TypeFlag;
use super::types::PythonTypes;
use crate::snapshot_memory::SnapshotMemory;

/// Most entries of a dict that are read: a module has thousands.
const MAX_ENTRIES: u64 = 1 << 18;
/// Most characters of a name.
const MAX_NAME: u64 = 512;
/// Offsets in `PyDictObject`.
const KEYS: u64 = 32;
const VALUES: u64 = 40;

/// A dict whose keys are its own.
#[derive(Debug)]
pub(super) struct Dict {
    /// Address of its hash table, which contains the pointers to its values.
    pub(super) table: u64,
    /// Addresses of each key and value.
    pub(super) entries: Vec<(u64, u64)>,
}

/// Hash table of a dict (`PyDictKeysObject`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyTable {
    /// Number of references to it: 1 unless several dicts share it.
    pub(super) references: u64,
    /// Offset of the entries, in bytes.
    pub(super) head: u64,
    /// Bytes of an entry: hash, key and value, or the last two.
    pub(super) stride: u64,
    /// Number of entries that were ever used.
    pub(super) used: u64,
    /// Number of entries for which there is room.
    pub(super) room: u64,
}

impl KeyTable {
    /// Reads the head of a table. `None` if it cannot be read, or its fields are inconsistent.
    pub(super) fn read(view: &SnapshotMemory, layout: &Layout, table: u64) -> Option<Self> {
        let word = |offset| view.read_field(table, offset);
        Self::parse(layout.minor, [word(0)?, word(8)?, word(24)?, word(32)?])
    }

    /// Parses the words 0, 1, 3 and 4 of a table of `CPython` 3.`minor`. `None` if they are inconsistent. The first is
    /// `dk_refcnt`. The second is `dk_size`, or since 3.11 has the bytes `dk_log2_size`, `dk_log2_index_bytes` and
    /// `dk_kind`. `dk_nentries` is the last one, or since 3.11 the third.
    fn parse(minor: u32, [references, form, third, fourth]: [u64; 4]) -> Option<Self> {
        // The index lies `start` bytes behind the table's start, in front of the entries.
        let (size, index_bytes, start, stride, used) = match minor {
            ..=10 => {
                // Bytes of an entry's index.
                let width = match form {
                    ..=0xff => 1,
                    0x100..=0xffff => 2,
                    0x1_0000..=0xffff_ffff => 4,
                    _ => 8,
                };
                (form, form.checked_mul(width)?, 40, 24, fourth)
            }
            _ => {
                let byte = |index: u32| form >> (8 * index) & 0xff;
                let power = |exponent: u64| 1_u64.checked_shl(exponent as u32);
                // The entries of `DICT_KEYS_GENERAL` (0) have a hash. Else all keys are strings, which have their own.
                let stride = if byte(2) == 0 { 24 } else { 16 };
                (power(byte(0))?, power(byte(1))?, 32, stride, third)
            }
        };
        // `USABLE_FRACTION` of dictobject.c.
        let room = size.checked_mul(2)? / 3;
        let is_consistent = size.is_power_of_two() && used <= room.max(1);
        is_consistent.then_some(Self {
            references,
            head: index_bytes.checked_add(start)?,
            stride,
            used,
            room,
        })
    }

    /// Bytes of the table up to the last entry that was ever used. `None` if the size overflows.
    pub(super) fn used_size(&self) -> Option<u64> {
        self.head.checked_add(self.used.checked_mul(self.stride)?)
    }

    /// Bytes of the table, with the room for further entries. `None` if the size overflows.
    pub(super) fn size(&self) -> Option<u64> {
        self.head.checked_add(self.room.checked_mul(self.stride)?)
    }
}

impl Dict {
    /// Reads a dict, and takes 1 and the number of its entries from `budget`. `None` if it is no dict, shares its keys,
    /// or cannot be read. Also `None` if it has more than [`MAX_ENTRIES`], or more than `budget`, which is 0 then.
    pub(super) fn read(
        view: &SnapshotMemory,
        layout: &Layout,
        dict: u64,
        types: &mut PythonTypes<'_>,
        budget: &mut u64,
    ) -> Option<Self> {
        *budget = budget.checked_sub(1)?;
        if !types.has_flag(dict, TypeFlag::Dict) || view.read_field(dict, VALUES)? != 0 {
            return None;
        }
        let table = view.read_field(dict, KEYS)?;
        let keys = KeyTable::read(view, layout, table)?;
        if keys.used > MAX_ENTRIES {
            return None;
        }
        // Counts all entries before they are read: those that were deleted or cannot be read also cost time.
        let left = budget.checked_sub(keys.used);
        *budget = left.unwrap_or(0);
        left?;
        let mut bytes = vec![0; (keys.used * keys.stride) as usize];
        if view.read(table.checked_add(keys.head)?, &mut bytes) < bytes.len() {
            return None;
        }
        let word = |entry: &[u8], from_end: usize| {
            let start = entry.len() - 8 * from_end;
            u64::from_le_bytes(entry[start..start + 8].try_into().expect("eight bytes"))
        };
        let entries = bytes.chunks_exact(keys.stride as usize);
        let entries = entries.map(|entry| (word(entry, 2), word(entry, 1)));
        Some(Self {
            table,
            // An entry that was deleted has neither key nor value.
            entries: entries
                .filter(|(key, value)| *key != 0 && *value != 0)
                .collect(),
        })
    }
}

impl Layout {
    /// Reads the `str` at an address. `None` if no `str` is there, it cannot be read, it is not compact, or it is
    /// longer than [`MAX_NAME`] characters. Also `None` if too many names were read before: each call counts in
    /// `types`.
    pub(super) fn read_text(
        &self,
        view: &SnapshotMemory,
        object: u64,
        types: &mut PythonTypes<'_>,
    ) -> Option<String> {
        types.charge_name()?;
        if !types.has_flag(object, TypeFlag::Text) {
            return None;
        }
        let text = TextForm::parse(view.read_field(object, 16)?, view.read_field(object, 32)?)?;
        if !text.is_compact || text.len > MAX_NAME {
            return None;
        }
        let head = if text.is_ascii {
            self.text_ascii
        } else {
            self.text_compact
        };
        let mut bytes = vec![0; (text.len * text.width) as usize];
        if view.read(object.checked_add(head)?, &mut bytes) < bytes.len() {
            return None;
        }
        let chars = bytes.chunks_exact(text.width as usize).map(|char| {
            let mut code = [0; 4];
            code[..char.len()].copy_from_slice(char);
            char::from_u32(u32::from_le_bytes(code)).unwrap_or(char::REPLACEMENT_CHARACTER)
        });
        Some(chars.collect())
    }
}

/// Form of a `str` (`PyASCIIObject`).
#[derive(Clone, Copy, Debug)]
pub(super) struct TextForm {
    /// Number of characters.
    pub(super) len: u64,
    /// Bytes of a character: 1, 2 or 4.
    pub(super) width: u64,
    pub(super) is_compact: bool,
    pub(super) is_ascii: bool,
}

impl TextForm {
    /// Parses the words at the offsets 16 and 32 of a `str`, its fields `length` and `state`. `None` if no character
    /// has the width in `state`.
    pub(super) fn parse(len: u64, state: u64) -> Option<Self> {
        // `PyASCIIObject.state`: interned (2 bits), kind (3), compact, ascii.
        let width = state >> 2 & 7;
        matches!(width, 1 | 2 | 4).then_some(Self {
            len,
            width,
            is_compact: state >> 5 & 1 != 0,
            is_ascii: state >> 6 & 1 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_read_as_its_version_has_it() {
        let check = |minor, words, expected: Option<(u64, u64)>| {
            let table = KeyTable::parse(minor, words);
            let found = table.map(|table| {
                (
                    table.head + table.used * table.stride,
                    table.size().unwrap(),
                )
            });
            assert_eq!(found, expected, "{minor}: {words:x?}");
        };
        // 3.10: eight indices of one byte, three of five entries.
        check(10, [1, 8, 2, 3], Some((40 + 8 + 3 * 24, 40 + 8 + 5 * 24)));
        check(
            10,
            [1, 512, 0, 300],
            Some((40 + 1024 + 300 * 24, 40 + 1024 + 341 * 24)),
        );
        // 3.11: logarithms of the numbers of indices and of their bytes, and whether all keys are strings.
        check(
            11,
            [1, 0x0001_0303, 3, 0],
            Some((32 + 8 + 3 * 16, 32 + 8 + 5 * 16)),
        );
        check(
            13,
            [1, 0x0000_0a09, 300, 0],
            Some((32 + 1024 + 300 * 24, 32 + 1024 + 341 * 24)),
        );
        // More entries than room, no power of two, a size that overflows.
        check(10, [1, 8, 0, 6], None);
        check(10, [1, 7, 0, 1], None);
        check(10, [1, 1 << 62, 0, 1], None);
        check(12, [1, 0x3f3f, 1, 0], None);
        check(12, [1, 0xffff, 1, 0], None);
    }
}
