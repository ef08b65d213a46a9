//! The tables of a shared library that the loader reads without checking them (gABI, "Dynamic Linking"). A
//! part of zeros, as a file has after the power failed while it was written, ends the process there.

use std::ops::Range;

use object::elf::{
    DT_FINI, DT_FINI_ARRAY, DT_FINI_ARRAYSZ, DT_GNU_HASH, DT_INIT, DT_INIT_ARRAY, DT_INIT_ARRAYSZ,
    DT_JMPREL, DT_NEEDED, DT_NULL, DT_PLTRELSZ, DT_RELA, DT_RELACOUNT, DT_RELASZ, DT_STRSZ,
    DT_STRTAB, DT_SYMTAB, DT_VERNEED, DT_VERNEEDNUM, DT_VERSYM, Dyn64, DynamicTag, FileHeader64,
    GnuHashHeader, PF_W, PF_X, PT_DYNAMIC, PT_GNU_EH_FRAME, PT_LOAD, ProgramHeader64,
    R_X86_64_IRELATIVE, R_X86_64_NONE, R_X86_64_RELATIVE, Rela64, SHT_DYNSYM, STT_SECTION, Sym64,
    Vernaux, Verneed,
};
use object::endian::{I32, LittleEndian, U16, U32};
use object::pod::Pod;
use object::read::ReadRef;
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _, SectionHeader as _};

const LE: LittleEndian = LittleEndian;
const PAGE: usize = 4096;

/// The largest index of a symbol's version, without its flag (gABI, "Symbol Version Table").
const VERSION_INDEX: u16 = 0x7fff;

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

    /// Whether code may begin at `address`: not in a page of zeros, which are instructions that write to memory.
    fn has_code(&self, address: u64) -> bool {
        let mut segments = self.loaded();
        let place = segments.find_map(|segment| {
            let inside = address.checked_sub(segment.p_vaddr(LE))?;
            let is_code = segment.p_flags(LE).0 & PF_X.0 != 0 && inside < segment.p_filesz(LE);
            is_code.then(|| (segment.p_offset(LE) + inside) as usize)
        });
        let page = place.and_then(|place| {
            let start = place / PAGE * PAGE;
            self.bytes.get(start..self.bytes.len().min(start + PAGE))
        });
        page.is_some_and(|page| page.iter().any(|&byte| byte != 0))
    }

    /// No function has a page of zeros, which are instructions that write to memory. The unwind table names the
    /// functions, sorted (LSB, "`.eh_frame_hdr`"); between them there may be anything.
    fn check_functions(&self) -> Result<()> {
        const TABLE: &str = "unwind table";
        // Version 1; a pointer and the entries as all linkers encode them: 4 bytes each, from the table's start.
        const HEAD: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
        let mut tables = self.segments.iter();
        let Some(table) = tables.find(|segment| segment.p_type(LE) == PT_GNU_EH_FRAME) else {
            return Ok(());
        };
        let start = table.p_vaddr(LE);
        let bytes = self.from(start, TABLE)?;
        match bytes.get(..4) {
            Some(head) if head == HEAD => {}
            Some([1, ..]) => return Ok(()),
            _ => return damaged(TABLE),
        }
        let count = self.slice::<U32<LittleEndian>>(start.saturating_add(8), 1, TABLE)?[0].get(LE);
        let place = start.saturating_add(12);
        let entries: &[[I32<LittleEndian>; 2]] = self.slice(place, count as usize, TABLE)?;
        for [function, account] in entries {
            let place =
                |offset: &I32<LittleEndian>| start.wrapping_add_signed(offset.get(LE).into());
            let (function, account) = (place(function), place(account));
            let words: &[U32<LittleEndian>] = self.slice(account, 4, TABLE)?;
            // Its own size, the place of what it shares with others, the function's place from here, its size.
            let [size, _, begin, length] = [0, 1, 2, 3].map(|at| words[at].get(LE));
            let begin = account
                .wrapping_add(8)
                .wrapping_add_signed((begin as i32).into());
            if size == 0 || begin != function {
                return damaged(TABLE);
            }
            let end = function.saturating_add(length.into());
            let last = (length > 0).then(|| end - 1);
            let mut pages = (function..end).step_by(PAGE).chain(last);
            if !pages.all(|address| self.has_code(address)) {
                return damaged("code");
            }
        }
        Ok(())
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

    /// Each hash is that of its symbol, and each chain ends.
    fn check_hashes(
        &self,
        dynamic: &Dynamic<'_>,
        strings: &Strings<'_>,
        symbols: &[Sym64<LittleEndian>],
    ) -> Result<()> {
        const TABLE: &str = "table of hashes";
        let Some(address) = dynamic.one(DT_GNU_HASH) else {
            // A library for loaders of before 2006 has another table, which this one reads too.
            return Err("it has no DT_GNU_HASH; link it with -Wl,--hash-style=gnu".to_owned());
        };
        let header: &GnuHashHeader<LittleEndian> = &self.slice(address, 1, TABLE)?[0];
        let [buckets, first, bloom] = [
            header.bucket_count.get(LE),
            header.symbol_base.get(LE),
            header.bloom_count.get(LE),
        ]
        .map(|count| count as usize);
        if buckets == 0 || !bloom.is_power_of_two() {
            return damaged(TABLE);
        }
        let filter_at = address.saturating_add(size_of::<GnuHashHeader<LittleEndian>>() as u64);
        let filter: &[object::endian::U64<LittleEndian>] = self.slice(filter_at, bloom, TABLE)?;
        let heads_at = filter_at.saturating_add(8 * bloom as u64);
        let heads: &[U32<LittleEndian>] = self.slice(heads_at, buckets, TABLE)?;
        if heads.iter().all(|head| head.get(LE) == 0) {
            // It exports nothing.
            return Ok(());
        }
        let Some(exported) = symbols.get(first..) else {
            return damaged(TABLE);
        };
        let chains_at = heads_at.saturating_add(4 * buckets as u64);
        let chains: &[U32<LittleEndian>] = self.slice(chains_at, exported.len(), TABLE)?;
        let shift = header.bloom_shift.get(LE) & 63;
        for (at, (symbol, chain)) in exported.iter().zip(chains).enumerate() {
            let name = strings.name(symbol.st_name.get(LE).into(), TABLE)?;
            let hash = object::elf::gnu_hash(name);
            let bucket = hash as usize % buckets;
            let head = heads[bucket].get(LE) as usize;
            let word = filter[hash as usize / 64 % bloom].get(LE);
            let bits = 1 << (hash % 64) | 1 << (hash.checked_shr(shift).unwrap_or(0) % 64);
            let is_found = (first..=first + at).contains(&head) && word & bits == bits;
            if chain.get(LE) | 1 != hash | 1 || !is_found {
                return damaged(TABLE);
            }
        }
        let ends = chains.last().is_none_or(|last| last.get(LE) & 1 == 1);
        let known = |head: &U32<LittleEndian>| match head.get(LE) as usize {
            0 => true,
            head => (first..symbols.len()).contains(&head),
        };
        if ends && heads.iter().all(known) {
            Ok(())
        } else {
            damaged(TABLE)
        }
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

    /// The loader ends the process for a version of a library that is not needed.
    fn check_versions(
        &self,
        dynamic: &Dynamic<'_>,
        strings: &Strings<'_>,
        symbols: usize,
    ) -> Result<()> {
        const TABLE: &str = "table of versions";
        let needed: Vec<_> = dynamic
            .all(DT_NEEDED)
            .filter_map(|name| strings.name(name, TABLE).ok())
            .collect();
        let mut most = 1;
        let mut next = dynamic.one(DT_VERNEED);
        let count = dynamic.one(DT_VERNEEDNUM).unwrap_or(0);
        for at in 0..count {
            let Some(address) = next else {
                return damaged(TABLE);
            };
            let entry: &Verneed<LittleEndian> = &self.slice(address, 1, TABLE)?[0];
            let file = strings.name(entry.vn_file.get(LE).into(), TABLE)?;
            let versions = entry.vn_cnt.get(LE);
            if entry.vn_version.get(LE) != 1 || versions == 0 || !needed.contains(&file) {
                return damaged(TABLE);
            }
            let mut version = address.saturating_add(entry.vn_aux.get(LE).into());
            for at in 0..versions {
                let aux: &Vernaux<LittleEndian> = &self.slice(version, 1, TABLE)?[0];
                let name = strings.name(aux.vna_name.get(LE).into(), TABLE)?;
                let step = aux.vna_next.get(LE);
                if object::elf::hash(name) != aux.vna_hash.get(LE)
                    || (step == 0) != (at + 1 == versions)
                {
                    return damaged(TABLE);
                }
                most = most.max(aux.vna_other.get(LE).0 & VERSION_INDEX);
                version = version.saturating_add(step.into());
            }
            let step = entry.vn_next.get(LE);
            if (step == 0) != (at + 1 == count) {
                return damaged(TABLE);
            }
            next = Some(address.saturating_add(step.into()));
        }
        let Some(address) = dynamic.one(DT_VERSYM) else {
            return Ok(());
        };
        let versions: &[U16<LittleEndian>] = self.slice(address, symbols, TABLE)?;
        let has_own = dynamic.one(object::elf::DT_VERDEF).is_some();
        let known = |version: &U16<LittleEndian>| version.get(LE) & VERSION_INDEX <= most;
        if has_own || versions.iter().all(known) {
            Ok(())
        } else {
            damaged(TABLE)
        }
    }
}
