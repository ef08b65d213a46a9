//! The dynamic symbols of a library, read from another process's memory: correct even if its file was replaced or
//! lies in another mount namespace.

use std::io;
use std::ops::Range;

use crate::memory::Memory;

/// `ET_EXEC`: a program that is loaded at the addresses in its file.
const ET_EXEC: u16 = 2;
const PT_DYNAMIC: u32 = 2;
const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;

/// Size of a symbol (`Elf64_Sym`), in bytes.
const SYMBOL_SIZE: usize = 24;
/// Largest accepted size of a symbol or name table, in bytes, far above libc's.
const MAX_TABLE_SIZE: u64 = 16 << 20;
/// Largest number of program headers that are read: linkers write a dozen.
const MAX_SEGMENTS: u64 = 128;
/// Largest number of entries that are read of the dynamic section: linkers write some thirty.
const MAX_DYNAMIC_ENTRIES: u64 = 1024;

/// The dynamic symbols of a loaded library.
#[derive(Debug)]
pub struct LibraryImage {
    /// Load address minus the address in the file; 0 for a program that is not position independent.
    bias: u64,
    symbols: Vec<u8>,
    names: Vec<u8>,
}

impl LibraryImage {
    /// Reads the symbols of the library that is loaded at `base`.
    ///
    /// # Errors
    /// The memory cannot be read, or holds no 64-bit ELF file with dynamic symbols.
    pub fn read(memory: &Memory, base: u64) -> io::Result<Self> {
        let header: [u8; 64] = memory.read_array(base)?;
        if header[..5] != *b"\x7fELF\x02" {
            return Err(malformed_error("no ELF file of 64 bits"));
        }
        // Offsets in the ELF header: `e_type` 16, `e_phoff` 32, `e_phnum` 56; in a program header: `p_vaddr` 16.
        let bias = match read_u16(&header, 16) {
            ET_EXEC => 0,
            _ => base,
        };
        let segments = base.wrapping_add(read_u64(&header, 32));
        let count = u64::from(read_u16(&header, 56));
        let mut dynamic = None;
        for index in 0..count.min(MAX_SEGMENTS) {
            // `Elf64_Phdr` has 56 bytes.
            let segment: [u8; 56] = memory.read_array(segments.wrapping_add(index * 56))?;
            if read_u32(&segment, 0) == PT_DYNAMIC {
                dynamic = Some(bias.wrapping_add(read_u64(&segment, 16)));
            }
        }
        let dynamic = dynamic.ok_or_else(|| malformed_error("no dynamic section"))?;
        let (mut symbols, mut names, mut size) = (0, 0, 0);
        for index in 0..MAX_DYNAMIC_ENTRIES {
            // `Elf64_Dyn`: `d_tag`, then `d_val` or `d_ptr`.
            let entry: [u8; 16] = memory.read_array(dynamic.wrapping_add(index * 16))?;
            let value = read_u64(&entry, 8);
            // An address if the loader has relocated the entry, else an offset, as in the vDSO.
            let address = if value < base {
                base.wrapping_add(value)
            } else {
                value
            };
            match read_u64(&entry, 0) {
                DT_NULL => break,
                DT_SYMTAB => symbols = address,
                DT_STRTAB => names = address,
                DT_STRSZ => size = value,
                _ => {}
            }
        }
        // Every linker in use puts the names right after the symbols, whose number is recorded nowhere else.
        let length = names
            .checked_sub(symbols)
            .filter(|length| *length < MAX_TABLE_SIZE);
        let length = length.filter(|_| size < MAX_TABLE_SIZE);
        let length = length.ok_or_else(|| malformed_error("its symbols lie behind their names"))?;
        let mut image = Self {
            bias,
            symbols: vec![0; length as usize],
            names: vec![0; size as usize],
        };
        memory.read(symbols, &mut image.symbols)?;
        memory.read(names, &mut image.names)?;
        Ok(image)
    }

    /// Returns the address of a symbol (`st_value` plus the load bias); `None` if the library does not define it.
    pub fn symbol_address(&self, name: &str) -> Option<u64> {
        let symbol = self.symbols_named(name).find(|symbol| is_defined(symbol))?;
        Some(self.bias.wrapping_add(read_u64(symbol, 8)))
    }

    /// Returns the addresses of a symbol, `st_size` bytes from its start. `None` if the library does not define it, or
    /// the range passes the end of the address space.
    pub fn symbol_range(&self, name: &str) -> Option<Range<u64>> {
        let symbol = self.symbols_named(name).find(|symbol| is_defined(symbol))?;
        let start = self.bias.wrapping_add(read_u64(symbol, 8));
        Some(start..start.checked_add(read_u64(symbol, 16))?)
    }

    /// Returns whether the library uses a symbol that another library must define.
    pub fn imports_symbol(&self, name: &str) -> bool {
        self.symbols_named(name).any(|symbol| !is_defined(symbol))
    }

    /// Returns the symbols with that name, each as the bytes of an `Elf64_Sym`, which begins with `st_name`, an offset
    /// in the table of names.
    fn symbols_named(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.symbols
            .chunks_exact(SYMBOL_SIZE)
            .filter(move |symbol| {
                let names = self.names.get(read_u32(symbol, 0) as usize..);
                let suffix = names.and_then(|names| names.strip_prefix(name.as_bytes()));
                suffix.is_some_and(|suffix| suffix.first() == Some(&0))
            })
    }
}

/// Returns whether the library defines a symbol (the bytes of an `Elf64_Sym`): its `st_shndx` is not `SHN_UNDEF`.
fn is_defined(symbol: &[u8]) -> bool {
    read_u16(symbol, 6) != 0
}

/// Builds the error (`InvalidData`) for memory that holds no library.
fn malformed_error(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Reads the little-endian number of 16 bits at an offset. Panics if it is not within the bytes.
fn read_u16(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

/// Reads the little-endian number of 32 bits at an offset. Panics if it is not within the bytes.
fn read_u32(bytes: &[u8], offset: usize) -> u32 {
    let bytes = bytes[offset..offset + 4].try_into();
    u32::from_le_bytes(bytes.expect("four bytes"))
}

/// Reads the little-endian number of 64 bits at an offset. Panics if it is not within the bytes.
fn read_u64(bytes: &[u8], offset: usize) -> u64 {
    let bytes = bytes[offset..offset + 8].try_into();
    u64::from_le_bytes(bytes.expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::mappings;

    fn base_of(name: &[u8]) -> u64 {
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let first = mappings(&maps).find(|mapping| mapping.file_name() == name);
        first.unwrap().range.start
    }

    #[test]
    fn libc_symbols_have_the_loader_s_addresses() {
        let memory = Memory::open(std::process::id()).unwrap();
        let libc = LibraryImage::read(&memory, base_of(b"libc.so.6")).unwrap();
        let here = libc::pthread_create as *const () as u64;
        assert_eq!(libc.symbol_address("pthread_create"), Some(here));
        assert_eq!(libc.symbol_address("no_such_function"), None);
        // A prefix of other symbols.
        assert_eq!(libc.symbol_address("pthread_"), None);
        assert!(libc.imports_symbol("__tls_get_addr"));
        assert!(!libc.imports_symbol("pthread_create") && !libc.imports_symbol("no_such_function"));
    }

    #[test]
    fn memory_without_library_is_rejected() {
        let memory = Memory::open(std::process::id()).unwrap();
        let bytes = [0_u64; 16];
        let error = LibraryImage::read(&memory, bytes.as_ptr() as u64).unwrap_err();
        assert_eq!(error.to_string(), "no ELF file of 64 bits");
        assert!(LibraryImage::read(&memory, 0x10).is_err());
    }

    /// A file of any content may be mapped under the name libc.so.6.
    #[test]
    fn dynamic_section_without_end_is_rejected() {
        let memory = Memory::open(std::process::id()).unwrap();
        let check = |entry: [u64; 2], segments: u16| {
            let mut words = vec![0_u64; 8 + 7 * 128];
            words[0] = u64::from_le_bytes(*b"\x7fELF\x02\0\0\0");
            words[4] = 64;
            words[7] = u64::from(segments);
            (words[8], words[10]) = (u64::from(PT_DYNAMIC), words.len() as u64 * 8);
            words.extend(vec![entry; 1 << 20].concat());
            LibraryImage::read(&memory, words.as_ptr() as u64).unwrap_err()
        };
        let endless = check([DT_SYMTAB, u64::MAX], 1);
        assert_eq!(endless.to_string(), "its symbols lie behind their names");
        check([DT_STRTAB, u64::MAX], u16::MAX);
    }
}
