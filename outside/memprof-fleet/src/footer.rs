//! The footer of a Parquet file, looked through before it is parsed: the parser calls itself for each level of the
//! schema, so that a small file with 100,000 levels would end the program.
//!
//! The footer is a struct of Thrift's compact protocol (`thrift-compact-protocol.md` of Thrift), `FileMetaData` of
//! `parquet.thrift`.

use anyhow::{Context, Result, bail, ensure};

/// Most elements of a schema: memprof's tables have some 30.
const MAX_SCHEMA_ELEMENTS: u64 = 1000;
/// Most structs and lists within each other; `parquet.thrift` has 6.
const MAX_DEPTH: u32 = 32;
/// Numbers of the first two fields of `FileMetaData`.
const VERSION: i64 = 1;
const SCHEMA: i64 = 2;

/// Types of fields and elements.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;

/// Checks that the Parquet reader can parse a footer without overflowing the stack. `footer` is given without the
/// length and magic number that follow it.
///
/// # Errors
/// The footer is damaged, its schema does not follow its version, or the schema has more than [`MAX_SCHEMA_ELEMENTS`]
/// elements.
pub(crate) fn check_footer(footer: &[u8]) -> Result<()> {
    let mut rest = CompactReader(footer);
    let mut id = 0;
    let mut has_schema = false;
    while let Some((kind, next)) = rest.read_field_head(id)? {
        id = next;
        // Before the schema, only the version is allowed, which this function and the parser surely read in the same
        // way. Other fields they may not: the parser ignores the types of fields that it knows, cuts their numbers to
        // 16 bits, and reads no byte of a boolean in a list. It skips a second schema.
        if !has_schema {
            ensure!(
                matches!((id, kind), (VERSION, I32) | (SCHEMA, LIST)),
                "its footer is damaged: its schema does not follow its version"
            );
            has_schema = id == SCHEMA;
        }
        if id == SCHEMA {
            // Only looks ahead: `skip_field` reads the list again.
            let (_, count) = CompactReader(rest.0).read_list_head()?;
            ensure!(
                count <= MAX_SCHEMA_ELEMENTS,
                "it is too large: its schema has {count} elements, and at most {MAX_SCHEMA_ELEMENTS} are read"
            );
        }
        rest.skip_field(kind, MAX_DEPTH)?;
    }
    Ok(())
}

/// Bytes that are still to be read.
struct CompactReader<'a>(&'a [u8]);

impl CompactReader<'_> {
    /// Reads a byte. Fails at the end of the footer.
    fn read_byte(&mut self) -> Result<u8> {
        let (first, rest) = self.0.split_first().context("its footer is truncated")?;
        self.0 = rest;
        Ok(*first)
    }

    /// Skips `count` bytes. Fails beyond the end of the footer.
    fn skip_bytes(&mut self, count: u64) -> Result<()> {
        let rest = usize::try_from(count)
            .ok()
            .and_then(|count| self.0.get(count..));
        self.0 = rest.context("its footer is truncated")?;
        Ok(())
    }

    /// Reads a number of up to 64 bits (a varint): each byte has seven bits, the lowest first, and a mark if more
    /// follow. Fails if the number is larger, or the footer ends.
    fn read_number(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.read_byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        bail!("its footer has a number above 64 bits")
    }

    /// Reads the head of the next field of a struct. Returns the field's type and number; `None` at the end of the
    /// struct. `last` is the number of the field before, 0 for the first one, because the head may store only the
    /// difference. Fails at the end of the footer.
    fn read_field_head(&mut self, last: i64) -> Result<Option<(u8, i64)>> {
        let head = self.read_byte()?;
        if head == 0 {
            return Ok(None);
        }
        let id = match head >> 4 {
            0 => {
                let number = self.read_number()?;
                // A signed number in zigzag encoding.
                (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
            }
            step => last.saturating_add(step.into()),
        };
        Ok(Some((head & 0xf, id)))
    }

    /// Reads the head of a list or set. Returns the type of its elements, and their number. Fails at the end of the
    /// footer.
    fn read_list_head(&mut self) -> Result<(u8, u64)> {
        let head = self.read_byte()?;
        let count = match head >> 4 {
            15 => self.read_number()?,
            count => count.into(),
        };
        Ok((head & 0xf, count))
    }

    /// Skips the value of a struct's field of type `kind`. A boolean field has no value, because its type says whether
    /// it is true. Fails if values are nested in more than `depth` levels, are truncated, or have an unknown type.
    fn skip_field(&mut self, kind: u8, depth: u32) -> Result<()> {
        match kind {
            TRUE | FALSE => Ok(()),
            kind => self.skip_value(kind, depth),
        }
    }

    /// Skips a value of type `kind`, with the values in it. A boolean takes a byte here, as an element of a list, set
    /// or map. Fails if values are nested in more than `depth` levels, are truncated, or have an unknown type.
    fn skip_value(&mut self, kind: u8, depth: u32) -> Result<()> {
        let depth = depth
            .checked_sub(1)
            .context("its footer is nested too deeply")?;
        match kind {
            TRUE | FALSE | BYTE => self.skip_bytes(1),
            I16 | I32 | I64 => self.read_number().map(drop),
            DOUBLE => self.skip_bytes(8),
            BINARY => {
                let length = self.read_number()?;
                self.skip_bytes(length)
            }
            LIST | SET => {
                let (element, count) = self.read_list_head()?;
                (0..count).try_for_each(|_| self.skip_value(element, depth))
            }
            MAP => {
                let count = self.read_number()?;
                let kinds = if count == 0 { 0 } else { self.read_byte()? };
                (0..count).try_for_each(|_| {
                    self.skip_value(kinds >> 4, depth)?;
                    self.skip_value(kinds & 0xf, depth)
                })
            }
            STRUCT => {
                let mut id = 0;
                while let Some((kind, next)) = self.read_field_head(id)? {
                    id = next;
                    self.skip_field(kind, depth)?;
                }
                Ok(())
            }
            kind => bail!("its footer has the unknown type {kind}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a footer with a version, and a schema of `elements` elements, each a struct with a name.
    fn footer(elements: usize) -> Vec<u8> {
        let head = [0x15, 2, 0x19, 0xfc];
        let count = [
            (elements & 0x7f) as u8 | 0x80,
            (elements >> 7) as u8 | 0x80,
            0,
        ];
        let element = [0x48, 1, b'a', 0x15, 2, 0];
        [&head[..], &count, &element.repeat(elements), &[0x16, 0, 0]].concat()
    }

    #[test]
    fn footer_with_many_schema_elements_is_refused() {
        let check = |footer: &[u8], expected: Option<&str>| {
            let error = check_footer(footer).err().map(|error| error.to_string());
            let is_expected = match (&error, expected) {
                (None, None) => true,
                (Some(error), Some(expected)) => error.contains(expected),
                _ => false,
            };
            assert!(is_expected, "{error:?}, not {expected:?}");
        };
        check(&footer(1), None);
        check(&footer(1000), None);
        check(&footer(1001), Some("its schema has 1001 elements"));
        // The field's number in its long form, after another field.
        let mut long = footer(1001);
        long.splice(2..3, [0x09, 4]);
        check(&long, Some("its schema has 1001 elements"));
        // The parser takes these for the schema: their numbers have its lowest 16 bits, or their type is ignored.
        let mut wrapped = footer(1001);
        wrapped.splice(2..3, [0x09, 0x84, 0x80, 0x08]);
        check(&wrapped, Some("its schema does not follow its version"));
        let mut mistyped = footer(1001);
        mistyped[2] = 0x1c;
        check(&mistyped, Some("its schema does not follow its version"));
        // For the parser, the schema begins within the list of 15 booleans.
        let hidden = [&[0x15, 2, 0xf9, 0xf1, 15][..], &footer(1001)[2..]].concat();
        check(&hidden, Some("its schema does not follow its version"));
        check(&footer(3)[..12], Some("truncated"));
        check(&[], Some("truncated"));
        let more = |bytes: &[u8]| [&[0x15, 2, 0x19, 0x0c][..], bytes].concat();
        check(&more(&[0]), None);
        check(&more(&[0x1d, 0]), Some("unknown type 13"));
        check(&more(&[0x1c].repeat(100)), Some("nested too deeply"));
        let list = [0x19, 0xf9, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        check(&more(&list), Some("truncated"));
        let number = |last: u8| more(&[&[0x16][..], &[0xff; 9], &[last, 0]].concat());
        check(&number(1), None);
        check(&number(2), Some("above 64 bits"));
        check(&number(0x81), Some("above 64 bits"));
    }
}
