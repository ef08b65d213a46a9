//! Split debug information (DWARF 5, 7.3.2): the units of a program are in `.dwo` files, or together in a `.dwp` file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use addr2line::SplitDwarfLoad;
use addr2line::gimli::{
    self, DwarfPackageSections, DwarfSections, DwoId, EndianSlice, RunTimeEndian,
};

use super::address::LinkedAddress;
use super::companions::Companions;
use super::debug_budget::DebugBudget;
use super::limited_file::LimitedFile;
use super::regular_file::READ_LIMIT;
use super::scopes::Slice;
use super::{sections, units};

/// Most file names in a note.
const MAX_SHOWN: usize = 3;

/// Split units that some addresses need.
#[derive(Default)]
pub(super) struct SplitUnits {
    files: HashMap<u64, SplitUnit>,
    package: Option<Package>,
    /// Units of the package that were checked. addr2line must not read the others.
    packed: HashSet<u64>,
    /// Files that were not found.
    missing: Vec<String>,
    needed: usize,
}

/// A `.dwo` file.
struct SplitUnit {
    sections: DwarfSections<Vec<u8>>,
    /// Range of the unit in `.debug_info.dwo`: type units may be before it.
    unit: Range<usize>,
    endian: RunTimeEndian,
}

/// A `.dwp` file.
struct Package {
    sections: DwarfPackageSections<Vec<u8>>,
    endian: RunTimeEndian,
}

/// Limits for all split files of a program together.
struct Budget {
    bytes: u64,
    debug: DebugBudget,
}

impl SplitUnits {
    /// Loads the split units, units of debug information in files of their own, that contain `addresses`: from a
    /// package (`.dwp`), else from single files (`.dwo`). Units that are not found, are damaged or exceed a limit are
    /// left out, and their files are listed as missing.
    pub(super) fn load(
        dwarf: &Arc<gimli::Dwarf<Slice<'_>>>,
        addresses: &[LinkedAddress],
        companions: &Companions,
    ) -> Self {
        let needed = needed_split_units(dwarf, addresses);
        let mut loaded = Self {
            needed: needed.len(),
            ..Self::default()
        };
        if needed.is_empty() {
            return loaded;
        }
        let mut budget = Budget {
            bytes: READ_LIMIT,
            debug: DebugBudget::new(),
        };
        let package = companions.open_dwarf_package();
        loaded.package = package.and_then(|file| Package::load(&file, &mut budget).ok());
        for (id, (directory, path)) in needed {
            let package = loaded.package.as_ref();
            let is_packed = package.is_some_and(|package| {
                let unit = package.unit(DwoId(id), dwarf);
                unit.is_some_and(|unit| check_and_charge_unit(&unit, &mut budget).is_ok())
            });
            if is_packed {
                loaded.packed.insert(id);
                continue;
            }
            let mut files = companions.open_split_files(&directory, &path).into_iter();
            match files.find_map(|file| SplitUnit::load(&file, id, &mut budget).ok()?) {
                Some(unit) => drop(loaded.files.insert(id, unit)),
                None => loaded.missing.push(path.display().to_string()),
            }
        }
        loaded
    }

    /// Returns the split unit that addr2line requests by `load`. `None` if the unit was not loaded before: its file was
    /// not found, is damaged or exceeds a limit, or no address needs it.
    pub(super) fn unit<'s>(
        &'s self,
        load: &SplitDwarfLoad<Slice<'s>>,
    ) -> Option<Arc<gimli::Dwarf<Slice<'s>>>> {
        let DwoId(id) = load.dwo_id;
        let unit = match (self.files.get(&id), &self.package) {
            (Some(file), _) => {
                let mut dwarf = file.as_unit_dwarf();
                dwarf.make_dwo(&load.parent);
                dwarf
            }
            (None, Some(package)) if self.packed.contains(&id) => {
                package.unit(load.dwo_id, &load.parent)?
            }
            (None, _) => return None,
        };
        Some(Arc::new(unit))
    }

    /// Returns a note on the files of split units that could not be read. `None` if no file is missing.
    pub(super) fn missing_note(&self) -> Option<String> {
        let (count, shown) = (self.missing.len(), self.missing.iter().take(MAX_SHOWN));
        let shown: Vec<&str> = shown.map(String::as_str).collect();
        let more = match count.saturating_sub(MAX_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (count > 0).then(|| {
            format!(
                "inlined functions of {count} of {} units are missing: their debug information is in {}{more}, \
                 which cannot be read here or beside the program; a .dwp file beside it serves too",
                self.needed,
                shown.join(", ")
            )
        })
    }
}

/// Returns the split units that contain one of the addresses: by unit id, the directory of the compilation and the path
/// of the file, as the debug information names them. Empty if the debug information is damaged.
fn needed_split_units(
    dwarf: &Arc<gimli::Dwarf<Slice<'_>>>,
    addresses: &[LinkedAddress],
) -> BTreeMap<u64, (PathBuf, PathBuf)> {
    let Ok(context) = addr2line::Context::from_arc_dwarf(Arc::clone(dwarf)) else {
        return BTreeMap::new();
    };
    let mut needed = BTreeMap::new();
    for address in addresses {
        for (load, _) in context.preload_units(*address) {
            let path = |name: Option<Slice<'_>>| {
                let name = name.map(|name| String::from_utf8_lossy(name.slice()).into_owned());
                PathBuf::from(name.unwrap_or_default())
            };
            needed.insert(load.dwo_id.0, (path(load.comp_dir), path(load.path)));
        }
    }
    needed
}

impl SplitUnit {
    /// Loads the unit `id` from a `.dwo` file. `None` if the file lacks that unit. Fails if the file is damaged, or
    /// exceeds the budget.
    fn load(file: &File, id: u64, budget: &mut Budget) -> io::Result<Option<Self>> {
        let cache = LimitedFile::new(file, budget.bytes);
        let file = object::File::parse(&cache).map_err(io::Error::other)?;
        let endian = sections::file_endian(&file);
        let mut bytes = 0;
        let sections = DwarfSections::load(|id| -> io::Result<Vec<u8>> {
            let section = sections::load_split_section(&file, id)?;
            bytes += section.len() as u64;
            Ok(section)
        })?;
        budget.charge_bytes(bytes)?;
        let mut loaded = Self {
            sections,
            unit: 0..0,
            endian,
        };
        loaded.unit = match find_unit_range(&loaded.as_dwarf(), id).map_err(io::Error::other)? {
            Some(unit) => unit,
            None => return Ok(None),
        };
        check_and_charge_unit(&loaded.as_unit_dwarf(), budget)?;
        Ok(Some(loaded))
    }

    /// Returns all sections of the file as gimli reads them.
    fn as_dwarf(&self) -> gimli::Dwarf<Slice<'_>> {
        let mut dwarf = self
            .sections
            .borrow(|section| EndianSlice::new(section, self.endian));
        dwarf.file_type = gimli::DwarfFileType::Dwo;
        dwarf
    }

    /// Returns the sections as gimli reads them, with only this unit in `.debug_info`, because addr2line reads the
    /// first one there.
    fn as_unit_dwarf(&self) -> gimli::Dwarf<Slice<'_>> {
        let mut dwarf = self.as_dwarf();
        let info = gimli::Section::reader(&dwarf.debug_info).slice();
        let info = info.get(self.unit.clone()).unwrap_or_default();
        dwarf.debug_info = EndianSlice::new(info, self.endian).into();
        dwarf
    }
}

/// Returns the range in bytes of the unit with this id in `.debug_info`. `None` if there is no such unit. Fails if a
/// unit before it is damaged.
fn find_unit_range(
    dwarf: &gimli::Dwarf<Slice<'_>>,
    id: u64,
) -> gimli::Result<Option<Range<usize>>> {
    let mut headers = dwarf.units();
    while let Some(header) = headers.next()? {
        let start = header.debug_info_offset().map_or(0, |offset| offset.0);
        let range = start..start + header.length_including_self();
        if dwarf.unit(header)?.dwo_id == Some(DwoId(id)) {
            return Ok(Some(range));
        }
    }
    Ok(None)
}

impl Package {
    /// Loads a package (`.dwp`), which contains the split units of a whole program. Fails if it is no valid object
    /// file, or exceeds the budget.
    fn load(file: &File, budget: &mut Budget) -> io::Result<Self> {
        let cache = LimitedFile::new(file, budget.bytes);
        let file = object::File::parse(&cache).map_err(io::Error::other)?;
        let mut bytes = 0;
        let sections = DwarfPackageSections::load(|id| -> gimli::Result<Vec<u8>> {
            let section = sections::load_packed_section(&file, id).map_err(|_| gimli::Error::Io)?;
            bytes += section.len() as u64;
            Ok(section)
        });
        let sections = sections.map_err(io::Error::other)?;
        budget.charge_bytes(bytes)?;
        Ok(Self {
            sections,
            endian: sections::file_endian(&file),
        })
    }

    /// Returns the unit with this id; `parent` has the skeleton units. `None` if there is no such unit, or the package
    /// is damaged.
    fn unit<'s>(
        &'s self,
        id: DwoId,
        parent: &gimli::Dwarf<Slice<'s>>,
    ) -> Option<gimli::Dwarf<Slice<'s>>> {
        let slice = |section: &'s Vec<u8>| EndianSlice::new(section, self.endian);
        let package = self
            .sections
            .borrow(slice, EndianSlice::new(&[], self.endian));
        package.ok()?.find_cu(id, parent).ok()?
    }
}

impl Budget {
    /// Subtracts bytes that were read. Fails if fewer remain.
    fn charge_bytes(&mut self, bytes: u64) -> io::Result<()> {
        let remaining = self.bytes.checked_sub(bytes);
        self.bytes = remaining.ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(())
    }
}

/// Checks a unit before addr2line reads it, and subtracts its functions and abbreviations from the budget. Fails if the
/// unit is damaged, or exceeds the budget.
fn check_and_charge_unit(unit: &gimli::Dwarf<Slice<'_>>, budget: &mut Budget) -> io::Result<()> {
    units::charge_abbreviations(unit, &mut budget.debug)?;
    units::check_and_charge_entries(unit, &mut budget.debug)
}
