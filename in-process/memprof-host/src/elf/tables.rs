//! The tables of a shared library that the loader reads without checking them (gABI, "Dynamic Linking"). A
//! part of zeros, as a file has after the power failed while it was written, ends the process there.

mod code;
mod hashes;
mod versions;

use std::ops::Range;

use object::elf::{
    DT_FINI, DT_FINI_ARRAY, DT_FINI_ARRAYSZ, DT_INIT, DT_INIT_ARRAY, DT_INIT_ARRAYSZ, DT_JMPREL,
    DT_NEEDED, DT_NULL, DT_PLTRELSZ, DT_RELA, DT_RELACOUNT, DT_RELASZ, DT_STRSZ, DT_STRTAB,
    DT_SYMTAB, Dyn64, DynamicTag, FileHeader64, PF_W, PF_X, PT_DYNAMIC, PT_LOAD, ProgramHeader64,
    R_X86_64_IRELATIVE, R_X86_64_NONE, R_X86_64_RELATIVE, Rela64, SHT_DYNSYM, STT_SECTION, Sym64,
};
use object::endian::LittleEndian;
use object::pod::Pod;
use object::read::ReadRef;
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _, SectionHeader as _};

const LE: LittleEndian = LittleEndian;

type Result<T> = std::result::Result<T, String>;
type Segment = ProgramHeader64<LittleEndian>;

/// Checks each table.
///
/// # Errors
/// The table that is damaged.
pub(super) fn check(bytes: &[u8]) -> Result<()> {
    let header = FileHeader64::<LittleEndian>::parse(bytes).map_err(|error| error.to_string())?;
    let segments = header.program_headers(LE, bytes);
    let library = Library {
        bytes,
        segments: segments.map_err(|error| error.to_string())?,
    };
    library.check_functions()?;
    let dynamic = library.dynamic()?;
    let strings = library.strings(&dynamic)?;
    let needed = dynamic.all(DT_NEEDED);
    for name in needed.clone() {
        strings.name(name, "name of a needed library")?;
    }
    let counted = symbol_count(header, bytes);
    let symbols = library.symbols(&dynamic, &strings, counted)?;
    library.check_hashes(&dynamic, &strings, symbols)?;
    let entry = symbols[1..].iter().find(|symbol| {
        let name = strings.name(symbol.st_name.get(LE).into(), "table of symbols");
        name.is_ok_and(|name| name == b"memprof_plugin_entry")
    });
    let entry = entry.map(|entry| (entry.st_value.get(LE), entry.st_size.get(LE)));
    let arrays = [
        (DT_INIT_ARRAY, DT_INIT_ARRAYSZ),
        (DT_FINI_ARRAY, DT_FINI_ARRAYSZ),
    ];
    let arrays = arrays.map(|(place, size)| dynamic.one(place).zip(dynamic.one(size)));
    let called: Vec<_> = arrays
        .into_iter()
        .chain([entry])
        .flatten()
        .map(|(start, size)| start..start.saturating_add(size))
        .collect();
    library.check_relocations(&dynamic, &called, symbols.len())?;
    library.check_versions(&dynamic, &strings, symbols.len())?;
    for function in [DT_INIT, DT_FINI] {
        let address = dynamic.one(function);
        if address.is_some_and(|address| !library.has_code(address)) {
            return damaged("address of its first or last function");
        }
    }
    Ok(())
}

fn damaged<T>(table: &str) -> Result<T> {
    Err(format!(
        "it is damaged: its {table} is not as a linker writes it"
    ))
}

/// The number of dynamic symbols by the section headers, which a file may lack.
fn symbol_count(header: &FileHeader64<LittleEndian>, bytes: &[u8]) -> Option<usize> {
    let sections = header.section_headers(LE, bytes).ok()?;
    let mut sections = sections.iter();
    let symbols = sections.find(|section| section.sh_type(LE) == SHT_DYNSYM)?;
    Some(symbols.sh_size(LE) as usize / size_of::<Sym64<LittleEndian>>())
}

struct Library<'a> {
    bytes: &'a [u8],
    segments: &'a [Segment],
}

struct Dynamic<'a>(&'a [Dyn64<LittleEndian>]);

struct Strings<'a>(&'a [u8]);

impl Dynamic<'_> {
    fn all(&self, tag: DynamicTag) -> impl Iterator<Item = u64> + Clone {
        let entries = self.0.iter();
        entries
            .filter(move |entry| entry.d_tag(LE) == tag)
            .map(|entry| entry.d_val(LE))
    }

    fn one(&self, tag: DynamicTag) -> Option<u64> {
        self.all(tag).next()
    }
}

impl<'a> Strings<'a> {
    /// A name, which is not empty.
    fn name(&self, at: u64, table: &str) -> Result<&'a [u8]> {
        let rest = usize::try_from(at).ok().and_then(|at| self.0.get(at..));
        let name = rest.and_then(|rest| rest.split(|&byte| byte == 0).next());
        match name {
            Some(name) if !name.is_empty() => Ok(name),
            _ => damaged(table),
        }
    }
}

impl<'a> Library<'a> {
    fn loaded(&self) -> impl Iterator<Item = &'a Segment> {
        let loaded = |segment: &&Segment| segment.p_type(LE) == PT_LOAD;
        self.segments.iter().filter(loaded)
    }

    /// Whether `address` is in a segment with that flag.
    fn has(&self, address: u64, flag: u32) -> bool {
        self.loaded().any(|segment| {
            let inside = address.checked_sub(segment.p_vaddr(LE));
            segment.p_flags(LE).0 & flag != 0
                && inside.is_some_and(|inside| inside < segment.p_memsz(LE))
        })
    }

    /// The bytes of the file from an address to the end of its segment.
    fn from(&self, address: u64, table: &str) -> Result<&'a [u8]> {
        let found = self.loaded().find_map(|segment| {
            let inside = address.checked_sub(segment.p_vaddr(LE))?;
            segment
                .data(LE, self.bytes)
                .ok()?
                .get(usize::try_from(inside).ok()?..)
        });
        found.map_or_else(|| damaged(table), Ok)
    }

    fn slice<T: Pod>(&self, address: u64, count: usize, table: &str) -> Result<&'a [T]> {
        let bytes = self.from(address, table)?;
        bytes.read_slice_at(0, count).or_else(|()| damaged(table))
    }

    fn dynamic(&self) -> Result<Dynamic<'a>> {
        const TABLE: &str = "dynamic section";
        let mut segments = self.segments.iter();
        let Some(segment) = segments.find(|segment| segment.p_type(LE) == PT_DYNAMIC) else {
            return damaged(TABLE);
        };
        let count = segment.p_filesz(LE) as usize / size_of::<Dyn64<LittleEndian>>();
        let entries: &[Dyn64<LittleEndian>] = self.slice(segment.p_vaddr(LE), count, TABLE)?;
        match entries.iter().position(|entry| entry.d_tag(LE) == DT_NULL) {
            // The loader reads on to the end that it needs.
            None | Some(0) => damaged(TABLE),
            Some(end) => Ok(Dynamic(&entries[..end])),
        }
    }

    fn strings(&self, dynamic: &Dynamic<'_>) -> Result<Strings<'a>> {
        const TABLE: &str = "table of names";
        let place = dynamic.one(DT_STRTAB).zip(dynamic.one(DT_STRSZ));
        let Some((address, size)) = place else {
            return damaged(TABLE);
        };
        match self.slice(address, size as usize, TABLE)? {
            strings @ [0, .., 0] => Ok(Strings(strings)),
            _ => damaged(TABLE),
        }
    }

    /// All but the first have names.
    fn symbols(
        &self,
        dynamic: &Dynamic<'_>,
        strings: &Strings<'_>,
        counted: Option<usize>,
    ) -> Result<&'a [Sym64<LittleEndian>]> {
        const TABLE: &str = "table of symbols";
        let Some(address) = dynamic.one(DT_SYMTAB) else {
            return damaged(TABLE);
        };
        let count = match counted {
            Some(count) => count,
            // Linkers put the names behind it.
            None => {
                let end = dynamic.one(DT_STRTAB).unwrap_or(0);
                end.saturating_sub(address) as usize / size_of::<Sym64<LittleEndian>>()
            }
        };
        let symbols: &[Sym64<LittleEndian>] = self.slice(address, count, TABLE)?;
        if symbols.is_empty() {
            return damaged(TABLE);
        }
        for symbol in &symbols[1..] {
            // A section's symbol has no name.
            if symbol.st_info.st_type() != STT_SECTION {
                strings.name(symbol.st_name.get(LE).into(), TABLE)?;
            }
        }
        Ok(symbols)
    }

    /// `called` has the addresses of functions that are called when the library is loaded.
    fn check_relocations(
        &self,
        dynamic: &Dynamic<'_>,
        called: &[Range<u64>],
        symbols: usize,
    ) -> Result<()> {
        const TABLE: &str = "table of relocations";
        let relative = dynamic.one(DT_RELACOUNT).unwrap_or(0) as usize;
        let tables = [(DT_RELA, DT_RELASZ, relative), (DT_JMPREL, DT_PLTRELSZ, 0)];
        for (place, size, relative) in tables {
            let Some(address) = dynamic.one(place) else {
                continue;
            };
            let size = dynamic.one(size).unwrap_or(0) as usize;
            let count = size / size_of::<Rela64<LittleEndian>>();
            let entries: &[Rela64<LittleEndian>] = self.slice(address, count, TABLE)?;
            for (at, entry) in entries.iter().enumerate() {
                let kind = entry.r_type(LE, false);
                let addend = entry.r_addend.get(LE) as u64;
                let place = entry.r_offset.get(LE);
                let is_called = kind == R_X86_64_IRELATIVE
                    || kind == R_X86_64_RELATIVE
                        && self.has(addend, PF_X.0)
                        && called.iter().any(|range| range.contains(&place));
                let is_right = kind != R_X86_64_NONE
                    && (at >= relative || kind == R_X86_64_RELATIVE)
                    && (entry.r_sym(LE, false) as usize) < symbols
                    && self.has(place, PF_W.0)
                    && (!is_called || self.has_code(addend));
                if !is_right {
                    return damaged(TABLE);
                }
            }
            if relative > count {
                return damaged(TABLE);
            }
        }
        Ok(())
    }
}
