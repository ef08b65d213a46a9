//! Limits what is read of debug information, and what addr2line keeps of it: a small hostile file could take hours and
//! gigabytes.

use std::io;

use addr2line::gimli::{
    self, DW_FORM_implicit_const, DebugAbbrev, DebugAbbrevOffset, Dwarf, EndianSlice, Reader as _,
    RunTimeEndian, Section as _,
};

/// Most bytes read of abbreviation lists, by which units are decoded. Each unit's list is read anew, and a few bytes
/// may refer to a long one. Units have lists of a few KiB; in large programs whose units share one it is tens of MiB.
const MAX_ABBREVIATION_BYTES: u64 = 128 << 20;
/// Most functions, inlined ones too, in the units that are read: addr2line keeps about 100 bytes of each, whose entry
/// may take only 4. Large programs have some 100,000 in the units of a profile.
const MAX_FUNCTIONS: u64 = 4 << 20;
/// Most bytes of line programs in the units that are read: addr2line keeps 24 for each. Those of a large program have
/// some 10 MiB.
const MAX_LINE_BYTES: u64 = 32 << 20;

/// Amounts that may still be read and kept.
#[derive(Debug)]
pub(super) struct DebugBudget {
    abbreviation_bytes: u64,
    functions: u64,
    line_bytes: u64,
}

impl DebugBudget {
    /// Creates a budget with all of this module's limits, of which nothing is used yet.
    pub(super) fn new() -> Self {
        Self {
            abbreviation_bytes: MAX_ABBREVIATION_BYTES,
            functions: MAX_FUNCTIONS,
            line_bytes: MAX_LINE_BYTES,
        }
    }

    /// Subtracts the length of one unit's abbreviation list from the budget. Fails if the limit is exceeded, or the
    /// list is damaged.
    pub(super) fn charge_abbreviations(
        &mut self,
        lists: &DebugAbbrev<EndianSlice<'_, RunTimeEndian>>,
        DebugAbbrevOffset(offset): DebugAbbrevOffset,
    ) -> io::Result<()> {
        let list_len = abbreviation_list_len(lists, offset).map_err(io::Error::other)?;
        subtract_if_enough(&mut self.abbreviation_bytes, list_len).ok_or_else(|| {
            limit_error(format!(
                "its abbreviations pass the limit of {MAX_ABBREVIATION_BYTES} bytes"
            ))
        })
    }

    /// Subtracts one function from the budget. Fails if the limit is exceeded.
    pub(super) fn charge_function(&mut self) -> io::Result<()> {
        subtract_if_enough(&mut self.functions, 1).ok_or_else(|| {
            limit_error(format!(
                "it has more than {MAX_FUNCTIONS} functions where the addresses are"
            ))
        })
    }

    /// Subtracts the line programs of all units from the budget. Fails if the limit is exceeded, or the list of units
    /// is damaged.
    pub(super) fn charge_lines(
        &mut self,
        dwarf: &Dwarf<EndianSlice<'_, RunTimeEndian>>,
    ) -> io::Result<()> {
        let mut headers = dwarf.units();
        while let Some(header) = headers.next().map_err(io::Error::other)? {
            // addr2line skips a damaged unit too.
            let Ok(unit) = dwarf.unit(header) else {
                continue;
            };
            let program = unit.line_program.as_ref();
            let length = program.map_or(0, |program| program.header().raw_program_buf().len());
            subtract_if_enough(&mut self.line_bytes, length as u64).ok_or_else(|| {
                limit_error(format!(
                    "its lines pass the limit of {MAX_LINE_BYTES} bytes where the addresses are"
                ))
            })?;
        }
        Ok(())
    }
}

/// Subtracts `amount` from `remaining`. `None`, and no change, if less remains.
fn subtract_if_enough(remaining: &mut u64, amount: u64) -> Option<()> {
    *remaining = remaining.checked_sub(amount)?;
    Some(())
}

/// Error for debug information that exceeds a limit.
fn limit_error(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, problem)
}

/// Returns the length in bytes of the abbreviation list at `offset` of `.debug_abbrev` (DWARF 5, 7.5.3). Fails if the
/// list is damaged.
fn abbreviation_list_len(
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
            assert_eq!(
                abbreviation_list_len(&lists(&bytes), offset),
                Ok(expected),
                "{offset}"
            );
        };
        check(0, 16);
        check(7, 9);
        check(16, 6);
        check(bytes.len(), 0);
        assert!(abbreviation_list_len(&lists(&bytes), bytes.len() + 1).is_err());
        assert!(abbreviation_list_len(&lists(&bytes[..5]), 0).is_err());
    }

    #[test]
    fn long_list_of_many_units_exceeds_limit() {
        let mut bytes = [1, 0x2e, 0, 0, 0].repeat(1 << 20);
        bytes.push(0);
        let lists = lists(&bytes);
        let mut budget = DebugBudget::new();
        let charge = |_: &usize| {
            let charged = budget.charge_abbreviations(&lists, DebugAbbrevOffset(0));
            charged.is_ok()
        };
        let charged = (0..1000).take_while(charge).count();
        assert_eq!(charged as u64, MAX_ABBREVIATION_BYTES / bytes.len() as u64);
    }

    #[test]
    fn more_functions_than_the_limit_are_refused() {
        let mut budget = DebugBudget::new();
        budget.functions = 1;
        budget.charge_function().unwrap();
        let error = budget.charge_function().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    /// Reads this test's own executable, in which the standard library and this crate are many units.
    #[test]
    fn lines_of_all_units_are_charged() {
        use addr2line::gimli::DwarfSections;
        use object::{Object as _, ObjectSection as _};
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let sections = DwarfSections::load(|id| {
            let section = file.section_by_name(id.name());
            section.map_or(Ok(std::borrow::Cow::default()), |section| {
                section.uncompressed_data()
            })
        });
        let sections = sections.unwrap();
        let dwarf = sections.borrow(|section| EndianSlice::new(section, RunTimeEndian::Little));
        let mut budget = DebugBudget::new();
        budget.charge_lines(&dwarf).unwrap();
        let used = MAX_LINE_BYTES - budget.line_bytes;
        let all = file.section_by_name(".debug_line").unwrap();
        assert!(
            (all.size() / 2..all.size()).contains(&used),
            "{used} of {all:?}"
        );
        budget.line_bytes = used - 1;
        budget.charge_lines(&dwarf).unwrap_err();
    }
}
