//! Variables of a process, by the symbol tables of its files.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memprof_ptrace::mapped_file::open_regular_file;
use memprof_report::{LimitedFile, ProgramLink, demangle, program_link};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, SymbolKind};

use crate::regions::Region;
use crate::resident_pages::PAGE_SIZE;
use crate::snapshot_memory::SnapshotMemory;

/// Most bytes that are read of a file's tables and names: another user may have written the file.
const READ_LIMIT: u64 = 128 << 20;

/// Variable of a file, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Variable {
    /// Name of its symbol. Empty if the file has no symbol there.
    pub(crate) name: String,
    /// Name of the file, without its folders.
    pub(crate) file: String,
    /// Offset of the address from the variable's start; without a symbol, the address as the linker assigned
    /// it.
    pub(crate) offset: u64,
    /// Bytes from the address to the variable's end; 0 without a symbol.
    pub(crate) rest: u64,
}

impl Variable {
    /// Demangled name, or file and address if there is no symbol.
    pub(crate) fn display_name(&self) -> String {
        match self.name.as_str() {
            "" => format!("{}+{:#x}", self.file, self.offset),
            name => demangle(name).into_owned(),
        }
    }
}

/// Variables of the files that a process has mapped, with a cache.
pub(super) struct Symbols<'a> {
    view: &'a SnapshotMemory,
    files: HashMap<&'a str, MappedFile>,
    /// Other name of the program's file, by which it was started.
    link: Option<ProgramLink>,
}

/// Kind of a mapped file.
#[derive(Debug)]
enum MappedFile {
    /// A program or a library.
    Object(VariableTable),
    /// A program or a library that cannot be read.
    Unreadable,
    /// Data: nothing in it is a variable.
    Data,
}

/// Variables of a file by address, with the file offset and the address of its first segment.
#[derive(Debug, Default)]
struct VariableTable {
    first_offset: u64,
    first_address: u64,
    /// Pages of the segments, by addresses as the linker assigned them.
    segments: Vec<Range<u64>>,
    variables: Vec<VariableEntry>,
}

/// Variable of a file, by addresses as the linker assigned them.
#[derive(Debug)]
struct VariableEntry {
    start: u64,
    end: u64,
    name: Box<str>,
}

impl<'a> Symbols<'a> {
    /// Prepares the search for variables in a snapshot's files. A file is read when a variable of it is first
    /// requested.
    pub(super) fn new(view: &'a SnapshotMemory) -> Self {
        Self {
            view,
            files: HashMap::new(),
            link: program_link(view.live_pid().cast_unsigned()),
        }
    }

    /// Variable that contains an address. The variable has no name if the file has no symbol there, or cannot be
    /// opened. `None` if no program or library has its variables there.
    pub(super) fn variable_at(&mut self, address: u64) -> Option<Variable> {
        let region = self.view.owning_file_region(address)?;
        let pid = self.view.live_pid();
        let table = self.files.entry(&region.name);
        let view = self.view;
        let table = table.or_insert_with(|| MappedFile::read(view, pid, region));
        let path = region.name.strip_suffix(" (deleted)");
        let path = path.unwrap_or(&region.name);
        let mut variable = Variable {
            name: String::new(),
            file: match &self.link {
                Some(link) if link.path == path => link.name.clone(),
                _ => path.rsplit('/').next().unwrap_or(path).to_owned(),
            },
            offset: address - region.range.start + region.offset,
            rest: 0,
        };
        match table {
            MappedFile::Data => return None,
            MappedFile::Unreadable => {}
            MappedFile::Object(table) => {
                let bias = load_bias(self.view, region, table)?;
                variable.offset = address.wrapping_sub(bias);
                if !table.has_segment(variable.offset) {
                    return None;
                }
                if let Some(entry) = table.find_variable(variable.offset) {
                    variable.name = entry.name.to_string();
                    variable.rest = entry.end - variable.offset;
                    variable.offset -= entry.start;
                }
            }
        }
        Some(variable)
    }
}

/// Difference between addresses in the process and those in the file's symbols. `None` if the file's first segment
/// is not mapped before the region.
fn load_bias(view: &SnapshotMemory, region: &Region, table: &VariableTable) -> Option<u64> {
    let regions = view.regions.iter().rev();
    let first = regions
        .skip_while(|other| other.range.start > region.range.start)
        .find(|other| other.name == region.name && other.offset == table.first_offset)?;
    Some(first.range.start.wrapping_sub(table.first_address))
}

impl VariableTable {
    /// Whether an address is in one of the segments. Memory that the program mapped may follow in the same mapping.
    fn has_segment(&self, address: u64) -> bool {
        self.segments
            .iter()
            .any(|segment| segment.contains(&address))
    }

    /// Variable that contains an address of the file. `None` if there is none.
    fn find_variable(&self, address: u64) -> Option<&VariableEntry> {
        let behind = self
            .variables
            .partition_point(|entry| entry.start <= address);
        let entry = self.variables.get(behind.checked_sub(1)?)?;
        (address < entry.end).then_some(entry)
    }
}

/// Names of the functions of a mapped file that `is_wanted` accepts, from its symbol tables. Empty if the file is not
/// mapped, cannot be read or has no symbols.
pub(crate) fn read_functions_of_file(
    view: &SnapshotMemory,
    path: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> Vec<String> {
    let region = view.regions.iter().find(|region| region.name == path);
    let Some(file) = region.and_then(|region| open_mapped_file(view.live_pid(), region)) else {
        return Vec::new();
    };
    let limited = LimitedFile::new(file, READ_LIMIT);
    let Ok(file) = ElfFile64::<Endianness, _>::parse(&limited) else {
        return Vec::new();
    };
    let symbols = file.symbols().chain(file.dynamic_symbols());
    let functions =
        symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && !symbol.is_undefined());
    let names = functions.filter_map(|symbol| symbol.name().ok().filter(|name| is_wanted(name)));
    names.map(str::to_owned).collect()
}

impl MappedFile {
    /// Reads the variables of a mapped file. A file that cannot be opened counts as an unreadable program or library if
    /// code of it is mapped, else as data. A file that is not of ELF counts as data, too.
    fn read(view: &SnapshotMemory, pid: i32, region: &Region) -> Self {
        let Some(file) = open_mapped_file(pid, region) else {
            let mut regions = view.regions.iter();
            let has_code = regions.any(|other| other.is_executable && other.name == region.name);
            return if has_code {
                Self::Unreadable
            } else {
                Self::Data
            };
        };
        read_variable_table(file).map_or(Self::Data, Self::Object)
    }
}

/// Opens the file of a mapping by its path, as the process sees it, or else by the link in `/proc/PID/map_files`.
/// `None` if it cannot be opened, is on FUSE, or both name another file now.
fn open_mapped_file(pid: i32, region: &Region) -> Option<File> {
    if region.is_on_fuse(pid) {
        return None;
    }
    let open = |path: String| open_regular_file(Path::new(&path), region.inode);
    open(format!("/proc/{pid}/root{}", region.name)).or_else(|| {
        let range = &region.range;
        open(format!(
            "/proc/{pid}/map_files/{:x}-{:x}",
            range.start, range.end
        ))
    })
}

/// Reads the variables of a file, sorted by address, from its first [`READ_LIMIT`] bytes. `None` if it is not a 64-bit
/// ELF file, or no segment of it is loaded.
fn read_variable_table(file: File) -> Option<VariableTable> {
    let limited = LimitedFile::new(file, READ_LIMIT);
    let file = ElfFile64::<Endianness, _>::parse(&limited).ok()?;
    let endian = file.endian();
    let headers = file.elf_program_headers().iter();
    let loaded: Vec<_> = headers
        .filter(|header| header.p_type(endian) == object::elf::PT_LOAD)
        .collect();
    let first = *loaded.first()?;
    let segments = loaded.iter().map(|header| {
        let start = header.p_vaddr(endian);
        let end = start.saturating_add(header.p_memsz(endian));
        start & !(PAGE_SIZE - 1)..end.checked_next_multiple_of(PAGE_SIZE).unwrap_or(end)
    });
    let symbols = file.symbols().chain(file.dynamic_symbols());
    let mut variables: Vec<_> = symbols
        .filter(|symbol| symbol.kind() == SymbolKind::Data && symbol.size() > 0)
        .filter_map(|symbol| {
            Some(VariableEntry {
                start: symbol.address(),
                end: symbol.address().checked_add(symbol.size())?,
                name: symbol.name().ok()?.into(),
            })
        })
        .collect();
    // If several symbols have one address, the first by name is kept.
    variables.sort_by(|one, other| (one.start, &one.name).cmp(&(other.start, &other.name)));
    variables.dedup_by_key(|entry| entry.start);
    Some(VariableTable {
        first_offset: first.p_offset(endian) & !(PAGE_SIZE - 1),
        first_address: first.p_vaddr(endian) & !(PAGE_SIZE - 1),
        segments: segments.collect(),
        variables,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_contains_addresses_from_start_to_end() {
        let entry = |start, end, name: &str| VariableEntry {
            start,
            end,
            name: name.into(),
        };
        let table = VariableTable {
            variables: vec![entry(0x10, 0x18, "one"), entry(0x20, 0x40, "two")],
            ..VariableTable::default()
        };
        let check = |address, expected: Option<&str>| {
            let found = table.find_variable(address).map(|entry| &*entry.name);
            assert_eq!(found, expected, "{address:#x}");
        };
        check(0x0f, None);
        check(0x10, Some("one"));
        check(0x18, None);
        check(0x3f, Some("two"));
        check(0x40, None);
    }

    #[test]
    fn display_name_is_demangled_or_file_and_address() {
        let check = |name: &str, expected| {
            let variable = Variable {
                name: name.to_owned(),
                file: "a.out".to_owned(),
                offset: 0x4010,
                rest: 0,
            };
            assert_eq!(variable.display_name(), expected);
        };
        check(
            "_ZN12_GLOBAL__N_18sessionsE",
            "(anonymous namespace)::sessions",
        );
        check("server", "server");
        check("", "a.out+0x4010");
    }
}
