//! Debug information: inlined functions, files and lines.

use std::borrow::Cow;
use std::sync::Arc;
use std::{io, mem};

use addr2line::gimli::{self, DwarfSections, EndianSlice, RunTimeEndian, SectionId};
use addr2line::{LookupContinuation, LookupResult};
use object::{Object as _, ReadRef};

use super::address::LinkedAddress;
use super::companions::Companions;
use super::debug_budget::DebugBudget;
use super::frames::Frames;
use super::scopes::{Offset, Scopes, Slice};
use super::sections;
use super::source_path::is_rust_source;
use super::split::SplitUnits;
use super::supplementary::Supplementary;
use super::units;
use crate::stacks::AddressId;

/// Decompressed debug sections of a file, without the units that some addresses do not need.
pub(super) struct Dwarf<'d> {
    sections: DwarfSections<Cow<'d, [u8]>>,
    supplementary: Supplementary,
    split: SplitUnits,
    endian: RunTimeEndian,
}

/// Debug information prepared for lookups.
pub(super) struct Context<'s> {
    files: addr2line::Context<Slice<'s>>,
    split: &'s SplitUnits,
    scopes: Scopes<'s>,
}

impl<'d> Dwarf<'d> {
    /// Loads the debug information that `addresses`, ascending, need: from the file, and from files among its
    /// `companions` to which it refers. Units that no address needs are overwritten, so that they cost no time. `None`
    /// if the file has no debug information. Fails if the debug information is damaged, or exceeds a limit.
    pub(super) fn load<R: ReadRef<'d>>(
        file: &object::File<'d, R>,
        addresses: &[LinkedAddress],
        companions: &Companions,
    ) -> io::Result<Option<Self>> {
        if file.section_by_name(".debug_info").is_none() {
            return Ok(None);
        }
        let endian = sections::file_endian(file);
        let mut info = sections::load_section(file, SectionId::DebugInfo)?;
        let mut abbreviations = sections::load_section(file, SectionId::DebugAbbrev)?;
        let mut ranges = sections::load_section(file, SectionId::DebugAranges)?;
        let mut budget = DebugBudget::new();
        let unneeded = units::unneeded_units(
            &gimli::Dwarf {
                debug_info: EndianSlice::new(&info, endian).into(),
                debug_abbrev: EndianSlice::new(&abbreviations, endian).into(),
                debug_aranges: EndianSlice::new(&ranges, endian).into(),
                ..gimli::Dwarf::default()
            },
            addresses,
            &mut budget,
        )?;
        for run in unneeded {
            units::blank_units(info.to_mut(), &run, endian);
        }
        let sections = DwarfSections::load(|id| match id {
            SectionId::DebugInfo => Ok(mem::take(&mut info)),
            SectionId::DebugAbbrev => Ok(mem::take(&mut abbreviations)),
            SectionId::DebugAranges => Ok(mem::take(&mut ranges)),
            _ => sections::load_section(file, id),
        })?;
        let mut loaded = Self {
            sections,
            supplementary: Supplementary::load(file, companions)?,
            split: SplitUnits::default(),
            endian,
        };
        budget.charge_lines(&loaded.as_gimli())?;
        loaded.split = SplitUnits::load(&Arc::new(loaded.as_gimli()), addresses, companions);
        Ok(Some(loaded))
    }

    /// Returns the sections as gimli reads them, with those of the supplementary file.
    fn as_gimli(&self) -> gimli::Dwarf<Slice<'_>> {
        let slice = |section| EndianSlice::new(section, self.endian);
        let mut dwarf = self.sections.borrow(|section| slice(&**section));
        if let Some(sections) = &self.supplementary.sections {
            dwarf.set_sup(sections.borrow(|section| slice(section)));
        }
        dwarf
    }

    /// Prepares lookups of addresses. `None` if the debug information is damaged.
    pub(super) fn prepare_context(&self) -> Option<Context<'_>> {
        let files = addr2line::Context::from_dwarf(self.as_gimli()).ok()?;
        Some(Context {
            files,
            split: &self.split,
            scopes: Scopes::new(),
        })
    }

    /// Returns notes on missing inlined functions: on those without a name, whose number is `nameless`, and on those of
    /// units whose files were not found.
    pub(super) fn missing_functions_notes(&self, nameless: usize) -> Vec<String> {
        let nameless = self.supplementary.nameless_note(nameless);
        nameless
            .into_iter()
            .chain(self.split.missing_note())
            .collect()
    }
}

impl<'s> Context<'s> {
    /// Adds the frames at an address, innermost first. The outermost frame gets the name of `symbol` if debug
    /// information has only its location, or only its short name: with `-Cdebuginfo=line-tables-only`, only the mangled
    /// symbol has the module or class. Adds nothing if the outermost frame has no name, or no frame can be read.
    /// Returns the number of inlined functions that were left out because they have no name.
    pub(super) fn add_frames(
        &'s self,
        (address, id): (LinkedAddress, AddressId),
        symbol: Option<&'s [u8]>,
        frames: &mut Frames<'s>,
    ) -> usize {
        let mut lookup = self.files.find_frames(address);
        let found = loop {
            lookup = match lookup {
                LookupResult::Output(found) => break found,
                LookupResult::Load { load, continuation } => {
                    continuation.resume(self.split.unit(&load))
                }
            };
        };
        let Ok(mut found) = found else {
            return 0;
        };
        let before = frames.len();
        let mut outermost: &[u8] = &[];
        let mut unit_name = None;
        let mut nameless = 0;
        let mut next = found.next();
        while let Ok(Some(frame)) = next {
            next = found.next();
            let is_inlined = matches!(next, Ok(Some(_)));
            let function = frame.function.as_ref().map(|f| f.name.slice());
            let Some(function) = function.or(symbol.filter(|_| !is_inlined)) else {
                if is_inlined {
                    nameless += 1;
                    continue;
                }
                frames.truncate(before);
                return 0;
            };
            let location = frame.location.as_ref();
            let file = location.and_then(|location| location.file);
            let line = location.and_then(|location| location.line).unwrap_or(0);
            match file.filter(|file| is_rust_source(file) && !is_mangled(function)) {
                Some(file) => {
                    let unit_name = *unit_name.get_or_insert_with(|| self.unit_name(address));
                    frames.push_in_file(id, function, (file, line), unit_name);
                }
                None => {
                    let inlined = frame.dw_die_offset.filter(|_| !is_mangled(function));
                    match inlined.and_then(|inlined| self.inlined_scope(address, inlined)) {
                        Some(inlined_scope) => {
                            frames.push_in_scope(id, function, &inlined_scope, (file, line))
                        }
                        None => frames.push(id, function, file, line),
                    }
                }
            }
            outermost = function;
        }
        if let Some(symbol) = symbol
            && frames.len() > before
            && is_mangled(symbol)
            && !is_mangled(outermost)
        {
            frames.rename_last(symbol);
        }
        nameless
    }
}

impl<'s> Context<'s> {
    /// Returns the name of the unit that contains an address; empty if it is unknown.
    fn unit_name(&'s self, address: LinkedAddress) -> &'s [u8] {
        let lookup = self.files.find_dwarf_and_unit(address).skip_all_loads();
        let name = lookup.and_then(|unit| unit.unit.name);
        name.map_or(&[], |name| name.slice())
    }

    /// Returns the namespaces and classes that contain an inlined function at an address, as in `shop::Cart`. `None` if
    /// debug information shows none.
    fn inlined_scope(&self, address: LinkedAddress, inlined: Offset) -> Option<String> {
        let unit_name = self.files.find_dwarf_and_unit(address).skip_all_loads()?;
        self.scopes.inlined_scope(unit_name, inlined)
    }
}

/// Returns whether a name is mangled: Itanium C++, Rust's legacy scheme of the same form, or Rust v0.
fn is_mangled(name: &[u8]) -> bool {
    name.starts_with(b"_Z") || name.starts_with(b"_R")
}
