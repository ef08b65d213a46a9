//! A library as it lies in another process's memory: right also where its file was replaced, or lies
//! in another mount namespace.

use std::io;

use crate::memory::Memory;

/// `ET_EXEC`: a program that lies where its file says.
const FIXED: u16 = 2;
const PT_DYNAMIC: u32 = 2;
const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;

/// Of one symbol (`Elf64_Sym`), in bytes.
const SYMBOL: usize = 24;
/// More than libc's by far: a table that says more is none.
const TABLE_LIMIT: u64 = 16 << 20;
/// Of the program headers: linkers make a dozen.
const SEGMENT_LIMIT: u64 = 128;
/// Of the entries of the dynamic section: linkers make some thirty.
const DYNAMIC_LIMIT: u64 = 1024;

/// The dynamic symbols of a library.
#[derive(Debug)]
pub struct LibraryImage {
    /// Load address minus the address in the file: 0 for a program that is not position independent.
    bias: u64,
    symbols: Vec<u8>,
    names: Vec<u8>,
}

impl LibraryImage {
    /// Reads the symbols of the library whose first byte lies at `base`.
    ///
    /// # Errors
    /// It cannot be read, or is no ELF file of 64 bits with dynamic symbols.
    pub fn read(memory: &Memory, base: u64) -> io::Result<Self> {
        let header: [u8; 64] = memory.bytes(base)?;
        if header[..5] != *b"\x7fELF\x02" {
            return Err(malformed("no ELF file of 64 bits"));
        }
        let bias = match read_u16(&header, 16) {
            FIXED => 0,
            _ => base,
        };
        let segments = base.wrapping_add(read_u64(&header, 32));
        let count = u64::from(read_u16(&header, 56));
        let mut dynamic = None;
        for at in 0..count.min(SEGMENT_LIMIT) {
            let segment: [u8; 56] = memory.bytes(segments.wrapping_add(at * 56))?;
            if read_u32(&segment, 0) == PT_DYNAMIC {
                dynamic = Some(bias.wrapping_add(read_u64(&segment, 16)));
            }
        }
        let dynamic = dynamic.ok_or_else(|| malformed("no dynamic section"))?;
        let (mut symbols, mut names, mut size) = (0, 0, 0);
        for at in 0..DYNAMIC_LIMIT {
            let entry: [u8; 16] = memory.bytes(dynamic.wrapping_add(at * 16))?;
            let value = read_u64(&entry, 8);
            // Where the loader has relocated it, an address; else an offset, as in the vDSO.
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
        // Every linker in use puts the names right behind the symbols, whose number is told nowhere else.
        let length = names
            .checked_sub(symbols)
            .filter(|length| *length < TABLE_LIMIT);
        let length = length.filter(|_| size < TABLE_LIMIT);
        let length = length.ok_or_else(|| malformed("its symbols lie behind their names"))?;
        let mut image = Self {
            bias,
            symbols: vec![0; length as usize],
            names: vec![0; size as usize],
        };
        memory.read(symbols, &mut image.symbols)?;
        memory.read(names, &mut image.names)?;
        Ok(image)
    }

    /// The address of a symbol that the library defines.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        let found = self.called(name).find(|symbol| is_defined(symbol))?;
        Some(self.bias.wrapping_add(read_u64(found, 8)))
    }

    /// Whether it uses a symbol that another library defines.
    pub fn imports(&self, name: &str) -> bool {
        self.called(name).any(|symbol| !is_defined(symbol))
    }

    fn called(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.symbols.chunks_exact(SYMBOL).filter(move |symbol| {
            let rest = self.names.get(read_u32(symbol, 0) as usize..);
            let rest = rest.and_then(|rest| rest.strip_prefix(name.as_bytes()));
            rest.is_some_and(|rest| rest.first() == Some(&0))
        })
    }
}

fn is_defined(symbol: &[u8]) -> bool {
    read_u16(symbol, 6) != 0
}

fn malformed(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes[at..at + 4].try_into();
    u32::from_le_bytes(bytes.expect("four bytes"))
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes[at..at + 8].try_into();
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
    fn libc_s_functions_are_where_the_loader_says() {
        let memory = Memory::open(std::process::id()).unwrap();
        let libc = LibraryImage::read(&memory, base_of(b"libc.so.6")).unwrap();
        let here = libc::pthread_create as *const () as u64;
        assert_eq!(libc.symbol("pthread_create"), Some(here));
        assert_eq!(libc.symbol("no_such_function"), None);
        // A prefix of others.
        assert_eq!(libc.symbol("pthread_"), None);
        assert!(libc.imports("__tls_get_addr"));
        assert!(!libc.imports("pthread_create") && !libc.imports("no_such_function"));
    }

    #[test]
    fn what_is_no_library_is_refused() {
        let memory = Memory::open(std::process::id()).unwrap();
        let bytes = [0_u64; 16];
        let error = LibraryImage::read(&memory, bytes.as_ptr() as u64).unwrap_err();
        assert_eq!(error.to_string(), "no ELF file of 64 bits");
        assert!(LibraryImage::read(&memory, 0x10).is_err());
    }

    /// A file whose mapping is called libc.so.6 may hold anything.
    #[test]
    fn a_dynamic_section_without_an_end_is_refused() {
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
