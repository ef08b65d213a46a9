//! A loaded ELF object: its imports, and lookup in its symbol table (elf.h).

use std::ffi::CStr;
use std::mem;
use std::ptr;
use std::slice;

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

/// Bit of a `DT_VERSYM` entry that hides a definition from references without a version.
const VERSION_HIDDEN: u16 = 0x8000;
const PAGE_BYTES: usize = 4096;
/// Maximum distance between an address in code and the header of its object: ten times the size of the loader.
const HEADER_SCAN_LIMIT: usize = 4 << 20;

/// Reads a value from an object's tables or from the loader's list. The address is not checked: it must come from an
/// `Object` or a `LinkMap`. The read is volatile, so that the compiler does not turn a loop of reads into a call of
/// strlen or memcmp, which the library cannot call yet.
pub(super) fn read_memory<T: Copy>(address: usize) -> T {
    // SAFETY: the creator of the `Object` or `LinkMap` promised that it is loaded. The linker and the loader wrote its
    // tables, which contain only addresses within the object.
    unsafe { ptr::read_volatile(address as *const T) }
}

/// Returns whether the NUL-terminated string at `address` equals `text`.
pub(super) fn is_string_at(address: usize, text: &CStr) -> bool {
    are_strings_equal(address, text.as_ptr().addr())
}

/// Returns whether two NUL-terminated strings, given by their addresses, are equal.
fn are_strings_equal(mut one: usize, mut other: usize) -> bool {
    loop {
        let byte: u8 = read_memory(one);
        if byte != read_memory::<u8>(other) {
            return false;
        }
        if byte == 0 {
            return true;
        }
        one += 1;
        other += 1;
    }
}

/// Returns the hash of the NUL-terminated string at the address `name`, as `DT_GNU_HASH` uses it: Bernstein's, which
/// starts with 5381 and multiplies by 33.
fn gnu_hash(mut name: usize) -> u32 {
    let mut hash = 5381_u32;
    loop {
        match read_memory::<u8>(name) {
            0 => return hash,
            byte => hash = hash.wrapping_mul(33).wrapping_add(byte.into()),
        }
        name += 1;
    }
}

/// Symbol version that a reference names. Both fields are addresses of strings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    /// Name of the version, such as `GLIBC_2.2.5`.
    pub(super) name: usize,
    /// Soname of the object to which the reference was linked.
    pub(super) file: usize,
}

/// A reference to a versioned function or variable that another object defines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Import {
    /// Address of its name.
    pub(super) name: usize,
    pub(super) version: Version,
    /// Address of the slot that the loader filled with the symbol's address.
    pub(super) slot: usize,
}

/// A symbol that an object defines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Definition {
    pub(crate) address: usize,
    /// Type of the symbol, such as `STT_FUNC`.
    kind: u8,
}

impl Definition {
    /// Returns whether this is an indirect function (IFUNC), whose address is that of its resolver.
    pub(crate) fn is_indirect(self) -> bool {
        self.kind == STT_GNU_IFUNC
    }

    /// Returns the address of the function. If it is an indirect function (IFUNC), calls its resolver, which returns
    /// the address. `None` if the symbol is not a function, or if the resolver finds none.
    fn resolve_function(self) -> Option<usize> {
        match self.kind {
            STT_FUNC => Some(self.address),
            STT_GNU_IFUNC => {
                // SAFETY: a resolver of an object that is relocated; on x86-64 the loader passes nothing.
                let resolve: extern "C" fn() -> usize = unsafe { mem::transmute(self.address) };
                Some(resolve()).filter(|function| *function != 0)
            }
            // A variable may be in the program, which copied it (R_X86_64_COPY).
            _ => None,
        }
    }
}

/// An object that stays loaded while this is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    /// Difference between an address in memory and the virtual address in the file.
    base: usize,
    /// Address of the dynamic section.
    dynamic: usize,
}

impl Object {
    /// Wraps a loaded object, given by its load address and the address of its dynamic section.
    ///
    /// # Safety
    /// A loaded and relocated object has this base and dynamic section, and stays loaded while the result is used.
    pub(super) unsafe fn new(base: usize, dynamic: usize) -> Self {
        Self { base, dynamic }
    }

    /// Wraps an entry of the loader's list. `None` if it has no dynamic section.
    ///
    /// # Safety
    /// `entry` is one that `dl_iterate_phdr(3)` passes to a callback, which is running.
    pub(crate) unsafe fn from_list_entry(entry: &libc::dl_phdr_info) -> Option<Self> {
        let base = entry.dlpi_addr as usize;
        // SAFETY: dl_iterate_phdr(3): the object's program headers, which are mapped as long as it is loaded.
        let headers = unsafe { slice::from_raw_parts(entry.dlpi_phdr, entry.dlpi_phnum.into()) };
        let dynamic = headers
            .iter()
            .find(|segment| segment.p_type == libc::PT_DYNAMIC)?;
        let dynamic = base.wrapping_add(dynamic.p_vaddr as usize);
        Some(Self { base, dynamic })
    }

    /// Finds the object whose code contains `address`. `None` if no page in the 4 MiB below it starts with an ELF
    /// header, or if the object has no dynamic section.
    ///
    /// # Safety
    /// The address is in the code of an object that stays loaded, and the memory between its header and the address is
    /// mapped without a gap.
    pub(super) unsafe fn containing(address: usize) -> Option<Self> {
        let last = address & !(PAGE_BYTES - 1);
        let mut pages = (0..HEADER_SCAN_LIMIT / PAGE_BYTES).map(|page| last - page * PAGE_BYTES);
        let header = pages.find(|page| read_memory::<[u8; 4]>(*page) == *b"\x7fELF")?;
        let segment =
            |kind| program_headers(header).find(|segment: &Elf64_Phdr| segment.p_type == kind);
        let base = header.wrapping_sub(segment(libc::PT_LOAD)?.p_vaddr as usize);
        let dynamic = base.wrapping_add(segment(libc::PT_DYNAMIC)?.p_vaddr as usize);
        Some(Self { base, dynamic })
    }

    /// Returns whether the object's soname is `soname`.
    pub(super) fn is_named(&self, soname: &CStr) -> bool {
        self.has_soname_at(soname.as_ptr().addr())
    }

    /// Returns whether the object's soname equals the text at the address `soname`.
    pub(super) fn has_soname_at(&self, soname: usize) -> bool {
        self.dynamic_value(DT_SONAME)
            .and_then(|offset| self.string_address(offset))
            .is_some_and(|name| are_strings_equal(name, soname))
    }

    /// Iterates over the references of this object to functions and variables of other objects. Omits symbols without a
    /// version.
    pub(super) fn imports(&self) -> impl Iterator<Item = Import> {
        let tables = [(DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)];
        tables
            .into_iter()
            .filter_map(|(table, size)| {
                Some((self.dynamic_address(table)?, self.dynamic_value(size)?))
            })
            .flat_map(|(table, size)| (table..table + size).step_by(size_of::<Elf64_Rela>()))
            .filter_map(|relocation| self.import_of_relocation(read_memory(relocation)))
    }

    /// Returns the import of a relocation. `None` if the relocation has another type or an addend, or if its symbol is
    /// defined in this object or has no version.
    fn import_of_relocation(&self, relocation: Elf64_Rela) -> Option<Import> {
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
            name: self.string_address(symbol.st_name as usize)?,
            version: self.needed_version(self.version_index(index)?)?,
            slot: self.base + relocation.r_offset as usize,
        })
    }

    /// Returns the address of the function that `import` names, in the version that `import` names. Calls the resolver
    /// of an indirect function (IFUNC). `None` if this object does not define that version of the name, or defines it
    /// as a variable.
    pub(super) fn find_function(&self, import: &Import) -> Option<usize> {
        let version = self.defined_version_index(import.version.name)?;
        self.find_definition(import.name, Some(version))?
            .resolve_function()
    }

    /// Returns the address of the function that `import` names: in the version that `import` names, or else in any
    /// version, because the object may have no versions. Calls the resolver of an indirect function (IFUNC). `None` if
    /// this object does not define the name, or defines it as a variable.
    pub(super) fn find_function_in_any_version(&self, import: &Import) -> Option<usize> {
        self.find_function(import)
            .or_else(|| self.find_definition(import.name, None)?.resolve_function())
    }

    /// Returns this object's definition of `name`, in any version. `None` if the object does not define the name, or
    /// has no table `DT_GNU_HASH`.
    pub(crate) fn find_definition_in_any_version(&self, name: &CStr) -> Option<Definition> {
        self.find_definition(name.as_ptr().addr(), None)
    }

    /// Returns whether the object has the table `DT_GNU_HASH`, in which definitions are looked up. An object linked
    /// with `--hash-style=sysv` has only another one.
    pub(super) fn has_gnu_hash(&self) -> bool {
        self.dynamic_address(DT_GNU_HASH).is_some()
    }

    /// Looks up a name, given by its address, in `DT_GNU_HASH`. If `version` is `None`, any version matches. Returns
    /// `None` if the object has no such table, or does not define the name in that version.
    fn find_definition(&self, name: usize, version: Option<u16>) -> Option<Definition> {
        let table = self.dynamic_address(DT_GNU_HASH)?;
        let word = |index: usize| read_memory::<u32>(table + index * 4) as usize;
        // The header has four words; the fourth one, a shift of the bloom filter, is not needed. The filter has words
        // of 64 bits.
        let (bucket_count, first_hashed, filter_words) = (word(0), word(1), word(2));
        let buckets = 4 + filter_words * 2;
        let chains = buckets + bucket_count;
        if bucket_count == 0 {
            return None;
        }
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
                && are_strings_equal(self.string_address(symbol.st_name as usize)?, name)
                && version.is_none_or(|version| self.version_index(index) == Some(version))
            {
                return Some(Definition {
                    address: self.base + symbol.st_value as usize,
                    kind: symbol.st_info & 0xf,
                });
            }
            // The lowest bit of a stored hash is not part of it: it marks the last one of a chain.
            if chained & 1 != 0 {
                return None;
            }
            index += 1;
        }
    }

    /// Returns the symbol at `index`, which is not checked against the table's size. `None` if the object has no symbol
    /// table.
    fn symbol(&self, index: usize) -> Option<Elf64_Sym> {
        Some(read_memory(
            self.dynamic_address(DT_SYMTAB)? + index * size_of::<Elf64_Sym>(),
        ))
    }

    /// Returns the index of a symbol's version, from `DT_VERSYM`. `None` if the object has no versions.
    fn version_index(&self, symbol: usize) -> Option<u16> {
        let index: u16 = read_memory(self.dynamic_address(DT_VERSYM)? + symbol * 2);
        Some(index & !VERSION_HIDDEN)
    }

    /// Finds a version by its index in `DT_VERNEED`: a chain of `Elf64_Verneed`, each with a chain of `Elf64_Vernaux`.
    /// `None` if the object needs no version with that index.
    fn needed_version(&self, index: u16) -> Option<Version> {
        let mut file = self.dynamic_address(DT_VERNEED)?;
        loop {
            // Offsets in `Elf64_Verneed`: `vn_file` 4, `vn_aux` 8, `vn_next` 12. In `Elf64_Vernaux`: `vna_other` 6,
            // `vna_name` 8, `vna_next` 12.
            let mut version = file + read_memory::<u32>(file + 8) as usize;
            loop {
                if read_memory::<u16>(version + 6) & !VERSION_HIDDEN == index {
                    return Some(Version {
                        name: self.string_address(read_memory::<u32>(version + 8) as usize)?,
                        file: self.string_address(read_memory::<u32>(file + 4) as usize)?,
                    });
                }
                match read_memory::<u32>(version + 12) {
                    0 => break,
                    next => version += next as usize,
                }
            }
            match read_memory::<u32>(file + 12) {
                0 => return None,
                next => file += next as usize,
            }
        }
    }

    /// Returns the index of a version, given by the address of its name, in `DT_VERDEF`: a chain of `Elf64_Verdef`,
    /// each with its `Elf64_Verdaux`. `None` if the object does not define the version.
    fn defined_version_index(&self, name: usize) -> Option<u16> {
        let mut version = self.dynamic_address(DT_VERDEF)?;
        loop {
            // Offsets in `Elf64_Verdef`: `vd_ndx` 4, `vd_aux` 12, `vd_next` 16. `vda_name` is at the start of
            // `Elf64_Verdaux`.
            let own_name = version + read_memory::<u32>(version + 12) as usize;
            if are_strings_equal(
                self.string_address(read_memory::<u32>(own_name) as usize)?,
                name,
            ) {
                return Some(read_memory(version + 4));
            }
            match read_memory::<u32>(version + 16) {
                0 => return None,
                next => version += next as usize,
            }
        }
    }

    /// Returns the address of the string at an offset in `DT_STRTAB`. `None` if the object has no strings.
    fn string_address(&self, offset: usize) -> Option<usize> {
        Some(self.dynamic_address(DT_STRTAB)? + offset)
    }

    /// Returns an address from the dynamic section. The loader has already added the base to some entries, so this adds
    /// it only to values below the base. `None` if the section has no such entry.
    fn dynamic_address(&self, tag: usize) -> Option<usize> {
        let value = self.dynamic_value(tag)?;
        Some(match value < self.base {
            true => self.base + value,
            false => value,
        })
    }

    /// Returns the value of the dynamic section's entry `tag`. `None` if there is no such entry.
    fn dynamic_value(&self, tag: usize) -> Option<usize> {
        let mut entry = self.dynamic;
        loop {
            match read_memory::<[usize; 2]>(entry) {
                [DT_NULL, _] => return None,
                [found, value] if found == tag => return Some(value),
                _ => entry += size_of::<[usize; 2]>(),
            }
        }
    }
}

/// Iterates over the program headers of the object with its ELF header at `header`.
pub(super) fn program_headers(header: usize) -> impl Iterator<Item = Elf64_Phdr> {
    let elf: Elf64_Ehdr = read_memory(header);
    let first = header + elf.e_phoff as usize;
    (0..usize::from(elf.e_phnum))
        .map(move |index| read_memory(first + index * size_of::<Elf64_Phdr>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_function_has_libc_address() {
        let check = |name: &CStr, function: usize| {
            // SAFETY: `function` is code of libc, which is never unloaded.
            let libc = unsafe { Object::containing(function) }.unwrap();
            assert!(libc.is_named(c"libc.so.6"));
            assert!(!libc.is_named(c"libc.so"));
            let base_version = libc.defined_version_index(c"GLIBC_2.2.5".as_ptr().addr());
            let find = |version| libc.find_definition(name.as_ptr().addr(), version);
            assert_eq!(find(base_version).unwrap().address, function);
            assert_eq!(
                libc.find_definition_in_any_version(name).unwrap().address,
                function
            );
            let other_version = libc.defined_version_index(c"GLIBC_2.3".as_ptr().addr());
            assert!(other_version.is_some() && find(other_version).is_none());
        };
        check(c"getpid", libc::getpid as *const () as usize);
        check(c"mkdir", libc::mkdir as *const () as usize);
        // SAFETY: getpid is code of libc, which is never unloaded.
        let libc = unsafe { Object::containing(libc::getpid as *const () as usize) }.unwrap();
        assert!(
            libc.find_definition_in_any_version(c"memprof_plugin_entry")
                .is_none()
        );
        assert_eq!(libc.defined_version_index(c"GLIBC_1".as_ptr().addr()), None);
    }

    #[test]
    fn loader_defines_its_list() {
        let loader = crate::libc_symbol(c"__tls_get_addr").unwrap();
        // SAFETY: `__tls_get_addr` is code of the loader, which is never unloaded.
        let loader = unsafe { Object::containing(loader.addr().get()) }.unwrap();
        assert!(loader.is_named(c"ld-linux-x86-64.so.2"));
        assert!(loader.find_definition_in_any_version(c"_r_debug").is_some());
    }
}
