//! Opens files that a profile or a binary names: regular ones only, never blocking, and below a root no link leads out
//! of it. Their tables are read up to a limit.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::Object as _;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::limited_file::LimitedFile;

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
    let object_file = object::File::parse(&cache);
    if cache.is_exceeded() {
        return Err(TooLarge);
    }
    let id = object_file.and_then(|object_file| Ok(object_file.build_id()?.map(<[u8]>::to_vec)));
    let hex = |id: Vec<u8>| id.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(id.ok().flatten().map(hex))
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
    (metadata.is_file() && !is_mostly_holes(metadata.len(), metadata.blocks())).then_some(file)
}

/// Returns whether a file declares far more than it holds, in bytes and in blocks of 512. A section in a hole costs
/// its writer nothing, but costs its reader unlimited memory and time. Linkers leave no large holes, and
/// compressing file systems do not save that much.
fn is_mostly_holes(length: u64, blocks: u64) -> bool {
    const MIN_CHECKED_BYTES: u64 = 64 << 20;
    const MAX_HOLE_RATIO: u64 = 16;
    length > MIN_CHECKED_BYTES && length / MAX_HOLE_RATIO > blocks.saturating_mul(512)
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
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(length)
                .unwrap();
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
}
