//! Wire format of protocol buffers: reads fields without copying bytes.

use crate::error::{Error, Result};

/// Value of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A fixed-size number, skipped: `profile.proto` has none.
    Fixed,
}

/// Iterates over the fields of a message, with their numbers.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>)>;

    /// Yields an error for the first field that is malformed or truncated, and ends after it.
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read_field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(
            field.ok_or_else(|| {
                Error::malformed_pprof("it is not a protocol buffer, or is cut off")
            }),
        )
    }
}

impl<'a> Fields<'a> {
    /// Reads the next field: its number and value. `None` if it is malformed or truncated.
    fn read_field(&mut self) -> Option<(u64, Value<'a>)> {
        let key = read_varint(&mut self.0)?;
        // Wire types: 0 is a varint, 1 and 5 have a fixed size, 2 has a length.
        let value = match key & 7 {
            0 => Value::Varint(read_varint(&mut self.0)?),
            1 => self.split_off(8).map(|_| Value::Fixed)?,
            2 => {
                let length = read_varint(&mut self.0)?;
                Value::Bytes(self.split_off(usize::try_from(length).ok()?)?)
            }
            5 => self.split_off(4).map(|_| Value::Fixed)?,
            _ => return None,
        };
        Some((key >> 3, value))
    }

    /// Splits off the next `length` bytes. `None` if there are fewer.
    fn split_off(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// Wire types of the fields of a `profile.proto`, by field number: 0 for numbers, 2 for messages and strings.
/// Comments (13) may be packed.
const WIRE_TYPES: [&[u64]; 16] = {
    const NUMBER: &[u64] = &[0];
    const BYTES: &[u64] = &[2];
    [
        &[],
        BYTES,
        BYTES,
        BYTES,
        BYTES,
        BYTES,
        BYTES,
        NUMBER,
        NUMBER,
        NUMBER,
        NUMBER,
        BYTES,
        NUMBER,
        &[0, 2],
        NUMBER,
        NUMBER,
    ]
};

/// Largest field number that is read, to leave room for newer versions.
const MAX_FIELD: u64 = 99;

/// Field number of the string table.
const STRING: u64 = 6;

/// Largest message or string of a profile. Protocol buffers have no such limit, but no real sample or name is as long.
const MAX_MESSAGE_BYTES: u64 = 16 << 20;

/// Scan of the fields of a possible `profile.proto` that is being read.
#[derive(Debug, Default)]
pub(crate) struct FieldScan {
    scanned: usize,
    fields: usize,
    has_strings: bool,
}

impl FieldScan {
    /// Scans the fields that have become complete since the last call. `bytes` are all bytes read so far. Returns
    /// whether they may still be the start of a profile: false if a field has a number, wire type or length that no
    /// profile has, or the first string is not empty.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> bool {
        while may_start_with_field(&bytes[self.scanned..]) {
            let mut fields = Fields(&bytes[self.scanned..]);
            let Some((number, value)) = fields.read_field() else {
                return true;
            };
            if number == STRING && !self.has_strings {
                if !matches!(value, Value::Bytes([])) {
                    return false;
                }
                self.has_strings = true;
            }
            self.scanned = bytes.len() - fields.0.len();
            self.fields += 1;
        }
        false
    }

    /// Number of bytes of complete fields.
    pub(crate) fn scanned_bytes(&self) -> usize {
        self.scanned
    }

    /// Returns whether the string table has started.
    pub(crate) fn has_strings(&self) -> bool {
        self.has_strings
    }

    /// Returns whether the input is the start of a profile, rather than other bytes that happen to look like one: its
    /// strings have started, or it has three fields.
    pub(crate) fn is_likely_profile(&self) -> bool {
        const MIN_FIELDS: usize = 3;
        self.has_strings || self.fields >= MIN_FIELDS
    }
}

/// Returns whether `bytes` may start with a field of a profile, by its number, wire type and length; true if the bytes
/// end too early to decide.
fn may_start_with_field(mut bytes: &[u8]) -> bool {
    const MAX_VARINT_BYTES: usize = 10;
    let is_cut = |length: usize| length < MAX_VARINT_BYTES;
    let length = bytes.len();
    let Some(key) = read_varint(&mut bytes) else {
        return is_cut(length);
    };
    let (number, wire_type) = (key >> 3, key & 7);
    let is_possible = match WIRE_TYPES.get(number as usize) {
        Some(possible) => possible.contains(&wire_type),
        // A field of a newer version.
        None => number <= MAX_FIELD && matches!(wire_type, 0 | 1 | 2 | 5),
    };
    let rest = bytes.len();
    is_possible
        && match wire_type {
            0 | 2 => match read_varint(&mut bytes) {
                Some(number) => wire_type == 0 || number <= MAX_MESSAGE_BYTES,
                None => is_cut(rest),
            },
            _ => true,
        }
}

/// Reads a varint and advances `bytes` behind it. `None` if it is truncated or longer than ten bytes, the most that 64
/// bits need.
fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

impl<'a> Value<'a> {
    /// Returns a message or a string. Fails for a number.
    pub(super) fn bytes(self) -> Result<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Error::malformed_pprof(
                "a number where a message is expected",
            )),
        }
    }

    /// Returns a varint. Fails for a message, and for a number of fixed width.
    pub(super) fn number(self) -> Result<u64> {
        match self {
            Self::Varint(number) => Ok(number),
            _ => Err(Error::malformed_pprof(
                "a message where a number is expected",
            )),
        }
    }

    /// Calls `visit` with the numbers of a repeated field, packed or not. Fails if one is truncated, or `visit` fails.
    pub(super) fn for_each_number(self, mut visit: impl FnMut(u64) -> Result<()>) -> Result<()> {
        let mut packed = match self {
            Self::Bytes(packed) => packed,
            _ => return visit(self.number()?),
        };
        while !packed.is_empty() {
            let number = read_varint(&mut packed);
            visit(number.ok_or_else(|| Error::malformed_pprof("a number is cut off"))?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{FieldScan, Fields, Value};

    fn fields(bytes: &[u8]) -> Option<Vec<(u64, String)>> {
        let text = |value| match value {
            Value::Varint(number) => number.to_string(),
            Value::Bytes(bytes) => format!("{bytes:?}"),
            Value::Fixed => "fixed".to_owned(),
        };
        let fields = Fields(bytes).map(|field| field.map(|(tag, value)| (tag, text(value))));
        fields.collect::<Result<_, _>>().ok()
    }

    #[test]
    fn fields_of_all_wire_types_are_read() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 2, 7, 8, 0x1d, 1, 2, 3, 4];
        let expected = [
            (1, "150".to_owned()),
            (2, "[7, 8]".to_owned()),
            (3, "fixed".to_owned()),
        ];
        assert_eq!(fields(&bytes), Some(expected.into()));
        assert_eq!(fields(&[]), Some(vec![]));
    }

    /// Scans `bytes` in two parts, cut at each place. Returns the number of bytes of complete fields.
    fn scan(bytes: &[u8]) -> Option<(usize, bool)> {
        let parts = (0..=bytes.len()).map(|cut| {
            let mut scan = FieldScan::default();
            let is_profile = scan.advance(&bytes[..cut]) && scan.advance(bytes);
            is_profile.then_some((scan.scanned_bytes(), scan.has_strings()))
        });
        let mut results: Vec<_> = parts.collect();
        results.dedup();
        assert_eq!(results.len(), 1, "{bytes:?}: {results:?}");
        results.remove(0)
    }

    #[test]
    fn profile_may_start_with_any_field() {
        let period_type = &[0x5a, 4, 8, 1, 16, 2][..];
        let strings = &[0x32, 0, 0x32, 1, b'x'][..];
        for first in [
            period_type,
            strings,
            &[0x12, 2, 0x0a, 0],
            &[0x22, 2, 8, 1],
            &[0x48, 1],
            &[0x50, 1],
            &[0x60, 0x80, 0x80, 0x20],
            &[0x68, 1],
            &[0x6a, 1, 1],
            &[0x70, 1],
            &[0x78, 1],
            &[0x0a, 30, 8, 1, 16, 2, 26, 24],
            &[0x9a, 6, 1, 9],
        ] {
            let bytes = [
                first,
                &[0; 24][..if first[1] == 30 { 24 } else { 0 }],
                strings,
            ]
            .concat();
            assert_eq!(scan(&bytes), Some((bytes.len(), true)), "{first:?}");
        }
        assert_eq!(scan(&[0x5a, 4, 8, 1]), Some((0, false)));
        assert_eq!(scan(&[0x60, 1, 0x32]), Some((2, false)));
        assert_eq!(scan(&[]), Some((0, false)));
    }

    #[test]
    fn other_files_are_no_profile() {
        for other in [
            &b"hello"[..],
            b"{\"head\": 1}",
            b"\x7fELF\x02\x01\x01",
            b"PK\x03\x04",
            b"\x28\xb5\x2f\xfd zstd",
            b"\xfd7zXZ\0",
            b"BZh9",
            b"\0\0\0\0",
            b"--- heapz 1 ---\n",
            b"goroutine profile: total 5\n",
            b"\x32\x01x",
            b"\x0a\xff\xff\xff\xff\x0f",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ] {
            let mut scan = FieldScan::default();
            assert!(!scan.advance(other), "{}", other.escape_ascii());
        }
    }

    #[test]
    fn truncated_field_is_refused() {
        for malformed in [
            &[0x08][..],
            &[0x08, 0x96],
            &[0x12, 3, 7, 8],
            &[0x0b],
            &[
                0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
            ],
            &[
                0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
            ],
        ] {
            assert_eq!(fields(malformed), None, "{malformed:?}");
        }
    }
}
