//! Limit of the bytes that are read of a process's files, which may be sparse and of any length.

use std::io::{Read, Seek};

use object::read::elf::{FileHeader, SectionHeader};
use object::{LittleEndian, ReadCache, elf};

/// Bytes of all files of a process together: more than the code, symbols and names of the largest browser.
const MAX_BYTES: u64 = 1 << 30;
/// Largest symbol table, in bytes: 4 Mi symbols, twice as many as the largest browser has. It is read as a whole.
const MAX_TABLE_BYTES: u64 = (4 << 20) * size_of::<elf::Sym64<LittleEndian>>() as u64;

/// Bytes that may still be read.
#[derive(Debug)]
pub(crate) struct FileBudget {
    left: u64,
}

impl FileBudget {
    /// Creates a budget of [`MAX_BYTES`] for all files of a process.
    pub(crate) fn new() -> Self {
        Self { left: MAX_BYTES }
    }

    /// Charges the sections of a file that may be read: symbols, names, and loaded sections. If too little is left, or
    /// a symbol table is too large, charges nothing and returns false.
    ///
    /// # Errors
    /// The file is no ELF file of this machine.
    pub(crate) fn charge<R: Read + Seek>(&mut self, file: &ReadCache<R>) -> object::Result<bool> {
        let header = elf::FileHeader64::<LittleEndian>::parse(file)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, file)?;
        let mut tables = sections.iter().filter(|section| {
            [elf::SHT_SYMTAB, elf::SHT_DYNSYM].contains(&section.sh_type(endian))
        });
        if tables.any(|table| table.sh_size(endian) > MAX_TABLE_BYTES) {
            return Ok(false);
        }
        let sizes = sections.iter().filter_map(|section| {
            let is_read = section.sh_flags(endian).contains(elf::SHF_ALLOC)
                || [elf::SHT_SYMTAB, elf::SHT_STRTAB].contains(&section.sh_type(endian));
            let has_bytes = section.sh_type(endian) != elf::SHT_NOBITS;
            (is_read && has_bytes).then(|| section.sh_size(endian))
        });
        let size = sizes.fold(0, u64::saturating_add);
        let rest = self.left.checked_sub(size);
        self.left = rest.unwrap_or(self.left);
        Ok(rest.is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Takes this test's program from the budget, as if its first section of `kind` had `size` bytes. Returns whether
    /// it fits.
    fn fits(budget: &mut FileBudget, kind: elf::SectionType, size: u64) -> bool {
        let mut bytes = fs::read("/proc/self/exe").unwrap();
        let header = elf::FileHeader64::<LittleEndian>::parse(&*bytes).unwrap();
        let sections = header.sections(LittleEndian, &*bytes).unwrap();
        let mut kinds = sections.iter().map(|section| section.sh_type(LittleEndian));
        let index = kinds.position(|each| each == kind).unwrap();
        let start = header.e_shoff.get(LittleEndian) as usize + index * 64;
        // `sh_size`.
        bytes[start + 32..start + 40].copy_from_slice(&size.to_le_bytes());
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        budget.charge(&ReadCache::new(file)).unwrap()
    }

    #[test]
    fn sections_of_gigabytes_are_not_read() {
        let check = |kind, size, expected| {
            let mut budget = FileBudget::new();
            assert_eq!(fits(&mut budget, kind, size), expected, "{kind:?} {size}");
            budget
        };
        for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM, elf::SHT_STRTAB] {
            check(kind, 24, true);
            check(kind, 6 << 30, false);
            check(kind, u64::MAX, false);
        }
        check(elf::SHT_SYMTAB, 90 << 20, true);
        check(elf::SHT_SYMTAB, 100 << 20, false);
        check(elf::SHT_DYNSYM, 100 << 20, false);
        // All files together.
        let mut budget = check(elf::SHT_STRTAB, 600 << 20, true);
        assert!(!fits(&mut budget, elf::SHT_STRTAB, 600 << 20));
    }
}
