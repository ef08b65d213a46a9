//! Checks that a file can be passed to dlopen(3) without danger. There, a truncated shared library ends the process by
//! SIGBUS, so every range in its headers must lie within the file; and a block of zeros ends it by SIGSEGV, so every
//! table that the loader reads is checked.

mod tables;

use object::Endianness;
use object::elf::{
    DF_1_NODELETE, DF_SYMBOLIC, DT_FLAGS, DT_FLAGS_1, DynamicTag, ELFMAG, ET_DYN, FileHeader64,
    PT_LOAD, SHT_DYNSYM, SHT_NOBITS, STB_GLOBAL,
};
use object::read::SymbolIndex;
use object::read::elf::{Dyn as _, FileHeader, ProgramHeader, SectionHeader, Sym as _};

pub(crate) use tables::{LinkInfo, is_for_another_machine};

/// Start of the error's text for a file of another kind or architecture. The loader recognizes it, because copying the
/// file again helps only if it is damaged.
pub(crate) const NOT_A_PLUGIN: &str = "it is not a shared library for this machine";

/// Checks that the bytes are a whole shared library for this architecture, whose tables the loader can use. The error
/// describes the first fault.
pub(crate) fn check_loadable(bytes: &[u8]) -> Result<(), String> {
    if bytes.is_empty() {
        return Err("it is empty".to_owned());
    }
    let magic = &ELFMAG[..bytes.len().min(ELFMAG.len())];
    if bytes.starts_with(b"!<arch>") {
        return Err(format!("{NOT_A_PLUGIN}, but a static one"));
    }
    if !bytes.starts_with(magic) {
        return Err(NOT_A_PLUGIN.to_owned());
    }
    if is_for_another_machine(bytes) {
        return Err(format!("{NOT_A_PLUGIN}, but one for another architecture"));
    }
    let invalid_elf = |error: object::Error| format!("it is not a whole ELF file: {error}");
    let header = FileHeader64::<Endianness>::parse(bytes).map_err(invalid_elf)?;
    let endian = header.endian().map_err(invalid_elf)?;
    if endian != Endianness::default() {
        return Err(format!("{NOT_A_PLUGIN}, but one for another architecture"));
    }
    if header.e_type(endian) != ET_DYN {
        return Err(NOT_A_PLUGIN.to_owned());
    }
    let check_inside = |part: &str, offset: u64, size: u64| match offset.checked_add(size) {
        Some(end) if end <= bytes.len() as u64 => Ok(()),
        _ => Err(format!(
            "it is truncated: a {part} ends beyond its {} bytes",
            bytes.len()
        )),
    };
    let segments = header.program_headers(endian, bytes).map_err(invalid_elf)?;
    if !segments
        .iter()
        .any(|segment| segment.p_type(endian) == PT_LOAD)
    {
        return Err("it has nothing to load".to_owned());
    }
    for segment in segments {
        check_inside(
            "segment",
            segment.p_offset(endian),
            segment.p_filesz(endian),
        )?;
    }
    for section in header.section_headers(endian, bytes).map_err(invalid_elf)? {
        if section.sh_type(endian) != SHT_NOBITS {
            check_inside(
                "section",
                section.sh_offset(endian),
                section.sh_size(endian),
            )?;
        }
    }
    tables::check_tables(bytes)
}

/// Returns whether the loader never unloads the library (`ld -z nodelete`). False for a file that is not ELF.
pub(crate) fn stays_loaded(bytes: &[u8]) -> bool {
    has_dynamic_flag(bytes, DT_FLAGS_1, DF_1_NODELETE.0)
}

/// Returns the name of the first function or variable of the library that the program would replace by exporting the
/// same name: a relocation refers to it by its name. `None` if there is none, the library was linked with `-Bsymbolic`,
/// or its sections are missing.
pub(crate) fn find_interposable_symbol(bytes: &[u8]) -> Option<String> {
    if has_dynamic_flag(bytes, DT_FLAGS, DF_SYMBOLIC.0) {
        return None;
    }
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, bytes).ok()?;
    let symbols = sections.symbols(endian, bytes, SHT_DYNSYM).ok()?;
    let relocations = sections
        .iter()
        .filter_map(|section| section.rela(endian, bytes).ok()?);
    let mut used = relocations.flat_map(|(relocations, _)| relocations);
    used.find_map(|relocation| {
        let index = SymbolIndex(relocation.r_sym(endian, false) as usize);
        let symbol = symbols.symbol(index).ok()?;
        let is_own = !symbol.is_undefined(endian) && symbol.st_bind() == STB_GLOBAL;
        let name = is_own.then(|| symbols.symbol_name(endian, symbol).ok())??;
        Some(String::from_utf8_lossy(name).into_owned())
    })
}

/// Returns whether the first entry `tag` of the dynamic section has this bit. False if there is none, or the headers
/// are damaged.
fn has_dynamic_flag(bytes: &[u8], tag: DynamicTag, flag: u64) -> bool {
    let find = || -> object::Result<bool> {
        let header = FileHeader64::<Endianness>::parse(bytes)?;
        let endian = header.endian()?;
        for segment in header.program_headers(endian, bytes)? {
            for entry in segment.dynamic(endian, bytes)?.unwrap_or_default() {
                if entry.d_tag(endian) == tag {
                    return Ok(entry.d_val(endian) & flag != 0);
                }
            }
        }
        Ok(false)
    };
    find().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use object::Endianness;
    use object::elf::FileHeader64;
    use object::read::elf::{FileHeader as _, SectionHeader as _};

    use super::check_loadable;

    /// Reads the C library of this process.
    fn library() -> Vec<u8> {
        let objects = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = objects
            .lines()
            .find_map(|line| {
                line.split_once('/')?
                    .1
                    .contains("libc.so")
                    .then(|| line.split_once('/').unwrap().1)
            })
            .unwrap();
        std::fs::read(format!("/{libc}")).unwrap()
    }

    #[test]
    fn complete_library_is_loadable() {
        assert_eq!(check_loadable(&library()), Ok(()));
    }

    #[test]
    fn truncated_library_is_not_loadable() {
        let library = library();
        for part in 0..200 {
            let cut = &library[..library.len() * part / 200];
            assert!(
                check_loadable(cut).is_err(),
                "{} of {} bytes",
                cut.len(),
                library.len()
            );
        }
        assert!(check_loadable(&library[..library.len() - 1]).is_err());
    }

    /// Clears each page of the tables in turn.
    #[test]
    fn library_with_zeroed_table_page_is_not_loadable() {
        const PAGE: usize = 4096;
        let library = library();
        let header = FileHeader64::<Endianness>::parse(&*library).unwrap();
        let (endian, sections) = (
            header.endian().unwrap(),
            header.sections(Endianness::Little, &*library),
        );
        let sections = sections.unwrap();
        let tables = [
            ".dynsym",
            ".dynstr",
            ".gnu.hash",
            ".rela.dyn",
            ".dynamic",
            ".gnu.version_r",
            ".eh_frame",
            ".eh_frame_hdr",
        ];
        for table in tables {
            let (_, section) = sections.section_by_name(endian, table.as_bytes()).unwrap();
            let (start, size) = (
                section.sh_offset(endian) as usize,
                section.sh_size(endian) as usize,
            );
            let pages = (start / PAGE)..(start + size).div_ceil(PAGE);
            for page in pages.map(|page| page * PAGE) {
                let mut copy = library.clone();
                let end = copy.len().min(page + PAGE);
                copy[page..end].fill(0);
                let result = check_loadable(&copy);
                assert!(result.is_err(), "{table}, {page:#x}");
            }
        }
    }

    #[test]
    fn error_names_fault_of_other_file() {
        let library = library();
        let patched = |index: usize, byte: u8| {
            let mut copy = library.clone();
            copy[index] = byte;
            copy
        };
        let check = |bytes: &[u8], expected: &str| {
            let error = check_loadable(bytes).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check(b"#!/bin/sh\n", "not a shared library");
        check(b"\x7fEL\n", "not a shared library");
        check(b"\x7fE", "not a whole ELF file");
        check(b"", "it is empty");
        check(&patched(18, 183), "another architecture");
        check(&patched(16, 1), "not a shared library");
        check(&patched(4, 1), "another architecture");
        check(&patched(5, 2), "another architecture");
        check(&patched(6, 9), "not a whole ELF file");
    }
}
