//! Entries of the dynamic section that say which libraries the loader reads with a file, and where it looks for them.

use object::elf::{
    DF_1_NODEFLIB, DT_AUXILIARY, DT_FILTER, DT_FLAGS_1, DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_SONAME,
    ELFCLASS64, ELFDATA2LSB, ELFMAG, EM_X86_64, FileHeader64,
};
use object::read::elf::FileHeader as _;

use super::{LE, Library};

/// Names and search paths in a file, as the linker wrote them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkInfo {
    /// Libraries that are loaded with the file, in the loader's order. Those that it filters (`ld --filter`,
    /// `ld --auxiliary`) are among them.
    pub(crate) needed: Vec<Vec<u8>>,
    pub(crate) soname: Option<Vec<u8>>,
    /// Libraries whose versions its symbols need. Most are in `needed`, but `patchelf --remove-needed` leaves others.
    pub(crate) versioned: Vec<Vec<u8>>,
    /// List of directories for its own libraries and for those that they need. `None` also if there is a runpath, with
    /// which the loader ignores it.
    pub(crate) rpath: Option<Vec<u8>>,
    /// List of directories for its own libraries.
    pub(crate) runpath: Option<Vec<u8>>,
    /// Whether its libraries are not searched for in the system's directories (`ld -z nodefaultlib`).
    pub(crate) ignores_system_directories: bool,
}

impl LinkInfo {
    /// Reads the dynamic section of a library or program. Empty if the file is damaged.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        Self::parse(bytes).unwrap_or_default()
    }

    /// Reads the dynamic section of a library or program. `None` if the file is damaged.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let header = FileHeader64::parse(bytes).ok()?;
        let segments = header.program_headers(LE, bytes).ok()?;
        let library = Library { bytes, segments };
        let dynamic = library.dynamic_section().ok()?;
        let strings = library.string_table(&dynamic).ok()?;
        let text = |offset| strings.read_name(offset, "").ok().map(<[u8]>::to_owned);
        // The loader takes the last entry of several, and an empty list for none.
        let last = |tag| dynamic.values(tag).last().and_then(text);
        let has_runpath = dynamic.value(DT_RUNPATH).is_some();
        let tags = [DT_NEEDED, DT_AUXILIARY, DT_FILTER];
        let flags = dynamic.value(DT_FLAGS_1).unwrap_or(0);
        let mut versioned = Vec::new();
        // An error is ignored here, because `check_versions` refuses a damaged table.
        let _ = library
            .visit_versioned_files(&dynamic, &strings, |file| versioned.push(file.to_owned()));
        Some(Self {
            needed: tags
                .into_iter()
                .flat_map(|tag| dynamic.values(tag).filter_map(text))
                .collect(),
            soname: last(DT_SONAME),
            versioned,
            rpath: last(DT_RPATH).filter(|_| !has_runpath),
            runpath: last(DT_RUNPATH),
            ignores_system_directories: flags & DF_1_NODEFLIB.0 != 0,
        })
    }
}

/// Returns whether a file is ELF of another word size or architecture: the loader skips it and tries the next path.
/// False for a file that is not ELF, and for one of another byte order but the right word size: the loader refuses
/// both.
pub(crate) fn is_for_another_machine(bytes: &[u8]) -> bool {
    let Some(identity) = bytes.get(..20).filter(|start| start.starts_with(&ELFMAG)) else {
        return false;
    };
    // `e_machine` is at offset 18; `e_ident` has the class at 4 (`EI_CLASS`) and the byte order at 5 (`EI_DATA`).
    let machine = u16::from_le_bytes([identity[18], identity[19]]);
    identity[4] != ELFCLASS64.0 || identity[5] == ELFDATA2LSB.0 && machine != EM_X86_64.0
}
