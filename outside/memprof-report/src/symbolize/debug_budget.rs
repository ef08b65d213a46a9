//! Limits reading of abbreviation lists, by which units of debug information are decoded. Each unit's list is read
//! anew, and a few bytes may refer to a long one: a small hostile file could take hours.

use std::io;

use addr2line::gimli::{
    self, DW_FORM_implicit_const, DebugAbbrev, DebugAbbrevOffset, EndianSlice, Reader as _,
    RunTimeEndian, Section as _,
};

/// Most bytes read for all units of a file. Units have lists of a few KiB; in large programs whose units share one
/// it is tens of MiB.
const MAX_BYTES: u64 = 128 << 20;

/// Bytes that may still be read.
#[derive(Debug)]
pub(super) struct AbbreviationBudget {
    remaining: u64,
}

impl AbbreviationBudget {
    pub(super) fn new() -> Self {
        Self {
            remaining: MAX_BYTES,
        }
    }

    /// Subtracts the length of one unit's list.
    ///
    /// # Errors
    /// The limit is exceeded, or the list is damaged.
    pub(super) fn charge(
        &mut self,
        lists: &DebugAbbrev<EndianSlice<'_, RunTimeEndian>>,
        DebugAbbrevOffset(offset): DebugAbbrevOffset,
    ) -> io::Result<()> {
        let list_len = list_len(lists, offset).map_err(io::Error::other)?;
        self.remaining = self.remaining.checked_sub(list_len).ok_or_else(|| {
            let problem = format!("its abbreviations pass the limit of {MAX_BYTES} bytes");
            io::Error::new(io::ErrorKind::FileTooLarge, problem)
        })?;
        Ok(())
    }
}

/// Length in bytes of the list at `offset` of `.debug_abbrev` (DWARF 5, 7.5.3).
fn list_len(
    lists: &DebugAbbrev<EndianSlice<'_, RunTimeEndian>>,
    offset: usize,
) -> gimli::Result<u64> {
    let mut rest = *lists.reader();
    rest.skip(offset)?;
    let all = rest.len();
    while !rest.is_empty() && rest.read_uleb128()? != 0 {
        // The tag, and whether there are children.
        rest.read_uleb128()?;
        rest.read_u8()?;
        loop {
            let (name, form) = (rest.read_uleb128()?, rest.read_uleb128()?);
            if form == u64::from(DW_FORM_implicit_const.0) {
                rest.read_sleb128()?;
            }
            if (name, form) == (0, 0) {
                break;
            }
        }
    }
    Ok((all - rest.len()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(bytes: &[u8]) -> DebugAbbrev<EndianSlice<'_, RunTimeEndian>> {
        EndianSlice::new(bytes, RunTimeEndian::Little).into()
    }

    #[test]
    fn list_ends_at_zero_code() {
        let implicit = u8::try_from(DW_FORM_implicit_const.0).unwrap();
        // Two declarations, the second with an implicit constant, and another list.
        let bytes = [
            &[1, 0x2e, 0, 3, 8, 0, 0][..],
            &[2, 0x34, 0, 0x49, implicit, 0, 0, 0],
            &[0, 1, 0x11, 1, 0, 0, 0],
        ];
        let bytes = bytes.concat();
        let check = |offset: usize, expected: u64| {
            assert_eq!(list_len(&lists(&bytes), offset), Ok(expected), "{offset}");
        };
        check(0, 16);
        check(7, 9);
        check(16, 6);
        check(bytes.len(), 0);
        assert!(list_len(&lists(&bytes), bytes.len() + 1).is_err());
        assert!(list_len(&lists(&bytes[..5]), 0).is_err());
    }

    #[test]
    fn long_list_of_many_units_exceeds_limit() {
        let mut bytes = [1, 0x2e, 0, 0, 0].repeat(1 << 20);
        bytes.push(0);
        let lists = lists(&bytes);
        let mut budget = AbbreviationBudget::new();
        let charged = (0..1000).take_while(|_| budget.charge(&lists, DebugAbbrevOffset(0)).is_ok());
        assert_eq!(charged.count() as u64, MAX_BYTES / bytes.len() as u64);
    }
}
