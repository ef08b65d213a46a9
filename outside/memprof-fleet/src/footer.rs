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
/// Number of the field `schema` of `FileMetaData`.
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

/// Checks that a footer, without its length and magic number, can be parsed.
///
/// # Errors
/// It is damaged, or its schema has more than [`MAX_SCHEMA_ELEMENTS`].
pub(crate) fn check_footer(footer: &[u8]) -> Result<()> {
    let mut rest = CompactReader(footer);
    let mut id = 0;
    while let Some((kind, next)) = rest.field(id)? {
        id = next;
        if id == SCHEMA && matches!(kind, LIST | SET) {
            let (_, count) = CompactReader(rest.0).list()?;
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
    fn byte(&mut self) -> Result<u8> {
        let (first, rest) = self.0.split_first().context("its footer is truncated")?;
        self.0 = rest;
        Ok(*first)
    }

    /// Skips `count` bytes. Fails beyond the end of the footer.
    fn skip(&mut self, count: u64) -> Result<()> {
        let rest = usize::try_from(count)
            .ok()
            .and_then(|count| self.0.get(count..));
        self.0 = rest.context("its footer is truncated")?;
        Ok(())
    }

    /// Reads a number, seven bits in each byte. Fails if it has more than 64 bits.
    fn number(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        bail!("its footer has a number above 64 bits")
    }

    /// Reads the head of the next field of a struct: its type and its number. `last` is the number of the field before,
    /// 0 for the first one. `None` at the end of the struct. Fails at the end of the footer.
    fn field(&mut self, last: i64) -> Result<Option<(u8, i64)>> {
        let head = self.byte()?;
        if head == 0 {
            return Ok(None);
        }
        let id = match head >> 4 {
            0 => {
                let number = self.number()?;
                (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
            }
            step => last.saturating_add(step.into()),
        };
        Ok(Some((head & 0xf, id)))
    }

    /// Reads the head of a list or set: the type of its elements, and their number. Fails at the end of the footer.
    fn list(&mut self) -> Result<(u8, u64)> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.number()?,
            count => count.into(),
        };
        Ok((head & 0xf, count))
    }

    /// Skips the value of a struct's field of type `kind`. A boolean has none: its type says whether it is true. Values
    /// within are skipped down to `depth` levels. Fails if the value is nested more deeply, is truncated, or has an
    /// unknown type.
    fn skip_field(&mut self, kind: u8, depth: u32) -> Result<()> {
        match kind {
            TRUE | FALSE => Ok(()),
            kind => self.skip_value(kind, depth),
        }
    }

    /// Skips a value that may have others within it. Fails if these are nested in more than `depth` levels.
    fn skip_value(&mut self, kind: u8, depth: u32) -> Result<()> {
        let depth = depth
            .checked_sub(1)
            .context("its footer is nested too deeply")?;
        match kind {
            TRUE | FALSE | BYTE => self.skip(1),
            I16 | I32 | I64 => self.number().map(drop),
            DOUBLE => self.skip(8),
            BINARY => {
                let length = self.number()?;
                self.skip(length)
            }
            LIST | SET => {
                let (element, count) = self.list()?;
                (0..count).try_for_each(|_| self.skip_value(element, depth))
            }
            MAP => {
                let count = self.number()?;
                let kinds = if count == 0 { 0 } else { self.byte()? };
                (0..count).try_for_each(|_| {
                    self.skip_value(kinds >> 4, depth)?;
                    self.skip_value(kinds & 0xf, depth)
                })
            }
            STRUCT => {
                let mut id = 0;
                while let Some((kind, next)) = self.field(id)? {
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
        check(&footer(3)[..12], Some("truncated"));
        check(&[], Some("truncated"));
        check(&[0x1d, 0], Some("unknown type 13"));
        check(&[0x1c].repeat(100), Some("nested too deeply"));
        check(
            &[0x19, 0xf9, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            Some("truncated"),
        );
        check(
            &[0x16]
                .iter()
                .chain(&[0xff; 11])
                .copied()
                .collect::<Vec<_>>(),
            Some("above 64 bits"),
        );
    }
}
