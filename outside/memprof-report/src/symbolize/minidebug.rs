//! Mini debug information: the symbol table of a stripped file, as an xz-compressed ELF file in its section
//! `.gnu_debugdata` (described in the GDB manual). Fedora's binaries have it.

use std::io::{self, Read};

use lzma_rust2::XzReader;
use object::{Object as _, ObjectSection as _, ReadRef};

/// Most decompressed bytes.
const MAX_BYTES: u64 = 128 << 20;

/// Most memory for decompressing, in KiB: the dictionary of `xz -9` is 64 MiB.
const MAX_MEMORY_KIB: u32 = 65 << 10;

/// Returns the bytes of the ELF file that the section `.gnu_debugdata` of `file` contains, compressed with xz. It has
/// symbols of a stripped file. `None` if `file` lacks the section. Fails if the section or the ELF file in it is
/// damaged, or exceeds a limit.
pub(super) fn embedded_elf<'d, R: ReadRef<'d>>(
    file: &object::File<'d, R>,
) -> io::Result<Option<Vec<u8>>> {
    let Some(section) = file.section_by_name(".gnu_debugdata") else {
        return Ok(None);
    };
    let bytes = decompress_xz(section.data().map_err(io::Error::other)?)?;
    object::File::parse(bytes.as_slice()).map_err(io::Error::other)?;
    Ok(Some(bytes))
}

/// Decompresses xz. Fails if it is damaged, or needs more than [`MAX_BYTES`] of output or [`MAX_MEMORY_KIB`] of memory.
fn decompress_xz(xz: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    XzReader::new_mem_limit(xz, false, MAX_MEMORY_KIB)
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        let problem = format!("passes the limit of {MAX_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}
