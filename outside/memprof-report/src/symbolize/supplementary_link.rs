//! The link from debug information to its supplementary file, `.gnu_debugaltlink` or `.debug_sup` (DWARF 5, 7.3.6).

use std::fs::File;
use std::path::PathBuf;

use addr2line::gimli::{self, EndianSlice, Reader as _, RunTimeEndian};
use object::{Object as _, ObjectSection as _, ReadRef};

use super::build_id::build_id;
use super::limited_file::LimitedFile;
use super::regular_file::READ_LIMIT;
use super::sections;

/// Returns the path of the supplementary file to which a file refers, and its id in hex. `None` if the file refers to
/// none, or the link is malformed.
pub(super) fn supplementary_link<'d, R: ReadRef<'d>>(
    file: &object::File<'d, R>,
) -> Option<(PathBuf, String)> {
    let old = file.gnu_debugaltlink().ok().flatten();
    let new = || {
        let section = SupplementarySection::read(file)?;
        (!section.is_supplementary).then_some((section.path, section.checksum))
    };
    let (path, id) = old.or_else(new)?;
    let path = str::from_utf8(path).ok().filter(|path| !path.is_empty())?;
    Some((path.into(), to_hex(id)))
}

/// Returns whether a file is the supplementary file with this id, in hex: the id is its build id or, if it has none,
/// the checksum in its section `.debug_sup`. False if the file cannot be read.
pub(super) fn has_supplementary_id(file: &File, id: &str) -> bool {
    match build_id(file) {
        Ok(Some(found)) => found == id,
        Ok(None) => {
            let cache = LimitedFile::new(file, READ_LIMIT);
            let elf = object::File::parse(&cache).ok();
            let section = elf.as_ref().and_then(SupplementarySection::read);
            section
                .is_some_and(|section| section.is_supplementary && to_hex(section.checksum) == id)
        }
        Err(_) => false,
    }
}

/// Bytes as lower-case hexadecimal digits.
fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Section `.debug_sup` (DWARF 5, 7.3.6).
struct SupplementarySection<'d> {
    /// False in the file that refers to the supplementary one.
    is_supplementary: bool,
    path: &'d [u8],
    checksum: &'d [u8],
}

impl<'d> SupplementarySection<'d> {
    /// Reads the section `.debug_sup` of a file. `None` if the file has no such section, or the section is malformed.
    fn read<R: ReadRef<'d>>(file: &object::File<'d, R>) -> Option<Self> {
        let section = file.section_by_name(".debug_sup")?;
        Self::parse(section.data().ok()?, sections::file_endian(file)).ok()
    }

    /// Parses the bytes of the section. Fails if they are truncated.
    fn parse(bytes: &'d [u8], endian: RunTimeEndian) -> gimli::Result<Self> {
        let mut rest = EndianSlice::new(bytes, endian);
        let (_version, is_supplementary) = (rest.read_u16()?, rest.read_u8()? != 0);
        let path = rest.read_null_terminated_slice()?.slice();
        let length = usize::try_from(rest.read_uleb128()?).unwrap_or(usize::MAX);
        let checksum = rest.split(length)?.slice();
        Ok(Self {
            is_supplementary,
            path,
            checksum,
        })
    }
}
