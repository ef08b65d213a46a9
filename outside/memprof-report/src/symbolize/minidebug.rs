//! Mini debug information: the symbol table of a stripped file, as an ELF file in xz in its section
//! `.gnu_debugdata` (the GDB manual's chapter on it). Fedora's binaries have it.

use std::io::{self, Read};

use lzma_rust2::XzReader;
use object::{Object as _, ObjectSection as _, ReadRef};

/// The most that is decompressed, in bytes.
const LARGEST: u64 = 128 << 20;

/// What decompressing may take, in KiB: the dictionary of `xz -9` is 64 MiB.
const MEMORY: u32 = 65 << 10;

/// The bytes of the ELF file inside; none where there is no such section.
pub(super) fn inner<'d, R: ReadRef<'d>>(file: &object::File<'d, R>) -> io::Result<Option<Vec<u8>>> {
    let Some(section) = file.section_by_name(".gnu_debugdata") else {
        return Ok(None);
    };
    let bytes = unpacked(section.data().map_err(io::Error::other)?)?;
    object::File::parse(bytes.as_slice()).map_err(io::Error::other)?;
    Ok(Some(bytes))
}

fn unpacked(xz: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    XzReader::new_mem_limit(xz, false, MEMORY)
        .take(LARGEST + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        let problem = format!("passes the limit of {LARGEST} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}
