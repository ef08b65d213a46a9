//! Selects the units of debug information to read: those that some addresses may need. A profile has few addresses
//! of a large library.

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use addr2line::gimli::{
    self, ArangeEntry, AttributeValue, DW_AT_abstract_origin, DW_AT_specification,
    DW_FORM_ref_addr, DW_TAG_inlined_subroutine, DW_TAG_subprogram, DW_UT_type, DwTag, Dwarf,
    EndianSlice, Endianity as _, RunTimeEndian, UnitHeader,
};

use super::address::LinkedAddress;
use super::debug_budget::DebugBudget;

/// Deepest nesting of entries that is read: addr2line follows inlined functions by recursion.
const MAX_DEPTH: isize = 1000;

/// Bytes of a type unit without entries (DWARF 5, 7.5.1.3).
const TYPE_UNIT_BYTES: usize = 24;

type Slice<'d> = EndianSlice<'d, RunTimeEndian>;

/// Returns the ranges of `.debug_info` that `addresses`, ascending, do not need. A unit is needed if it contains one of
/// the addresses, if `.debug_aranges` does not list its addresses, or if a needed unit refers to it. Fails if a needed
/// unit is damaged, is nested deeper than any compiler writes it, or exceeds the budget.
pub(super) fn unneeded_units(
    dwarf: &Dwarf<Slice<'_>>,
    addresses: &[LinkedAddress],
    budget: &mut DebugBudget,
) -> io::Result<Vec<Range<usize>>> {
    let is_needed = units_with_ranges(dwarf, addresses);
    let mut units = Vec::new();
    let mut headers = dwarf.units();
    while let Some(unit) = headers.next().map_err(io::Error::other)? {
        units.push(unit);
    }
    let mut needed: Vec<bool> = units
        .iter()
        .map(|unit| *is_needed.get(&unit.offset().0).unwrap_or(&true))
        .collect();
    let mut unread: Vec<usize> = (0..units.len()).filter(|&unit| needed[unit]).collect();
    while let Some(unit) = unread.pop() {
        let unread_unit = &units[unit];
        budget.charge_abbreviations(&dwarf.debug_abbrev, unread_unit.debug_abbrev_offset())?;
        for reference in read_references(dwarf, unread_unit, budget)? {
            let after = units.partition_point(|unit| unit.offset().0 <= reference);
            let Some(unit) = after.checked_sub(1).filter(|&unit| !needed[unit]) else {
                continue;
            };
            needed[unit] = true;
            unread.push(unit);
        }
    }
    let mut runs: Vec<Range<usize>> = Vec::new();
    let unneeded = units.iter().zip(needed).filter(|(_, needed)| !needed);
    for (unit, _) in unneeded {
        let start = unit.offset().0;
        let end = start + unit.length_including_self();
        match runs.last_mut().filter(|run| run.end == start) {
            Some(run) => run.end = end,
            None => runs.push(start..end),
        }
    }
    Ok(runs)
}

/// Subtracts the lists of abbreviations of all units from the budget. Fails if the limit is exceeded, or a unit is
/// damaged.
pub(super) fn charge_abbreviations(
    dwarf: &Dwarf<Slice<'_>>,
    budget: &mut DebugBudget,
) -> io::Result<()> {
    let mut headers = dwarf.units();
    while let Some(unit) = headers.next().map_err(io::Error::other)? {
        budget.charge_abbreviations(&dwarf.debug_abbrev, unit.debug_abbrev_offset())?;
    }
    Ok(())
}

/// Checks all units, and subtracts their functions from the budget. Fails if a unit is damaged, nested deeper than any
/// compiler writes it, or exceeds the budget.
pub(super) fn check_and_charge_entries(
    dwarf: &Dwarf<Slice<'_>>,
    budget: &mut DebugBudget,
) -> io::Result<()> {
    let mut headers = dwarf.units();
    while let Some(unit) = headers.next().map_err(io::Error::other)? {
        read_references(dwarf, &unit, budget)?;
    }
    Ok(())
}

/// Overwrites `run` with one type unit, which has no addresses, so that addr2line skips it. All other units keep their
/// offsets, because some refer to each other. A run that is too short or too long for the header stays unchanged.
pub(super) fn blank_units(info: &mut [u8], run: &Range<usize>, endian: RunTimeEndian) {
    // The length in a unit's header does not count itself, 4 bytes.
    let length = u32::try_from(run.len() - 4).unwrap_or(u32::MAX);
    // Longer units have another header.
    if run.len() < TYPE_UNIT_BYTES || length >= 0xffff_fff0 {
        return;
    }
    let unit = &mut info[run.start..][..TYPE_UNIT_BYTES];
    unit.fill(0);
    // Length, version, kind, and bytes of an address.
    endian.write_u32(&mut unit[..4], length);
    endian.write_u16(&mut unit[4..6], 5);
    unit[6] = DW_UT_type.0;
    unit[7] = 8;
}

/// Returns, by the offset of each unit that has ranges, whether one of `addresses` may be in a range. A damaged range
/// may contain any address; if a list of ranges cannot be read, the result is empty. Ranges of length 0 are of
/// functions that the linker removed.
fn units_with_ranges(
    dwarf: &Dwarf<Slice<'_>>,
    addresses: &[LinkedAddress],
) -> HashMap<usize, bool> {
    let mut units = HashMap::new();
    let mut sets = dwarf.debug_aranges.headers();
    loop {
        let set = match sets.next() {
            Ok(Some(set)) => set,
            Ok(None) => return units,
            Err(_) => return HashMap::new(),
        };
        let is_needed = units.entry(set.debug_info_offset().0).or_default();
        let mut ranges = set.entries();
        while let Some(range) = ranges.next().transpose() {
            *is_needed |= range.map_or(true, |range| has_address_in(addresses, range));
        }
    }
}

/// Returns whether one of the addresses, ascending, is in the range.
fn has_address_in(addresses: &[LinkedAddress], range: ArangeEntry) -> bool {
    let next = addresses.partition_point(|&address| address < range.address());
    let next = addresses.get(next);
    next.is_some_and(|address| address - range.address() < range.length())
}

/// Returns the offsets in `.debug_info` of entries in other units to which this unit's functions refer for their names.
/// Subtracts the functions from the budget. Fails if the unit is damaged, nested deeper than `MAX_DEPTH`, or exceeds
/// the budget.
fn read_references(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &UnitHeader<Slice<'_>>,
    budget: &mut DebugBudget,
) -> io::Result<Vec<usize>> {
    let mut references = Vec::new();
    let abbreviations = dwarf.abbreviations(unit).map_err(io::Error::other)?;
    let mut entries = unit
        .entries_raw(&abbreviations, None)
        .map_err(io::Error::other)?;
    while !entries.is_empty() {
        if entries.next_depth() > MAX_DEPTH {
            let problem = format!("it is nested deeper than {MAX_DEPTH}");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
        }
        let tag = read_entry(&mut entries, &mut references).map_err(io::Error::other)?;
        if [Some(DW_TAG_subprogram), Some(DW_TAG_inlined_subroutine)].contains(&tag) {
            budget.charge_function()?;
        }
    }
    Ok(references)
}

/// Reads one entry, and adds its references to other units to `references`. Returns its tag; `None` for the end of a
/// list of children.
fn read_entry(
    entries: &mut gimli::EntriesRaw<'_, Slice<'_>>,
    references: &mut Vec<usize>,
) -> gimli::Result<Option<DwTag>> {
    let Some(abbreviation) = entries.read_abbreviation()? else {
        return Ok(None);
    };
    let tag = Some(abbreviation.tag());
    let attributes = abbreviation.attributes();
    let refers_to_unit = |attribute: &gimli::AttributeSpecification| {
        let is_name = [DW_AT_abstract_origin, DW_AT_specification].contains(&attribute.name());
        is_name && attribute.form() == DW_FORM_ref_addr
    };
    if !attributes.iter().any(refers_to_unit) {
        entries.skip_attributes(attributes)?;
        return Ok(tag);
    }
    for attribute in attributes {
        let value = entries.read_attribute(*attribute)?.value();
        if let AttributeValue::DebugInfoRef(reference) = value
            && refers_to_unit(attribute)
        {
            references.push(reference.0);
        }
    }
    Ok(tag)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::fs;

    use addr2line::gimli::{
        DebugInfoOffset, Dwarf, DwarfSections, EndianSlice, RunTimeEndian, Section as _, SectionId,
        UnitType,
    };
    use object::{Object as _, ObjectSection as _};

    use super::{DebugBudget, blank_units, unneeded_units};

    const ENDIAN: RunTimeEndian = RunTimeEndian::Little;

    #[expect(clippy::ptr_arg, reason = "the sections are lent as they are kept")]
    fn slice<'d>(bytes: &'d Cow<'_, [u8]>) -> EndianSlice<'d, RunTimeEndian> {
        EndianSlice::new(bytes, ENDIAN)
    }

    /// Reads this test's own executable, in which the standard library and this crate are many units.
    #[test]
    fn units_without_addresses_are_unneeded() {
        let bytes = fs::read("/proc/self/exe").expect("it is there");
        let file = object::File::parse(&*bytes).expect("it is a program");
        let load = |id: SectionId| -> object::Result<Cow<'_, [u8]>> {
            let section = file.section_by_name(id.name());
            section.map_or(Ok(Cow::default()), |section| section.uncompressed_data())
        };
        let mut sections = DwarfSections::load(load).expect("its sections are whole");
        let dwarf = sections.borrow(slice);
        let mut sets = dwarf.debug_aranges.headers();
        let set = sets.next().expect("it is whole").expect("there is one");
        let range = set.entries().next().expect("it is whole");
        let address = range.expect("there is one").address();
        let DebugInfoOffset(unit) = set.debug_info_offset();
        let is_unneeded = |addresses: &[u64]| {
            let runs = unneeded_units(&dwarf, addresses, &mut DebugBudget::new());
            let runs = runs.expect("it is whole");
            runs.iter().any(|run| run.contains(&unit))
        };
        assert!(!is_unneeded(&[address]));
        assert!(is_unneeded(&[]));

        let count = |dwarf: &Dwarf<EndianSlice<'_, RunTimeEndian>>| {
            let mut units = dwarf.units();
            let mut count = 0;
            while let Some(unit) = units.next().expect("it is whole") {
                count += usize::from(matches!(unit.type_(), UnitType::Compilation));
            }
            count
        };
        let before = count(&dwarf);
        let runs = unneeded_units(&dwarf, &[address], &mut DebugBudget::new());
        let runs = runs.expect("it is whole");
        let mut info = dwarf.debug_info.reader().slice().to_vec();
        for run in runs {
            blank_units(&mut info, &run, ENDIAN);
        }
        sections.debug_info = Cow::<[u8]>::Owned(info).into();
        let after = count(&sections.borrow(slice));
        assert!(after > 0 && after < before, "{after} of {before}");
    }
}
