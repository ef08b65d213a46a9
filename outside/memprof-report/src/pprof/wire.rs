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

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read_field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(|| Error::pprof("it is not a protocol buffer, or is cut off")))
    }
}

impl<'a> Fields<'a> {
    /// Reads the next field: its number and value. `None` if it is malformed or truncated.
    fn read_field(&mut self) -> Option<(u64, Value<'a>)> {
        let key = read_varint(&mut self.0)?;
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

/// Reads a varint and advances `bytes`. `None` if it is truncated or longer than 64 bits.
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
            _ => Err(Error::pprof("a number where a message is expected")),
        }
    }

    /// Returns a varint. Fails for a message, and for a number of fixed width.
    pub(super) fn number(self) -> Result<u64> {
        match self {
            Self::Varint(number) => Ok(number),
            _ => Err(Error::pprof("a message where a number is expected")),
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
            visit(number.ok_or_else(|| Error::pprof("a number is cut off"))?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Fields, Value};

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
