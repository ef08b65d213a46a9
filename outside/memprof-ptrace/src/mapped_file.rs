//! The file of a mapping. Another process chose its path, which may name anything by now.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::maps::Mapping;

/// Opens the file that a mapping of process `pid` shows. `None` if the path names another file now, or a file whose
/// opening may block or have an effect (a FIFO, a device).
pub fn open_mapped(pid: u32, mapping: &Mapping<'_>) -> Option<File> {
    let path = [format!("/proc/{pid}/root").as_bytes(), mapping.path].concat();
    open_regular(Path::new(OsStr::from_bytes(&path)), mapping.inode)
}

/// Opens a file for reading. `None` if it is not regular, has another inode or cannot be opened; opening it then
/// has no effect and does not block.
pub fn open_regular(path: &Path, inode: u64) -> Option<File> {
    // `O_PATH` names the file without opening it (open(2)).
    let handle = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path)
        .ok()?;
    let metadata = handle.metadata().ok()?;
    let is_expected = metadata.is_file() && metadata.ino() == inode;
    // The kernel's link refers to that file even if the path names another one now.
    is_expected
        .then(|| File::open(format!("/proc/self/fd/{}", handle.as_raw_fd())).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn only_the_regular_file_with_the_inode_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let inode = |name: &str| fs::metadata(path(name)).unwrap().ino();
        fs::write(path("library.so"), "text").unwrap();
        symlink("library.so", path("link.so")).unwrap();
        // Opening a FIFO for reading blocks until there is a writer.
        mkfifo(&path("fifo"), Mode::S_IRWXU).unwrap();
        symlink("/dev/zero", path("device")).unwrap();
        let check = |name: &str, inode, expected: bool| {
            let opened = open_regular(&path(name), inode);
            assert_eq!(opened.is_some(), expected, "{name}");
        };
        check("library.so", inode("library.so"), true);
        check("link.so", inode("library.so"), true);
        check("library.so", inode("library.so") + 1, false);
        check("fifo", inode("fifo"), false);
        check("device", inode("device"), false);
        check(".", inode("."), false);
        check("absent", 1, false);
    }
}
