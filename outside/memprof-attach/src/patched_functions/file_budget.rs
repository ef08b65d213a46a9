//! Limit of the bytes that are read of a process's files, which may be sparse and of any length.

use std::fs::File;

use object::read::elf::{FileHeader, SectionHeader};
use object::{LittleEndian, ReadCache, elf};

/// Bytes of all files of a process together: more than the code, symbols and names of the largest browser.
const MAX_BYTES: u64 = 1 << 30;

/// Bytes that may still be read.
#[derive(Debug)]
pub(super) struct FileBudget {
    left: u64,
}

impl FileBudget {
    pub(super) fn new() -> Self {
        Self { left: MAX_BYTES }
    }

    /// Charges the sections of a file that are read as a whole: symbols, names, and loaded sections. If too little is
    /// left, charges nothing and returns false.
    ///
    /// # Errors
    /// The file is no ELF file of this machine.
    pub(super) fn take(&mut self, file: &ReadCache<File>) -> object::Result<bool> {
        let header = elf::FileHeader64::<LittleEndian>::parse(file)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, file)?;
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

    /// Whether this test's program fits; `size` is that of its symbol table.
    fn fits(budget: &mut FileBudget, size: Option<u64>) -> bool {
        let mut bytes = fs::read("/proc/self/exe").unwrap();
        if let Some(size) = size {
            let header = elf::FileHeader64::<LittleEndian>::parse(&*bytes).unwrap();
            let sections = header.sections(LittleEndian, &*bytes).unwrap();
            let is_symbols = |section: &elf::SectionHeader64<_>| {
                section.sh_type(LittleEndian) == elf::SHT_SYMTAB
            };
            let index = sections.iter().position(is_symbols).unwrap();
            let start = header.e_shoff.get(LittleEndian) as usize + index * 64;
            // `sh_size`.
            bytes[start + 32..start + 40].copy_from_slice(&size.to_le_bytes());
        }
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        budget.take(&ReadCache::new(file)).unwrap()
    }

    #[test]
    fn symbols_of_gigabytes_are_not_read() {
        let mut budget = FileBudget::new();
        assert!(!fits(&mut budget, Some(6 << 30)));
        assert!(!fits(&mut budget, Some(u64::MAX)));
        assert!(fits(&mut budget, None));
        // All files together.
        assert!(fits(&mut budget, Some(600 << 20)));
        assert!(!fits(&mut budget, Some(600 << 20)));
    }
}
