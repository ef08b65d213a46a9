//! Opens files that a profile or a binary names: regular ones only, never blocking, and below a root no link leads out
//! of it. Their tables are read up to a limit.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::elf::{ELF_NOTE_GNU, FileHeader32, FileHeader64, NT_GNU_BUILD_ID};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, FileKind};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, SeekFrom, seek};
use rustix::io::Errno;

use super::limited_file::LimitedFile;

/// Most holes of a file that are looked for.
const MAX_HOLES: usize = 10_000;

/// Most bytes read of one binary, and of its debug file.
pub(super) const READ_LIMIT: u64 = 1 << 30;

/// Path relative to a root.
#[derive(Clone)]
pub(super) struct SearchPath {
    pub(super) root: PathBuf,
    pub(super) path: PathBuf,
}

/// A binary whose tables exceed [`READ_LIMIT`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

/// Returns the build id in hex. `None` if the file is no ELF or has none. Fails if more than [`READ_LIMIT`] bytes would
/// have to be read, or there is no memory for them.
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

/// Returns the build id of an ELF file, from its sections or, without any, its segments. `None` if it has none. An
/// [`object::File`] would read the whole symbol table for it.
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

/// Opens a regular file without blocking; no link leads out of its root, unless that is empty. `None` if it cannot be
/// opened, is not regular, or consists mostly of holes.
pub(super) fn open_regular(search_path: &SearchPath) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = if search_path.root.as_os_str().is_empty() {
        rustix::fs::open(&search_path.path, flags, Mode::empty())
    } else {
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, &search_path.root, directory, Mode::empty()).ok()?;
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(root, &search_path.path, flags, Mode::empty(), inside) {
            // openat2(2) is missing before Linux 5.6, and under some seccomp filters. No link leads out of "/".
            Err(Errno::NOSYS | Errno::PERM) if search_path.root == Path::new("/") => {
                rustix::fs::open(
                    search_path.root.join(&search_path.path),
                    flags,
                    Mode::empty(),
                )
            }
            opened => opened,
        }
    };
    let file = File::from(file.ok()?);
    let metadata = file.metadata().ok()?;
    let (length, blocks) = (metadata.len(), metadata.blocks());
    (metadata.is_file() && !is_mostly_holes(&file, length, blocks)).then_some(file)
}

/// Returns whether far fewer than `length` bytes of a file were written, which is only checked for large files. A
/// section in a hole, or in blocks that were only reserved (fallocate(2)), costs its writer nothing, but costs its
/// reader unlimited memory and time. Linkers leave no large holes, and compressing file systems, which may have fewer
/// `blocks` of 512 bytes, do not save that much.
fn is_mostly_holes(file: &File, length: u64, blocks: u64) -> bool {
    const MIN_CHECKED_BYTES: u64 = 64 << 20;
    const MAX_HOLE_RATIO: u64 = 16;
    let is_less = |bytes: u64| length / MAX_HOLE_RATIO > bytes;
    length > MIN_CHECKED_BYTES
        && (is_less(blocks.saturating_mul(512)) || is_less(written_bytes(file, length)))
}

/// Bytes of a file that were written, as far as its file system tells (`SEEK_DATA` of lseek(2)). After [`MAX_HOLES`]
/// holes, all the rest counts as written.
fn written_bytes(file: &File, length: u64) -> u64 {
    let mut written = 0;
    let mut next = 0;
    for _ in 0..MAX_HOLES {
        let data = match seek(file, SeekFrom::Data(next)) {
            Ok(data) => data,
            // Only a hole follows.
            Err(Errno::NXIO) => length,
            Err(_) => next,
        };
        next = seek(file, SeekFrom::Hole(data)).unwrap_or(length).max(data);
        written += next - data;
        if next >= length {
            break;
        }
    }
    // The file is read from its start.
    let _start = seek(file, SeekFrom::Start(0));
    written + length.saturating_sub(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_file_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let check = |length: u64, bytes: usize, expected: bool| {
            let path = directory.path().join("library.so");
            std::fs::write(&path, vec![1; bytes]).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(length).unwrap();
            let root = PathBuf::new();
            let opened = open_regular(&SearchPath { root, path });
            assert_eq!(opened.is_some(), expected, "{length} {bytes}");
        };
        check(7 << 30, 20 << 10, false);
        check(1 << 40, 1 << 20, false);
        // Such as a library with an empty table.
        check(1 << 20, 4096, true);
        check(65 << 20, 8 << 20, true);
    }

    #[test]
    fn reserved_blocks_count_as_holes() {
        let file = tempfile::tempfile().unwrap();
        let length = 80 << 20;
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], 40 << 20).unwrap();
        let flags = rustix::fs::FallocateFlags::empty();
        // A file system without fallocate(2) leaves a hole.
        if rustix::fs::fallocate(&file, flags, 0, length).is_err() {
            file.set_len(length).unwrap();
        }
        file.sync_all().unwrap();
        assert!(written_bytes(&file, length) < length / 16);
        assert!(is_mostly_holes(&file, length, length / 512));
        let dense = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut &dense, &vec![1; 5 << 20]).unwrap();
        assert_eq!(written_bytes(&dense, 5 << 20), 5 << 20);
    }
}
