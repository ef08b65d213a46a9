//! An ELF object as it is loaded: its imports, and a look-up of what it defines (elf.h).

use std::ffi::CStr;
use std::mem;
use std::ptr;

use libc::{Elf64_Ehdr, Elf64_Phdr, Elf64_Rela, Elf64_Sym};

const DT_NULL: usize = 0;
const DT_PLTRELSZ: usize = 2;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;
const DT_SONAME: usize = 14;
const DT_JMPREL: usize = 23;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const DT_VERSYM: usize = 0x6fff_fff0;
const DT_VERDEF: usize = 0x6fff_fffc;
const DT_VERNEED: usize = 0x6fff_fffe;

const R_X86_64_64: u64 = 1;
const R_X86_64_GLOB_DAT: u64 = 6;
const R_X86_64_JUMP_SLOT: u64 = 7;

const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;

/// The bit of a `DT_VERSYM` entry that hides a definition from references without a version.
const VERSION_HIDDEN: u16 = 0x8000;
const PAGE_BYTES: usize = 4096;
/// How far below its code an object's header is looked for: ten times the loader's size.
const HEADER_SCAN_LIMIT: usize = 4 << 20;

/// Reads a value at an address that an object's tables, or the loader's list, lead to.
pub(super) fn read<T: Copy>(address: usize) -> T {
    // SAFETY: who made the `Object` or `LinkMap` promised that it is loaded; the linker and the loader wrote its
    // tables, which name nothing outside of it.
    unsafe { ptr::read_volatile(address as *const T) }
}

/// Whether the string at that address is `text`.
pub(super) fn is_text(address: usize, text: &CStr) -> bool {
    is_same_text(address, text.as_ptr().addr())
}

fn is_same_text(mut one: usize, mut other: usize) -> bool {
    loop {
        let byte: u8 = read(one);
        if byte != read::<u8>(other) {
            return false;
        }
        if byte == 0 {
            return true;
        }
        one += 1;
        other += 1;
    }
}

/// The hash of `DT_GNU_HASH`.
fn gnu_hash(mut name: usize) -> u32 {
    let mut hash = 5381_u32;
    loop {
        match read::<u8>(name) {
            0 => return hash,
            byte => hash = hash.wrapping_mul(33).wrapping_add(byte.into()),
        }
        name += 1;
    }
}

/// A version that a reference names: addresses of two strings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    pub(super) name: usize,
    /// The soname of the object that the reference was linked to.
    pub(super) file: usize,
}

/// A versioned function or variable of another object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Import {
    /// The address of its name.
    pub(super) name: usize,
    pub(super) version: Version,
    /// The address of the word that the loader filled with its address.
    pub(super) slot: usize,
}

/// A symbol that an object defines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Definition {
    pub(super) address: usize,
    kind: u8,
}

/// An object that stays loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    /// What is added to the addresses in its file.
    base: usize,
    dynamic: usize,
}

impl Object {
    /// # Safety
    /// An object is loaded with that base and dynamic section, is relocated, and stays.
    pub(super) unsafe fn new(base: usize, dynamic: usize) -> Self {
        Self { base, dynamic }
    }

    /// The object with that address in its code. `None` if there is no header below it.
    ///
    /// # Safety
    /// The address is in the code of an object that stays loaded, and whose header is mapped without a gap below.
    pub(super) unsafe fn around(address: usize) -> Option<Self> {
        let last = address & !(PAGE_BYTES - 1);
        let mut pages = (0..HEADER_SCAN_LIMIT / PAGE_BYTES).map(|page| last - page * PAGE_BYTES);
        let header = pages.find(|page| read::<[u8; 4]>(*page) == *b"\x7fELF")?;
        let segment =
            |kind| program_headers(header).find(|segment: &Elf64_Phdr| segment.p_type == kind);
        let base = header.wrapping_sub(segment(libc::PT_LOAD)?.p_vaddr as usize);
        let dynamic = base.wrapping_add(segment(libc::PT_DYNAMIC)?.p_vaddr as usize);
        Some(Self { base, dynamic })
    }

    pub(super) fn is_named(&self, soname: &CStr) -> bool {
        self.is_same_name(soname.as_ptr().addr())
    }

    /// The same, for the address of a name.
    pub(super) fn is_same_name(&self, soname: usize) -> bool {
        self.entry(DT_SONAME)
            .and_then(|offset| self.text(offset))
            .is_some_and(|name| is_same_text(name, soname))
    }

    /// The imports by which code calls or data refers to other objects.
    pub(super) fn imports(&self) -> impl Iterator<Item = Import> {
        let tables = [(DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)];
        tables
            .into_iter()
            .filter_map(|(table, size)| Some((self.address(table)?, self.entry(size)?)))
            .flat_map(|(table, size)| (table..table + size).step_by(size_of::<Elf64_Rela>()))
            .filter_map(|relocation| self.import(read(relocation)))
    }

    fn import(&self, relocation: Elf64_Rela) -> Option<Import> {
        match relocation.r_info & 0xffff_ffff {
            R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT => {}
            R_X86_64_64 if relocation.r_addend == 0 => {}
            _ => return None,
        }
        let index = (relocation.r_info >> 32) as usize;
        let symbol = self.symbol(index)?;
        if index == 0 || symbol.st_shndx != 0 {
            return None;
        }
        Some(Import {
            name: self.text(symbol.st_name as usize)?,
            version: self.needed_version(self.version_index(index)?)?,
            slot: self.base + relocation.r_offset as usize,
        })
    }

    /// The address of the function that an import names, as this object defines it in that version.
    pub(super) fn find_function(&self, import: &Import) -> Option<usize> {
        let version = self.defined_version(import.version.name)?;
        let found = self.find_version(import.name, Some(version))?;
        match found.kind {
            STT_FUNC => Some(found.address),
            STT_GNU_IFUNC => {
                // SAFETY: a resolver of this object, which is relocated; on x86-64 the loader passes nothing.
                let resolve: extern "C" fn() -> usize = unsafe { mem::transmute(found.address) };
                Some(resolve())
            }
            // A variable may be in the program, which copied it (R_X86_64_COPY).
            _ => None,
        }
    }

    /// The definition of a name in any version.
    pub(super) fn find(&self, name: &CStr) -> Option<Definition> {
        self.find_version(name.as_ptr().addr(), None)
    }

    fn find_version(&self, name: usize, version: Option<u16>) -> Option<Definition> {
        let table = self.address(DT_GNU_HASH)?;
        let word = |index: usize| read::<u32>(table + index * 4) as usize;
        let (bucket_count, first_hashed, filter_words) = (word(0), word(1), word(2));
        let buckets = 4 + filter_words * 2;
        let chains = buckets + bucket_count;
        let hash = gnu_hash(name);
        let mut index = word(buckets + hash as usize % bucket_count);
        if index == 0 {
            return None;
        }
        loop {
            let chained = word(chains + index - first_hashed) as u32;
            let symbol = self.symbol(index)?;
            if chained | 1 == hash | 1
                && symbol.st_shndx != 0
                && is_same_text(self.text(symbol.st_name as usize)?, name)
                && version.is_none_or(|version| self.version_index(index) == Some(version))
            {
                return Some(Definition {
                    address: self.base + symbol.st_value as usize,
                    kind: symbol.st_info & 0xf,
                });
            }
            // The last bit ends a chain.
            if chained & 1 != 0 {
                return None;
            }
            index += 1;
        }
    }

    fn symbol(&self, index: usize) -> Option<Elf64_Sym> {
        Some(read(
            self.address(DT_SYMTAB)? + index * size_of::<Elf64_Sym>(),
        ))
    }

    fn version_index(&self, symbol: usize) -> Option<u16> {
        let index: u16 = read(self.address(DT_VERSYM)? + symbol * 2);
        Some(index & !VERSION_HIDDEN)
    }

    /// Looks for a version in `DT_VERNEED`: `Elf64_Verneed` are chained, each with a chain of `Elf64_Vernaux`.
    fn needed_version(&self, index: u16) -> Option<Version> {
        let mut file = self.address(DT_VERNEED)?;
        loop {
            let mut version = file + read::<u32>(file + 8) as usize;
            loop {
                if read::<u16>(version + 6) & !VERSION_HIDDEN == index {
                    return Some(Version {
                        name: self.text(read::<u32>(version + 8) as usize)?,
                        file: self.text(read::<u32>(file + 4) as usize)?,
                    });
                }
                match read::<u32>(version + 12) {
                    0 => break,
                    next => version += next as usize,
                }
            }
            match read::<u32>(file + 12) {
                0 => return None,
                next => file += next as usize,
            }
        }
    }

    /// The index of a version in `DT_VERDEF`: `Elf64_Verdef` are chained, each with its `Elf64_Verdaux`.
    fn defined_version(&self, name: usize) -> Option<u16> {
        let mut version = self.address(DT_VERDEF)?;
        loop {
            let own_name = version + read::<u32>(version + 12) as usize;
            if is_same_text(self.text(read::<u32>(own_name) as usize)?, name) {
                return Some(read(version + 4));
            }
            match read::<u32>(version + 16) {
                0 => return None,
                next => version += next as usize,
            }
        }
    }

    fn text(&self, offset: usize) -> Option<usize> {
        Some(self.address(DT_STRTAB)? + offset)
    }

    /// An address in the dynamic section: the loader adds the base to some of them in place.
    fn address(&self, tag: usize) -> Option<usize> {
        let value = self.entry(tag)?;
        Some(match value < self.base {
            true => self.base + value,
            false => value,
        })
    }

    fn entry(&self, tag: usize) -> Option<usize> {
        let mut entry = self.dynamic;
        loop {
            match read::<[usize; 2]>(entry) {
                [DT_NULL, _] => return None,
                [found, value] if found == tag => return Some(value),
                _ => entry += size_of::<[usize; 2]>(),
            }
        }
    }
}

/// The program headers of the object with that ELF header.
pub(super) fn program_headers(header: usize) -> impl Iterator<Item = Elf64_Phdr> {
    let elf: Elf64_Ehdr = read(header);
    let first = header + elf.e_phoff as usize;
    (0..usize::from(elf.e_phnum)).map(move |index| read(first + index * size_of::<Elf64_Phdr>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_libc_are_found_in_its_own_table() {
        let check = |name: &CStr, function: usize| {
            // SAFETY: code of libc, which stays.
            let libc = unsafe { Object::around(function) }.unwrap();
            assert!(libc.is_named(c"libc.so.6"));
            assert!(!libc.is_named(c"libc.so"));
            let base_version = libc.defined_version(c"GLIBC_2.2.5".as_ptr().addr());
            let found = |version| libc.find_version(name.as_ptr().addr(), version);
            assert_eq!(found(base_version).unwrap().address, function);
            assert_eq!(libc.find(name).unwrap().address, function);
            let other_version = libc.defined_version(c"GLIBC_2.3".as_ptr().addr());
            assert!(other_version.is_some() && found(other_version).is_none());
        };
        check(c"getpid", libc::getpid as *const () as usize);
        check(c"mkdir", libc::mkdir as *const () as usize);
        // SAFETY: as above.
        let libc = unsafe { Object::around(libc::getpid as *const () as usize) }.unwrap();
        assert!(libc.find(c"memprof_plugin_entry").is_none());
        assert_eq!(libc.defined_version(c"GLIBC_1".as_ptr().addr()), None);
    }

    #[test]
    fn the_loader_has_its_list() {
        let loader = crate::libc_symbol(c"__tls_get_addr").unwrap();
        // SAFETY: code of the loader.
        let loader = unsafe { Object::around(loader.addr().get()) }.unwrap();
        assert!(loader.is_named(c"ld-linux-x86-64.so.2"));
        assert!(loader.find(c"_r_debug").is_some());
    }
}
