//! The lists of abbreviations that units of debug information are read by. Each unit's is read anew, and a few bytes name a
//! long one: a small file may ask for hours.

use std::io;

use addr2line::gimli::{
    self, DW_FORM_implicit_const, DebugAbbrev, DebugAbbrevOffset, EndianSlice, Reader as _,
    RunTimeEndian, Section as _,
};

/// The most that is read for all units of a file, in bytes. Units have lists of a few KiB, and large programs whose units
/// share one tens of MiB.
const LIMIT: u64 = 128 << 20;

/// How much may be read yet.
#[derive(Debug)]
pub(super) struct Budget {
    left: u64,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { left: LIMIT }
    }

    /// Takes off what one unit's list has.
    ///
    /// # Errors
    /// The limit is passed, or the list is damaged.
    pub(super) fn charge(
        &mut self,
        lists: &DebugAbbrev<EndianSlice<'_, RunTimeEndian>>,
        DebugAbbrevOffset(offset): DebugAbbrevOffset,
    ) -> io::Result<()> {
        let length = length(lists, offset).map_err(io::Error::other)?;
        self.left = self.left.checked_sub(length).ok_or_else(|| {
            let problem = format!("its abbreviations pass the limit of {LIMIT} bytes");
            io::Error::new(io::ErrorKind::FileTooLarge, problem)
        })?;
        Ok(())
    }
}

/// The bytes of a list (DWARF 5, 7.5.3), as far as they matter.
fn length(
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
    fn a_list_ends_at_its_zero() {
        let implicit = u8::try_from(DW_FORM_implicit_const.0).unwrap();
        // Two declarations, the second with a value that is no code, and another list.
        let bytes = [
            &[1, 0x2e, 0, 3, 8, 0, 0][..],
            &[2, 0x34, 0, 0x49, implicit, 0, 0, 0],
            &[0, 1, 0x11, 1, 0, 0, 0],
        ];
        let bytes = bytes.concat();
        let check = |offset: usize, expected: u64| {
            assert_eq!(length(&lists(&bytes), offset), Ok(expected), "{offset}");
        };
        check(0, 16);
        check(7, 9);
        check(16, 6);
        check(bytes.len(), 0);
        assert!(length(&lists(&bytes), bytes.len() + 1).is_err());
        assert!(length(&lists(&bytes[..5]), 0).is_err());
    }

    #[test]
    fn one_long_list_that_many_units_have_passes_the_limit() {
        let mut bytes = [1, 0x2e, 0, 0, 0].repeat(1 << 20);
        bytes.push(0);
        let lists = lists(&bytes);
        let mut budget = Budget::new();
        let charged = (0..1000).take_while(|_| budget.charge(&lists, DebugAbbrevOffset(0)).is_ok());
        assert_eq!(charged.count() as u64, LIMIT / bytes.len() as u64);
    }
}
