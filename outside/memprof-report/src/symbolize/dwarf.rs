//! Debug information: inlined functions, files and lines.

use std::borrow::Cow;
use std::{io, mem};

use addr2line::gimli::{self, DwarfSections, EndianSlice, RunTimeEndian, SectionId};
use object::{CompressionFormat, Object as _, ObjectSection, ReadRef};

use super::address::LinkedAddress;
use super::frames::Frames;
use super::scopes::{Offset, Scopes, Slice};
use super::source_path::is_rust;
use super::units;
use crate::limits::Limits;
use crate::stacks::AddressId;

/// Decompressed debug sections of a file, without the units that some addresses do not need.
pub(super) struct Dwarf<'d> {
    sections: DwarfSections<Cow<'d, [u8]>>,
    endian: RunTimeEndian,
}

/// Debug information prepared for lookups.
pub(super) struct Context<'s> {
    files: addr2line::Context<Slice<'s>>,
    scopes: Scopes,
}

impl<'d> Dwarf<'d> {
    /// Loads the debug information for `addresses`, ascending. `None` if the file has none.
    ///
    /// # Errors
    /// The debug information is damaged, or exceeds a limit.
    pub(super) fn load<R: ReadRef<'d>>(
        file: &object::File<'d, R>,
        addresses: &[LinkedAddress],
    ) -> io::Result<Option<Self>> {
        if file.section_by_name(".debug_info").is_none() {
            return Ok(None);
        }
        let endian = match file.is_little_endian() {
            true => RunTimeEndian::Little,
            false => RunTimeEndian::Big,
        };
        let load = |id: SectionId| match file.section_by_name(id.name()) {
            Some(section) if is_needed(id) => decompress(&section),
            _ => Ok(Cow::default()),
        };
        let mut info = load(SectionId::DebugInfo)?;
        let mut abbreviations = load(SectionId::DebugAbbrev)?;
        let mut ranges = load(SectionId::DebugAranges)?;
        let unneeded = units::unneeded_units(
            &gimli::Dwarf {
                debug_info: EndianSlice::new(&info, endian).into(),
                debug_abbrev: EndianSlice::new(&abbreviations, endian).into(),
                debug_aranges: EndianSlice::new(&ranges, endian).into(),
                ..gimli::Dwarf::default()
            },
            addresses,
        )?;
        for run in unneeded {
            units::blank_units(info.to_mut(), &run, endian);
        }
        let sections = DwarfSections::load(|id| match id {
            SectionId::DebugInfo => Ok(mem::take(&mut info)),
            SectionId::DebugAbbrev => Ok(mem::take(&mut abbreviations)),
            SectionId::DebugAranges => Ok(mem::take(&mut ranges)),
            _ => load(id),
        })?;
        Ok(Some(Self { sections, endian }))
    }

    fn borrow(&self) -> gimli::Dwarf<Slice<'_>> {
        self.sections
            .borrow(|section| EndianSlice::new(section, self.endian))
    }

    /// Prepares lookups. `None` if the debug information is damaged.
    pub(super) fn context(&self) -> Option<Context<'_>> {
        let files = addr2line::Context::from_dwarf(self.borrow()).ok()?;
        Some(Context {
            files,
            scopes: Scopes::new(),
        })
    }
}

/// Returns a section's bytes. Fails if it declares more of them than its compressed bytes may expand to.
fn decompress<'d>(section: &impl ObjectSection<'d>) -> io::Result<Cow<'d, [u8]>> {
    let compressed = section.compressed_data().map_err(io::Error::other)?;
    let declared = compressed.uncompressed_size;
    let limits = Limits::default();
    let max = (compressed.data.len() as u64)
        .saturating_mul(limits.ratio)
        .clamp(Limits::RATIO_FLOOR, limits.bytes);
    if compressed.format != CompressionFormat::None && declared > max {
        let problem = format!("a section claims {declared} bytes, at most {max} are read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    compressed.decompress().map_err(io::Error::other)
}

/// Returns whether a section is read. Those for locations of variables and for macros are not needed, and are half of
/// the bytes.
fn is_needed(id: SectionId) -> bool {
    use SectionId::{
        DebugLoc, DebugLocLists, DebugMacinfo, DebugMacro, DebugNames, DebugPubNames, DebugTypes,
    };
    !matches!(
        id,
        DebugLoc
            | DebugLocLists
            | DebugMacinfo
            | DebugMacro
            | DebugNames
            | DebugPubNames
            | DebugTypes
    )
}

impl<'s> Context<'s> {
    /// Adds the frames at an address, innermost first. The outermost frame gets the name of `symbol` if debug
    /// information has its location but not its function, or only the short name: without linkage names
    /// (`-Cdebuginfo=line-tables-only`) only the mangled symbol has the module or class. Adds nothing if there is
    /// no name, or the debug information contradicts itself.
    pub(super) fn add_frames(
        &'s self,
        (address, id): (LinkedAddress, AddressId),
        symbol: Option<&'s [u8]>,
        frames: &mut Frames<'s>,
    ) {
        let Ok(mut lookup) = self.files.find_frames(address).skip_all_loads() else {
            return;
        };
        let before = frames.len();
        let mut outermost: &[u8] = &[];
        let mut unit_name = None;
        while let Ok(Some(frame)) = lookup.next() {
            let function = frame.function.as_ref().map(|f| f.name.slice());
            let Some(function) = function.or(symbol) else {
                frames.truncate(before);
                return;
            };
            let location = frame.location.as_ref();
            let file = location.and_then(|location| location.file);
            let line = location.and_then(|location| location.line).unwrap_or(0);
            match file.filter(|file| is_rust(file) && !is_mangled(function)) {
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
