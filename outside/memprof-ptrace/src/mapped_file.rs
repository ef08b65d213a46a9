//! The file of a mapping, as another process chose it: it may name anything meanwhile.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::maps::Mapping;

/// Opens the file that a mapping of process `pid` shows. `None` where another one has its name now, or where it is none
/// that can be read without an effect or a wait: a FIFO, a device.
pub fn open_mapped(pid: u32, mapping: &Mapping<'_>) -> Option<File> {
    let path = [format!("/proc/{pid}/root").as_bytes(), mapping.path].concat();
    open_regular(Path::new(OsStr::from_bytes(&path)), mapping.inode)
}

/// Opens a file for reading if it is a regular one with that inode.
pub fn open_regular(path: &Path, inode: u64) -> Option<File> {
    // Names the file without opening it (open(2), `O_PATH`).
    let named = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path)
        .ok()?;
    let metadata = named.metadata().ok()?;
    let is_meant = metadata.is_file() && metadata.ino() == inode;
    // The kernel's own link to that file, whatever has its name now.
    is_meant
        .then(|| File::open(format!("/proc/self/fd/{}", named.as_raw_fd())).ok())
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
    fn only_the_regular_file_with_that_inode_is_opened() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let inode = |name: &str| fs::metadata(path(name)).unwrap().ino();
        fs::write(path("library.so"), "text").unwrap();
        symlink("library.so", path("link.so")).unwrap();
        // Opened for reading, it would wait for a writer.
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
