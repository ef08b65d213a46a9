//! One loaded object: the functions that it defines, and the GOT slots through which it calls others (gABI,
//! "Dynamic Linking"; psABI, "Relocation Types").
#![expect(unsafe_code, reason = "tables that the loader mapped")]

use core::ffi::{CStr, c_char};
use core::mem;
use core::ops::Range;
use core::{ptr, slice};

use libc::{
    Elf64_Phdr, Elf64_Rela, Elf64_Sym, PF_W, PT_DYNAMIC, PT_GNU_RELRO, PT_LOAD, dl_phdr_info,
};

const PAGE_SIZE: usize = 4096;

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

/// Type of a function in assembly without `.type`; the loader accepts it.
const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;

const R_X86_64_64: u32 = 1;
const R_X86_64_GLOB_DAT: u32 = 6;
const R_X86_64_JUMP_SLOT: u32 = 7;

/// Entry of the dynamic section (`Elf64_Dyn`).
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// Parts of a loaded object that this crate reads. Valid while the loader keeps the object mapped.
#[derive(Debug)]
pub(super) struct ElfObject {
    base: usize,
    /// From the first byte of its segments to the last, including data.
    pub(super) code: Range<usize>,
    /// Pages that the loader made read-only after relocation (RELRO).
    relro: Range<usize>,
    /// From the first byte of its writable segments to the last. Linkers create only one.
    writable: Range<usize>,
    symbols: *const Elf64_Sym,
    strings: *const c_char,
    hashes: *const u32,
    /// Tables of `DT_JMPREL` and `DT_RELA`: address and number of entries.
    relocations: [(*const Elf64_Rela, usize); 2],
    path: *const c_char,
}

/// Symbol that an object defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Definition {
    /// Address of the symbol. Callers of an indirect function (IFUNC) never reach it: it is that of the resolver, which
    /// chooses the function.
    pub(super) address: usize,
    /// Type of the symbol, such as `STT_FUNC`.
    kind: u8,
}

impl Definition {
    /// Returns the address of the function. `None` if the symbol is an indirect function (IFUNC) or a variable.
    pub(super) fn direct_function(self) -> Option<usize> {
        matches!(self.kind, STT_NOTYPE | STT_FUNC).then_some(self.address)
    }

    /// Returns whether the symbol is an indirect function (IFUNC).
    pub(super) fn is_indirect(self) -> bool {
        self.kind == STT_GNU_IFUNC
    }

    /// Returns the address of the function, as the loader writes it to the slots of callers: that of an indirect
    /// function (IFUNC) is the result of its resolver, which this calls. `None` if the symbol is a variable, or if the
    /// resolver chooses no function.
    ///
    /// # Safety
    /// The object is relocated, and stays loaded during the call.
    pub(super) unsafe fn resolve_function(self) -> Option<usize> {
        if !self.is_indirect() {
            return self.direct_function();
        }
        // SAFETY: the symbol's type says that it is a resolver. On x86-64 the loader passes nothing to it.
        let resolve = unsafe { mem::transmute::<usize, extern "C" fn() -> usize>(self.address) };
        Some(resolve()).filter(|function| *function != 0)
    }
}

/// GOT slot of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct GotSlot<'a> {
    pub(super) address: usize,
    /// Name of the symbol whose address the slot holds.
    pub(super) name: &'a CStr,
    /// The object's own definition of the name. Calls may go to another object's definition.
    pub(super) own: Option<Definition>,
    /// Whether the loader may fill the slot only at the first call (lazy binding).
    pub(super) may_be_lazy: bool,
}

impl ElfObject {
    /// Reads an object's program headers and dynamic section. `None` for the loader and the vDSO, and if the segments,
    /// the dynamic section, the symbol table or the string table is missing.
    ///
    /// # Safety
    /// `info` comes from `dl_iterate_phdr(3)`, and the object stays loaded while the result is used.
    pub(super) unsafe fn from_info(info: &dl_phdr_info) -> Option<Self> {
        let base = info.dlpi_addr as usize;
        // SAFETY: dl_iterate_phdr(3): `dlpi_phdr` points to `dlpi_phnum` headers.
        let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let range = |header: &Elf64_Phdr| {
            let start = base.wrapping_add(header.p_vaddr as usize);
            start..start.wrapping_add(header.p_memsz as usize)
        };
        let headers_of_type = |kind| headers.iter().filter(move |header| header.p_type == kind);
        let join =
            |all: Range<usize>, one: Range<usize>| all.start.min(one.start)..all.end.max(one.end);
        let code = headers_of_type(PT_LOAD).map(range).reduce(join)?;
        let is_writable = |header: &&Elf64_Phdr| header.p_flags & PF_W != 0;
        let writable = headers_of_type(PT_LOAD).filter(is_writable).map(range);
        let relro = headers_of_type(PT_GNU_RELRO).map(range).next();
        let dynamic = headers_of_type(PT_DYNAMIC).map(range).next()?;
        let mut object = Self {
            base,
            code,
            writable: writable.reduce(join).unwrap_or(0..0),
            // The loader protects whole pages only (_dl_protect_relro).
            relro: relro.map_or(0..0, |part| page_start(part.start)..page_start(part.end)),
            symbols: ptr::null(),
            strings: ptr::null(),
            hashes: ptr::null(),
            relocations: [(ptr::null(), 0); 2],
            path: info.dlpi_name,
        };
        if object.is_loader_or_vdso() {
            return None;
        }
        let mut entry = dynamic.start as *const Dynamic;
        loop {
            // SAFETY: gABI: PT_DYNAMIC gives the section's address, and DT_NULL ends it.
            let Dynamic { tag, value } = unsafe { entry.read() };
            match tag {
                DT_NULL => break,
                DT_SYMTAB => object.symbols = object.absolute_address(value) as *const _,
                DT_STRTAB => object.strings = object.absolute_address(value) as *const _,
                DT_GNU_HASH => object.hashes = object.absolute_address(value) as *const _,
                DT_JMPREL => object.relocations[0].0 = object.absolute_address(value) as *const _,
                DT_RELA => object.relocations[1].0 = object.absolute_address(value) as *const _,
                DT_PLTRELSZ => object.relocations[0].1 = value / size_of::<Elf64_Rela>(),
                DT_RELASZ => object.relocations[1].1 = value / size_of::<Elf64_Rela>(),
                _ => {}
            }
            entry = entry.wrapping_add(1);
        }
        (!object.symbols.is_null() && !object.strings.is_null()).then_some(object)
    }

    /// Returns the path under which the loader knows the object; empty for the executable.
    pub(super) fn path(&self) -> &CStr {
        if self.path.is_null() {
            return c"";
        }
        // SAFETY: dl_iterate_phdr(3): NUL-terminated, while the object is loaded.
        unsafe { CStr::from_ptr(self.path) }
    }

    /// Returns the symbol that the object exports under `name`, with default visibility. `None` if the object exports
    /// no such symbol, or has no table `DT_GNU_HASH`.
    pub(super) fn definition(&self, name: &CStr) -> Option<Definition> {
        const DEFAULT: u8 = 0;
        let mut index = self.hash_chain_start(name)?;
        loop {
            // SAFETY: DT_GNU_HASH: each symbol of a chain has an entry in both tables.
            let symbol = unsafe { self.symbols.wrapping_add(index.0).read() };
            let is_defined = symbol.st_shndx != 0 && symbol.st_value != 0;
            // The lowest two bits of `st_other` are the visibility.
            if is_defined && symbol.st_other & 3 == DEFAULT && self.symbol_name(&symbol) == name {
                return Some(self.definition_of_symbol(&symbol));
            }
            // SAFETY: DT_GNU_HASH: an odd hash is the last one of its chain, and the loop stops there.
            let hash = unsafe { index.1.read() };
            if hash & 1 != 0 {
                return None;
            }
            index = (index.0 + 1, index.1.wrapping_add(1));
        }
    }

    /// Iterates over the object's GOT slots for functions: those of the procedure linkage table (`JUMP_SLOT`), and
    /// those for calls without it (`GLOB_DAT`). The latter include addresses of variables.
    pub(super) fn call_slots(&self) -> impl Iterator<Item = GotSlot<'_>> {
        self.slots_with_types(&[R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT])
    }

    /// Iterates over the words of the object's data that the loader filled with the address of a symbol (relocations of
    /// type `64`), such as a table of function pointers.
    pub(super) fn data_words(&self) -> impl Iterator<Item = GotSlot<'_>> {
        self.slots_with_types(&[R_X86_64_64])
    }

    /// Iterates over the words that relocations of the given types fill, in both relocation tables.
    fn slots_with_types(&self, kinds: &'static [u32]) -> impl Iterator<Item = GotSlot<'_>> {
        let tables = self.relocations.iter();
        tables
            .flat_map(|(start, count)| {
                let count = if start.is_null() { 0 } else { *count };
                // SAFETY: gABI: the dynamic section gives the start and size of the table.
                (0..count).map(move |index| unsafe { start.wrapping_add(index).read() })
            })
            .filter_map(move |relocation| {
                // `r_info` has the type in its lower half, and the index of the symbol in its upper half.
                let kind = relocation.r_info as u32;
                if !kinds.contains(&kind) {
                    return None;
                }
                let index = (relocation.r_info >> 32) as usize;
                // SAFETY: gABI: a relocation's symbol index is inside the symbol table.
                let symbol = unsafe { self.symbols.wrapping_add(index).read() };
                let own = self.definition_of_symbol(&symbol);
                Some(GotSlot {
                    own: (symbol.st_shndx != 0).then_some(own),
                    address: self.base.wrapping_add(relocation.r_offset as usize),
                    name: self.symbol_name(&symbol),
                    may_be_lazy: kind == R_X86_64_JUMP_SLOT,
                })
            })
    }

    /// Returns the address and the type of a symbol that this object defines.
    fn definition_of_symbol(&self, symbol: &Elf64_Sym) -> Definition {
        Definition {
            address: self.base.wrapping_add(symbol.st_value as usize),
            // The lowest four bits of `st_info` are the type.
            kind: symbol.st_info & 0xf,
        }
    }

    /// Returns whether the page of a slot is one that the loader made read-only after relocation (RELRO).
    pub(super) fn is_protected(&self, slot: usize) -> bool {
        self.relro.contains(&page_start(slot))
    }

    /// Returns whether a word can be exchanged atomically. It must be aligned, unlike a member of a packed struct, and
    /// in a writable segment, unlike relocations in the code of old objects.
    pub(super) fn can_exchange(&self, word: usize) -> bool {
        word.is_multiple_of(align_of::<usize>()) && self.writable.contains(&word)
    }

    /// Returns a symbol's name from the object's string table.
    fn symbol_name(&self, symbol: &Elf64_Sym) -> &CStr {
        // SAFETY: gABI: names in the string table end with NUL, and the table stays mapped while the object is loaded.
        unsafe { CStr::from_ptr(self.strings.wrapping_add(symbol.st_name as usize)) }
    }

    /// Converts a value of the dynamic section to an address. glibc has already replaced the offsets by addresses in
    /// most entries, but not in all. A value below the object's load address can only be an offset.
    fn absolute_address(&self, value: usize) -> usize {
        if value < self.base {
            self.base.wrapping_add(value)
        } else {
            value
        }
    }

    /// Returns whether this is the dynamic loader or the vDSO, judged by its file name.
    fn is_loader_or_vdso(&self) -> bool {
        let path = self.path().to_bytes();
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        file.starts_with(b"ld-linux") || file.starts_with(b"linux-vdso")
    }

    /// Returns the index of the first symbol that may have this name, and the address of that symbol's hash. `None` if
    /// the object has no `DT_GNU_HASH`, or exports no symbol that may have the name.
    fn hash_chain_start(&self, name: &CStr) -> Option<(usize, *const u32)> {
        if self.hashes.is_null() {
            return None;
        }
        // SAFETY: DT_GNU_HASH: the table begins with four 32-bit numbers.
        let header = unsafe { self.hashes.cast::<[u32; 4]>().read_unaligned() };
        let [buckets, first, bloom_words, _] = header.map(|number| number as usize);
        if buckets == 0 {
            return None;
        }
        // The bloom filter follows the header: `bloom_words` words of 64 bits.
        let table = self.hashes.wrapping_add(4 + 2 * bloom_words);
        let bucket = gnu_hash(name.to_bytes()) as usize % buckets;
        // SAFETY: DT_GNU_HASH: the buckets follow the bloom filter, and `bucket` is less than their number.
        let index = unsafe { table.wrapping_add(bucket).read() } as usize;
        if index < first {
            return None;
        }
        // A hash for each symbol follows the buckets, beginning with symbol `first`.
        Some((index, table.wrapping_add(buckets + index - first)))
    }

    /// Returns whether this object is glibc's libc, which alone exports `gnu_get_libc_version`.
    pub(super) fn is_libc(&self) -> bool {
        self.definition(c"gnu_get_libc_version").is_some()
    }
}

/// Returns the hash of a name as `DT_GNU_HASH` uses it: Bernstein's, which starts with 5381 and multiplies by 33.
fn gnu_hash(name: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| hash.wrapping_mul(33).wrapping_add((*byte).into());
    name.iter().fold(5381, step)
}

/// Returns the start of the page that contains an address.
fn page_start(address: usize) -> usize {
    address & !(PAGE_SIZE - 1)
}

#[cfg(test)]
mod tests {
    use super::super::for_each_object;
    use super::*;

    #[test]
    fn kinds_of_libc_symbols_differ() {
        let mut libc = None;
        for_each_object(&mut |object| {
            if object.is_libc() {
                libc = Some(object);
            }
        });
        let libc = libc.unwrap();
        let check = |name: &CStr, is_function: bool, is_indirect: bool| {
            let definition = libc.definition(name).unwrap();
            assert_eq!(definition.is_indirect(), is_indirect, "{name:?}");
            let is_direct = is_function && !is_indirect;
            assert_eq!(
                definition.direct_function().is_some(),
                is_direct,
                "{name:?}"
            );
            // SAFETY: dlsym(3) with a NUL-terminated name.
            let loaders = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
            // SAFETY: the C library is relocated, and never unloaded.
            let resolved = unsafe { definition.resolve_function() };
            assert_eq!(resolved, is_function.then_some(loaders), "{name:?}");
        };
        check(c"malloc", true, false);
        check(c"strlen", true, true);
        check(c"environ", false, false);
    }
}
