//! Opens files that a profile or a binary names: regular ones only, never blocking, and below a root no link leads out
//! of it. Their tables are read up to a limit.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, SeekFrom, seek};
use rustix::io::Errno;

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

/// Opens a regular file below a root, without blocking. Symbolic links are followed, but never lead out of the root; an
/// empty root means none. `None` if the file cannot be opened, is not regular, or consists mostly of holes, which would
/// cost the reader unlimited memory.
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

/// Returns the number of a file's bytes that were written, as far as its file system knows (`SEEK_DATA` of lseek(2)).
/// After [`MAX_HOLES`] holes, all the rest counts as written. Moves the file's position to its start.
fn written_bytes(file: &File, length: u64) -> u64 {
    let mut written = 0;
    let mut next = 0;
    for _ in 0..MAX_HOLES {
        let data = match seek(file, SeekFrom::Data(next)) {
            Ok(data) => data,
            // Only a hole follows.
            Err(Errno::NXIO) => length,
            // The file system does not know: what follows counts as written.
            Err(_) => next,
        };
        next = seek(file, SeekFrom::Hole(data)).unwrap_or(length).max(data);
        written += next - data;
        if next >= length {
            break;
        }
    }
    // The searches have moved the position, and readers of the file begin at its start.
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
