//! Checks the tables of a shared library that the loader reads without checks (gABI, "Dynamic Linking"). A block of
//! zeros, as in a file that was being written during a power failure, would end the process there.

mod code;
mod hashes;
mod link_info;
mod versions;

use std::ops::Range;

use object::elf::{
    DF_TEXTREL, DT_FINI, DT_FINI_ARRAY, DT_FINI_ARRAYSZ, DT_FLAGS, DT_INIT, DT_INIT_ARRAY,
    DT_INIT_ARRAYSZ, DT_JMPREL, DT_NEEDED, DT_NULL, DT_PLTRELSZ, DT_RELA, DT_RELACOUNT, DT_RELASZ,
    DT_RELR, DT_RELRSZ, DT_STRSZ, DT_STRTAB, DT_SYMTAB, DT_TEXTREL, Dyn64, DynamicTag,
    FileHeader64, PF_R, PF_W, PF_X, PT_DYNAMIC, PT_LOAD, ProgramHeader64, R_X86_64_IRELATIVE,
    R_X86_64_NONE, R_X86_64_RELATIVE, Rela64, SHT_DYNSYM, STT_SECTION, Sym64,
};
use object::endian::{LittleEndian, U64};
use object::pod::Pod;
use object::read::ReadRef;
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _, SectionHeader as _};

pub(crate) use link_info::{LinkInfo, is_for_another_machine};

/// Byte order of x86-64.
const LE: LittleEndian = LittleEndian;
/// Most relocations of type NONE, which linkers leave where they drop one: fewer than a sector of 512 bytes holds.
const MAX_EMPTY_ENTRIES: usize = 20;

type Result<T> = std::result::Result<T, String>;
type Segment = ProgramHeader64<LittleEndian>;

/// Checks all tables that the loader reads, and the code that it calls. The error names the damaged table.
pub(super) fn check_tables(bytes: &[u8]) -> Result<()> {
    let header = FileHeader64::<LittleEndian>::parse(bytes).map_err(|error| error.to_string())?;
    let segments = header.program_headers(LE, bytes);
    let library = Library {
        bytes,
        segments: segments.map_err(|error| error.to_string())?,
    };
    library.check_functions()?;
    let dynamic = library.dynamic_section()?;
    let strings = library.string_table(&dynamic)?;
    let needed = dynamic.values(DT_NEEDED);
    for name in needed.clone() {
        strings.read_name(name, "name of a needed library")?;
    }
    let count = dynamic_symbol_count(header, bytes);
    let symbols = library.dynamic_symbols(&dynamic, &strings, count)?;
    library.check_hashes(&dynamic, &strings, symbols)?;
    // The first symbol is the null symbol.
    let entry = symbols[1..].iter().find(|symbol| {
        let name = strings.read_name(symbol.st_name.get(LE).into(), "table of symbols");
        name.is_ok_and(|name| name == b"memprof_plugin_entry")
    });
    let entry = entry.map(|entry| (entry.st_value.get(LE), entry.st_size.get(LE)));
    let arrays = [
        (DT_INIT_ARRAY, DT_INIT_ARRAYSZ),
        (DT_FINI_ARRAY, DT_FINI_ARRAYSZ),
    ];
    let arrays = arrays.map(|(address, size)| dynamic.value(address).zip(dynamic.value(size)));
    let called_ranges: Vec<_> = arrays
        .into_iter()
        .chain([entry])
        .flatten()
        .map(|(start, size)| start..start.saturating_add(size))
        .collect();
    library.check_relocations(&dynamic, &called_ranges, symbols.len())?;
    library.check_versions(&dynamic, &strings, symbols.len())?;
    for function in [DT_INIT, DT_FINI] {
        let address = dynamic.value(function);
        if address.is_some_and(|address| !library.has_code(address)) {
            return damaged_table_error("address of its first or last function");
        }
    }
    Ok(())
}

/// Returns the error of a damaged table, as an `Err`.
fn damaged_table_error<T>(table: &str) -> Result<T> {
    Err(format!(
        "it is damaged: its {table} is not as a linker writes it"
    ))
}

/// Returns the number of dynamic symbols according to the section headers. `None` if the headers are missing or list no
/// table of dynamic symbols.
fn dynamic_symbol_count(header: &FileHeader64<LittleEndian>, bytes: &[u8]) -> Option<usize> {
    let sections = header.section_headers(LE, bytes).ok()?;
    let mut sections = sections.iter();
    let symbols = sections.find(|section| section.sh_type(LE) == SHT_DYNSYM)?;
    Some(symbols.sh_size(LE) as usize / size_of::<Sym64<LittleEndian>>())
}

/// A file with its program headers.
struct Library<'a> {
    bytes: &'a [u8],
    segments: &'a [Segment],
}

/// The dynamic section, without its end.
struct Dynamic<'a>(&'a [Dyn64<LittleEndian>]);

/// The string table, which ends with NUL.
struct Strings<'a>(&'a [u8]);

impl Dynamic<'_> {
    /// Iterates over the values of all entries with this tag, in their order.
    fn values(&self, tag: DynamicTag) -> impl Iterator<Item = u64> + Clone {
        let entries = self.0.iter();
        entries
            .filter(move |entry| entry.d_tag(LE) == tag)
            .map(|entry| entry.d_val(LE))
    }

    /// Returns the first value of a tag. `None` if the tag is absent.
    fn value(&self, tag: DynamicTag) -> Option<u64> {
        self.values(tag).next()
    }

    /// Returns whether relocations may change segments that are not writable.
    fn has_text_relocations(&self) -> bool {
        let flags = self.value(DT_FLAGS).unwrap_or(0);
        flags & DF_TEXTREL.0 != 0 || self.value(DT_TEXTREL).is_some()
    }
}

impl<'a> Strings<'a> {
    /// Returns the name at an offset. Fails, naming `table`, if the name is empty or outside of the string table.
    fn read_name(&self, offset: u64, table: &str) -> Result<&'a [u8]> {
        let tail = usize::try_from(offset)
            .ok()
            .and_then(|offset| self.0.get(offset..));
        let name = tail.and_then(|tail| tail.split(|&byte| byte == 0).next());
        match name {
            Some(name) if !name.is_empty() => Ok(name),
            _ => damaged_table_error(table),
        }
    }
}

impl<'a> Library<'a> {
    /// Iterates over the segments that the loader maps.
    fn loaded_segments(&self) -> impl Iterator<Item = &'a Segment> {
        let loaded = |segment: &&Segment| segment.p_type(LE) == PT_LOAD;
        self.segments.iter().filter(loaded)
    }

    /// Returns whether `address`, before relocation, is in a loaded segment that has at least one of the flags in
    /// `flag`: `PF_R`, `PF_W`, `PF_X`.
    fn is_in_segment_with(&self, address: u64, flag: u32) -> bool {
        self.loaded_segments().any(|segment| {
            let offset = address.checked_sub(segment.p_vaddr(LE));
            segment.p_flags(LE).0 & flag != 0
                && offset.is_some_and(|offset| offset < segment.p_memsz(LE))
        })
    }

    /// Returns the bytes of the file from an address to the end of its segment. Fails, naming `table`, if no mapped
    /// segment has the address in the file.
    fn bytes_from(&self, address: u64, table: &str) -> Result<&'a [u8]> {
        let bytes = self.loaded_segments().find_map(|segment| {
            let offset = address.checked_sub(segment.p_vaddr(LE))?;
            segment
                .data(LE, self.bytes)
                .ok()?
                .get(usize::try_from(offset).ok()?..)
        });
        bytes.map_or_else(|| damaged_table_error(table), Ok)
    }

    /// Returns `count` values at an address. Fails, naming `table`, if they are not within one mapped segment of the
    /// file.
    fn read_array<T: Pod>(&self, address: u64, count: usize, table: &str) -> Result<&'a [T]> {
        let bytes = self.bytes_from(address, table)?;
        bytes
            .read_slice_at(0, count)
            .or_else(|()| damaged_table_error(table))
    }

    /// Returns the entries of the dynamic section before its `DT_NULL`. Fails if there is no such section, or if it has
    /// no `DT_NULL` or nothing before it.
    fn dynamic_section(&self) -> Result<Dynamic<'a>> {
        const TABLE: &str = "dynamic section";
        let mut segments = self.segments.iter();
        let Some(segment) = segments.find(|segment| segment.p_type(LE) == PT_DYNAMIC) else {
            return damaged_table_error(TABLE);
        };
        let count = segment.p_filesz(LE) as usize / size_of::<Dyn64<LittleEndian>>();
        let entries: &[Dyn64<LittleEndian>] = self.read_array(segment.p_vaddr(LE), count, TABLE)?;
        match entries.iter().position(|entry| entry.d_tag(LE) == DT_NULL) {
            // The loader reads up to DT_NULL, beyond the segment if there is none in it.
            None | Some(0) => damaged_table_error(TABLE),
            Some(end) => Ok(Dynamic(&entries[..end])),
        }
    }

    /// Returns the table of the names of symbols and libraries. Fails unless it begins and ends with NUL.
    fn string_table(&self, dynamic: &Dynamic<'_>) -> Result<Strings<'a>> {
        const TABLE: &str = "table of names";
        let range = dynamic.value(DT_STRTAB).zip(dynamic.value(DT_STRSZ));
        let Some((address, size)) = range else {
            return damaged_table_error(TABLE);
        };
        match self.read_array(address, size as usize, TABLE)? {
            strings @ [0, .., 0] => Ok(Strings(strings)),
            _ => damaged_table_error(TABLE),
        }
    }

    /// Returns the dynamic symbols, which must have names, except the first and those of sections. `section_count` is
    /// the number of dynamic symbols in the section headers. If it is `None`, the symbols end at the string table.
    /// Fails if the table lies outside of the file, has no symbol, or lacks a name.
    fn dynamic_symbols(
        &self,
        dynamic: &Dynamic<'_>,
        strings: &Strings<'_>,
        section_count: Option<usize>,
    ) -> Result<&'a [Sym64<LittleEndian>]> {
        const TABLE: &str = "table of symbols";
        let Some(address) = dynamic.value(DT_SYMTAB) else {
            return damaged_table_error(TABLE);
        };
        let count = match section_count {
            Some(count) => count,
            // Linkers write the string table directly after the symbols.
            None => {
                let end = dynamic.value(DT_STRTAB).unwrap_or(0);
                end.saturating_sub(address) as usize / size_of::<Sym64<LittleEndian>>()
            }
        };
        let symbols: &[Sym64<LittleEndian>] = self.read_array(address, count, TABLE)?;
        if symbols.is_empty() {
            return damaged_table_error(TABLE);
        }
        // The first symbol is the null symbol (gABI, "Symbol Table").
        for symbol in &symbols[1..] {
            // Symbols of sections have no names.
            if symbol.st_info.st_type() != STT_SECTION {
                strings.read_name(symbol.st_name.get(LE).into(), TABLE)?;
            }
        }
        Ok(symbols)
    }

    /// Checks the type, symbol and target of each relocation, and fails for the first invalid one. `called_ranges`
    /// contain the addresses of functions that are called when the library is loaded or used. `symbols` is the number
    /// of dynamic symbols.
    fn check_relocations(
        &self,
        dynamic: &Dynamic<'_>,
        called_ranges: &[Range<u64>],
        symbols: usize,
    ) -> Result<()> {
        const TABLE: &str = "table of relocations";
        let relative = dynamic.value(DT_RELACOUNT).unwrap_or(0) as usize;
        // With text relocations, the loader makes segments writable that are not.
        let target_flags = match dynamic.has_text_relocations() {
            true => PF_R.0 | PF_W.0 | PF_X.0,
            false => PF_W.0,
        };
        let mut empty_entries = 0;
        let tables = [(DT_RELA, DT_RELASZ, relative), (DT_JMPREL, DT_PLTRELSZ, 0)];
        for (tag, size, relative) in tables {
            let Some(address) = dynamic.value(tag) else {
                continue;
            };
            let size = dynamic.value(size).unwrap_or(0) as usize;
            let count = size / size_of::<Rela64<LittleEndian>>();
            let entries: &[Rela64<LittleEndian>] = self.read_array(address, count, TABLE)?;
            for (index, entry) in entries.iter().enumerate() {
                let kind = entry.r_type(LE, false);
                let addend = entry.r_addend.get(LE) as u64;
                let target = entry.r_offset.get(LE);
                // IRELATIVE calls the function at its addend; RELATIVE may store the address of one that is called.
                let is_called = kind == R_X86_64_IRELATIVE
                    || kind == R_X86_64_RELATIVE
                        && self.is_in_segment_with(addend, PF_X.0)
                        && called_ranges.iter().any(|range| range.contains(&target));
                // The loader skips an entry of type NONE, but a block of them is a part of the file that was not written.
                if kind == R_X86_64_NONE && index >= relative {
                    empty_entries += 1;
                    if empty_entries > MAX_EMPTY_ENTRIES {
                        return damaged_table_error(TABLE);
                    }
                    continue;
                }
                // The loader relies on RELATIVE in the first DT_RELACOUNT entries.
                let is_valid = kind != R_X86_64_NONE
                    && (index >= relative || kind == R_X86_64_RELATIVE)
                    && (entry.r_sym(LE, false) as usize) < symbols
                    && self.is_in_segment_with(target, target_flags)
                    && (!is_called || self.has_code(addend));
                if !is_valid {
                    return damaged_table_error(TABLE);
                }
            }
            if relative > count {
                return damaged_table_error(TABLE);
            }
        }
        self.check_packed_relocations(dynamic)
    }

    /// Checks the packed table of relative relocations: the first and the last address of each entry must be in
    /// segments that the loader can write. Succeeds if there is no such table.
    fn check_packed_relocations(&self, dynamic: &Dynamic<'_>) -> Result<()> {
        const TABLE: &str = "packed table of relocations";
        let Some(address) = dynamic.value(DT_RELR) else {
            return Ok(());
        };
        let count = dynamic.value(DT_RELRSZ).unwrap_or(0) as usize / size_of::<u64>();
        let entries: &[U64<LittleEndian>] = self.read_array(address, count, TABLE)?;
        // An even entry is an address. The bits of an odd one, except the lowest, stand for the 63 words after it.
        let mut next = None;
        for entry in entries.iter().map(|entry| entry.get(LE)) {
            let (start, bits, words) = match (entry & 1, next) {
                (0, _) => (entry, 1, 1),
                (_, Some(next)) => (next, entry >> 1, 63),
                (_, None) => return damaged_table_error(TABLE),
            };
            let first_bit = bits.trailing_zeros();
            let last_bit = 63_u32.saturating_sub(bits.leading_zeros());
            let is_writable = |bit: u32| {
                let target: u64 = start.saturating_add(u64::from(bit) * 8);
                self.is_in_segment_with(target, PF_W.0)
            };
            // The first and the last address suffice: the bits span less than a page, and the loader maps whole pages
            // of a segment.
            if bits != 0 && !(is_writable(first_bit) && is_writable(last_bit)) {
                return damaged_table_error(TABLE);
            }
            next = Some(start.saturating_add(words * 8));
        }
        Ok(())
    }
}
