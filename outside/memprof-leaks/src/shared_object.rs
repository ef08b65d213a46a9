//! Objects of shared mappings: files, memory files and anonymous shared memory.
//!
//! A copy of a process has the mappings, but none of their page tables (kernel/fork.c, `vma_needs_copy`): to read a
//! page there would make the kernel allocate it. The object itself can be read without an effect, also those parts of
//! it that the process has never touched.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use memprof_ptrace::mapped_file::open_regular_file;
use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs, statfs};

use crate::regions::Region;

/// `MQUEUE_MAGIC` of the kernel's ipc/mqueue.c.
const MQUEUE_MAGIC: libc::__fsword_t = 0x1980_0202;

/// An opened object.
#[derive(Debug)]
pub(crate) struct SharedObject {
    file: File,
    /// Whether it exists in memory only, not on a disk.
    pub(crate) is_memory: bool,
    is_message_queue: bool,
}

impl SharedObject {
    /// Opens the object of a mapping of process `pid`: by the link in `/proc/PID/map_files`, else by the mapping's
    /// path, else by a descriptor of the process; each must have the mapping's inode. `None` if it is a file on FUSE,
    /// which may block forever, or if this user may not open it: without privileges, the object of anonymous memory has
    /// no name.
    pub(crate) fn open_mapped_file(pid: i32, region: &Region) -> Option<Self> {
        if region.is_on_fuse(pid) {
            return None;
        }
        let Range { start, end } = region.range;
        // map_files needs privileges, the path may name another file, and the descriptor may be closed. The inode
        // identifies the object.
        let open = |path: String| open_regular_file(Path::new(&path), region.inode);
        let file = open(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
        let file = file.or_else(|| open(format!("/proc/{pid}/root{}", region.name)));
        file.or_else(|| {
            let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
            let mut paths = descriptors.flatten().map(|entry| entry.path());
            paths.find_map(|path| open_regular_file(&path, region.inode))
        })
        .map(Self::from_file)
    }

    /// Whether a file is in memory only, or a POSIX message queue. Does not open it.
    pub(crate) fn is_in_memory(path: &Path) -> bool {
        let kind = statfs(path).map(|status| status.filesystem_type());
        kind.is_ok_and(|kind| is_memory_kind(kind) || is_message_queue_kind(kind))
    }

    /// Wraps an opened file, and finds out whether it is in memory or a POSIX message queue. Later calls change the
    /// file's position.
    pub(crate) fn from_file(file: File) -> Self {
        let kind = fstatfs(&file).map(|status| status.filesystem_type());
        Self {
            is_memory: kind.is_ok_and(is_memory_kind),
            is_message_queue: kind.is_ok_and(is_message_queue_kind),
            file,
        }
    }

    /// Text that describes a POSIX message queue. `None` if the object is none.
    pub(crate) fn message_queue_text(&self) -> Option<String> {
        let mut bytes = [0; 256];
        let read = self.is_message_queue.then(|| self.read(0, &mut bytes))?;
        Some(String::from_utf8_lossy(&bytes[..read]).into_owned())
    }

    /// Parts of a range of the object that have data, by offset. The rest are holes, which read as zeros.
    pub(crate) fn data_ranges(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut data = Vec::new();
        let mut offset = range.start;
        while offset < range.end
            && let Ok(start) = seek_data_or_hole(&self.file, offset, libc::SEEK_DATA)
        {
            let end = seek_data_or_hole(&self.file, start, libc::SEEK_HOLE).unwrap_or(range.end);
            if start >= range.end || end <= start {
                break;
            }
            data.push(start.max(range.start)..end.min(range.end));
            offset = end;
        }
        data
    }

    /// Reads as many bytes at an offset as there are, and returns their number.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        done
    }

    /// Size in bytes; 0 if it cannot be read. Moves the file's position.
    pub(crate) fn size(&self) -> u64 {
        let mut file = &self.file;
        file.seek(SeekFrom::End(0)).unwrap_or(0)
    }
}

/// Whether files of a file system exist in memory only.
fn is_memory_kind(kind: FsType) -> bool {
    kind == TMPFS_MAGIC || kind == HUGETLBFS_MAGIC
}

/// Whether files of a file system are POSIX message queues.
fn is_message_queue_kind(kind: FsType) -> bool {
    kind.0 == MQUEUE_MAGIC
}

/// Finds the next data (`whence` is `SEEK_DATA`) or hole (`SEEK_HOLE`) of a file at or after an offset (lseek(2)), and
/// moves the file's position there. Fails if there is none.
fn seek_data_or_hole(file: &File, offset: u64, whence: libc::c_int) -> io::Result<u64> {
    let whence = match whence {
        libc::SEEK_DATA => nix::unistd::Whence::SeekData,
        _ => nix::unistd::Whence::SeekHole,
    };
    let found = nix::unistd::lseek(file, offset.cast_signed(), whence)?;
    Ok(found.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    #[test]
    fn data_between_holes_is_found() {
        let file = File::from(
            nix::sys::memfd::memfd_create("test", nix::sys::memfd::MFdFlags::empty()).unwrap(),
        );
        file.set_len(10 * PAGE).unwrap();
        file.write_all_at(b"data", 2 * PAGE).unwrap();
        file.write_all_at(b"more", 5 * PAGE).unwrap();
        let object = SharedObject::from_file(file);
        assert!(object.is_memory);
        let check = |range, expected: &[(u64, u64)]| {
            let found = object.data_ranges(range);
            let pages = found.iter().map(|run| (run.start / PAGE, run.end / PAGE));
            assert!(pages.eq(expected.iter().copied()), "{found:?}");
        };
        check(0..10 * PAGE, &[(2, 3), (5, 6)]);
        check(3 * PAGE..10 * PAGE, &[(5, 6)]);
        check(6 * PAGE..10 * PAGE, &[]);
        let mut bytes = [1; 6];
        assert_eq!(object.read(2 * PAGE, &mut bytes), 6);
        assert_eq!(&bytes, b"data\0\0");
        assert_eq!(object.read(10 * PAGE - 2, &mut bytes), 2);
        assert_eq!(object.size(), 10 * PAGE);
    }
}
