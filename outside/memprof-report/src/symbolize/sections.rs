//! Sections of debug information, decompressed within limits.

use std::borrow::Cow;
use std::io;

use addr2line::gimli::{RunTimeEndian, SectionId};
use object::{CompressionFormat, Object as _, ObjectSection, ReadRef};

use crate::limits::Limits;

/// Byte order of a file.
pub(super) fn file_endian<'d, R: ReadRef<'d>>(file: &object::File<'d, R>) -> RunTimeEndian {
    match file.is_little_endian() {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    }
}

/// Returns a section of a file; empty if it has none, or its kind is not needed. Fails if the section is damaged, or
/// exceeds a limit.
pub(super) fn load_section<'d, R: ReadRef<'d>>(
    file: &object::File<'d, R>,
    id: SectionId,
) -> io::Result<Cow<'d, [u8]>> {
    match file.section_by_name(id.name()) {
        Some(section) if is_needed_section(id) => decompress_section(&section),
        _ => Ok(Cow::default()),
    }
}

/// Returns a section of split debug information, such as `.debug_info.dwo`. A file may have several sections of one
/// name, one for each type: their bytes are joined. Empty if the file has none, or its kind is not needed. Fails if a
/// section is damaged, or exceeds a limit.
pub(super) fn load_split_section<'d, R: ReadRef<'d>>(
    file: &object::File<'d, R>,
    id: SectionId,
) -> io::Result<Vec<u8>> {
    match is_needed_section(id) {
        true => load_packed_section(file, id),
        false => Ok(Vec::new()),
    }
}

/// Returns a section of split debug information, also of a kind that gives no names or lines: the index of a package
/// (`.dwp`) refers to all kinds. Sections of one name are joined. Empty if the file has none. Fails if a section is
/// damaged, or exceeds a limit.
pub(super) fn load_packed_section<'d, R: ReadRef<'d>>(
    file: &object::File<'d, R>,
    id: SectionId,
) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let Some(name) = id.dwo_name() else {
        return Ok(bytes);
    };
    let is_named = |section: &object::Section<'d, '_, R>| section.name() == Ok(name);
    for section in file.sections().filter(is_named) {
        bytes.extend_from_slice(&decompress_section(&section)?);
    }
    Ok(bytes)
}

/// Returns a section's bytes, decompressed if needed. Fails if the section is damaged, or declares more bytes than its
/// compressed ones may expand to within the limits.
fn decompress_section<'d>(section: &impl ObjectSection<'d>) -> io::Result<Cow<'d, [u8]>> {
    let compressed = section.compressed_data().map_err(io::Error::other)?;
    let declared = compressed.uncompressed_size;
    let limits = Limits::default();
    let max = (compressed.data.len() as u64)
        .saturating_mul(limits.ratio)
        .clamp(Limits::RATIO_FLOOR, limits.bytes);
    if compressed.format != CompressionFormat::None && declared > max {
        let problem = format!("a section claims {declared} bytes, at most {max} are read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    compressed.decompress().map_err(io::Error::other)
}

/// Returns whether the names and lines of functions are found with a section. Locations of variables, macros, types and
/// the tables of names are not read: they are half of the bytes.
fn is_needed_section(id: SectionId) -> bool {
    use SectionId::{
        DebugLoc, DebugLocLists, DebugMacinfo, DebugMacro, DebugNames, DebugPubNames, DebugTypes,
    };
    !matches!(
        id,
        DebugLoc
            | DebugLocLists
            | DebugMacinfo
            | DebugMacro
            | DebugNames
            | DebugPubNames
            | DebugTypes
    )
}
