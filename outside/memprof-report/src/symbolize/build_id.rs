//! Reads the build ids of files, by which a binary and its debug file are recognized.

use std::fs::File;

use object::elf::{ELF_NOTE_GNU, FileHeader32, FileHeader64, NT_GNU_BUILD_ID};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, FileKind};

use super::limited_file::LimitedFile;
use super::regular_file::READ_LIMIT;

/// A binary whose tables exceed [`READ_LIMIT`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

/// Returns the build id of a file in hex. `None` if the file is no ELF file, is damaged or has none. Fails if more than
/// [`READ_LIMIT`] bytes would have to be read, or there is no memory for them.
pub(super) fn build_id(file: &File) -> std::result::Result<Option<String>, TooLarge> {
    let cache = LimitedFile::new(file, READ_LIMIT);
    let id = match FileKind::parse(&cache) {
        Ok(FileKind::Elf32) => find_build_id::<FileHeader32<Endianness>>(&cache),
        Ok(FileKind::Elf64) => find_build_id::<FileHeader64<Endianness>>(&cache),
        _ => Ok(None),
    };
    if cache.is_exceeded() {
        return Err(TooLarge);
    }
    let hex = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(id.ok().flatten().map(hex))
}

/// Returns the build id of an ELF file, from the notes in its sections or, if it has no sections, in its segments.
/// `None` if it has none. Fails if the file is damaged. Reads only headers and notes, because an [`object::File`] would
/// read the whole symbol table.
fn find_build_id<'d, H: FileHeader<Endian = Endianness>>(
    file: &'d LimitedFile<&File>,
) -> object::Result<Option<&'d [u8]>> {
    let header = H::parse(file)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, file)?;
    let of_sections = sections.iter().map(|section| section.notes(endian, file));
    let segments = match sections.is_empty() {
        true => header.program_headers(endian, file)?,
        false => &[],
    };
    let of_segments = segments.iter().map(|segment| segment.notes(endian, file));
    for notes in of_sections.chain(of_segments) {
        let Some(mut notes) = notes? else { continue };
        while let Some(note) = notes.next()? {
            if note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID {
                return Ok(Some(note.desc()));
            }
        }
    }
    Ok(None)
}
