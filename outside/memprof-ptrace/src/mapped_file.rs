//! The file of a mapping. Another process chose the path, which may name anything by now, and the file system, which
//! may be FUSE: then each step that touches the file may block for ever, even past SIGKILL.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::maps::Mapping;
use crate::proc_dir::{read_file_within, read_proc_text};

/// Key of a mount in /proc/PID/mountinfo.
#[derive(Clone, Copy, Debug)]
pub enum MountKey<'a> {
    /// Device as /proc/PID/maps has it: `major:minor` in hexadecimal digits.
    Device(&'a [u8]),
    /// Id as /proc/PID/fdinfo has it.
    Id(u64),
}

/// Most bytes of /proc/locks that are read, some 80 thousand locks: the kernel searches all locks for each page that is
/// read, and any user may have as many as memory allows.
const MAX_LOCKS_BYTES: u64 = 4 << 20;

/// The mounts that a process sees, as /proc/PID/mountinfo has them (proc(5)). `None` if they could not be read.
#[derive(Debug)]
pub struct Mounts(Option<String>);

impl Mounts {
    /// Reads the mounts of a process; none if it has ended.
    pub fn for_pid(pid: u32) -> Self {
        Self::from_mountinfo(read_proc_text(format!("/proc/{pid}/mountinfo")))
    }

    /// Wraps the result of reading a mountinfo. The kernel answers `EINVAL` for a zombie, which has no mounts.
    fn from_mountinfo(read: io::Result<String>) -> Self {
        const ENDED: [i32; 3] = [libc::ENOENT, libc::ESRCH, libc::EINVAL];
        Self(match read {
            Ok(text) => Some(text),
            Err(error)
                if error
                    .raw_os_error()
                    .is_some_and(|errno| ENDED.contains(&errno)) =>
            {
                Some(String::new())
            }
            Err(_) => None,
        })
    }

    /// Returns whether a mount is FUSE, so that some process answers its reads. False if the mount is not in this list;
    /// true if the list could not be read, because the mount may be FUSE then.
    pub fn is_fuse(&self, key: MountKey<'_>) -> bool {
        let is_fuse = |mounts: &String| mounts.lines().any(|mount| is_fuse_mount(mount, key));
        self.0.as_ref().is_none_or(is_fuse)
    }

    /// Returns whether a descriptor is of a file on FUSE, by `info`, the text of /proc/PID/fdinfo/FD. False if the text
    /// names no mount of this list. Like [`Self::is_fuse`] if the list could not be read.
    pub fn is_fuse_descriptor(&self, info: &str) -> bool {
        let id = info
            .lines()
            .find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
        id.is_some_and(|id| self.is_fuse(MountKey::Id(id)))
    }
}

/// Returns whether a line of /proc/PID/mountinfo is of a FUSE mount with this key. False for a malformed line.
fn is_fuse_mount(mount: &str, key: MountKey<'_>) -> bool {
    let Some((mount_fields, kind)) = mount.split_once(" - ") else {
        return false;
    };
    let mut fields = mount_fields.split(' ');
    // Fields 1 and 3 of mountinfo (proc(5)).
    let (id, device) = (fields.next(), fields.nth(1));
    let is_keyed = match key {
        MountKey::Id(expected) => id.and_then(|id| id.parse().ok()) == Some(expected),
        MountKey::Device(expected) => {
            let numbers = |text: &str, radix| {
                let (major, minor) = text.split_once(':')?;
                let number = |digits| u32::from_str_radix(digits, radix).ok();
                number(major).zip(number(minor))
            };
            let expected = str::from_utf8(expected).ok();
            let expected = expected.and_then(|expected| numbers(expected, 16));
            expected.is_some() && device.and_then(|device| numbers(device, 10)) == expected
        }
    };
    // A subtype may follow: `fuse.sshfs`.
    let kind = kind.split([' ', '.']).next();
    is_keyed && matches!(kind, Some("fuse" | "fuseblk"))
}

/// Opens the file of a mapping of process `pid` for reading. `None` if the path names another file now, or a file whose
/// opening may block or have an effect (FUSE, a FIFO, a device, a lease), or if the file cannot be opened.
pub fn open_mapped_file(pid: u32, mapping: &Mapping<'_>) -> Option<File> {
    if Mounts::for_pid(pid).is_fuse(MountKey::Device(mapping.device)) {
        return None;
    }
    let path = [format!("/proc/{pid}/root").as_bytes(), mapping.path].concat();
    open_regular_file(Path::new(OsStr::from_bytes(&path)), mapping.inode)
}

/// Opens a regular file with a known inode for reading. `None` if the path names no such file, if a process has a lease
/// for writing on the file, or if the file cannot be opened. Checks all this before the file is opened: opening a FIFO
/// can block, opening a device can have an effect, and opening a leased file sends a signal to the holder of the lease,
/// which may end it.
pub fn open_regular_file(path: &Path, inode: u64) -> Option<File> {
    // `O_PATH` names the file without opening it (open(2)).
    let handle = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path)
        .ok()?;
    let metadata = handle.metadata().ok()?;
    let is_expected = metadata.is_file() && metadata.ino() == inode;
    if !is_expected || has_write_lease(inode) {
        return None;
    }
    // The kernel's link refers to the file of the handle, even if the path names another one now. Without blocking: a
    // holder has 45 seconds to give up a lease that it took just now (/proc/sys/fs/lease-break-time).
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", handle.as_raw_fd()))
        .ok()
}

/// Returns whether a process has a lease for writing (`F_SETLEASE` of fcntl(2)) on a file with this inode. Ignores the
/// device, because that in /proc/locks is not always that of stat(2). Does not see leases of processes outside of this
/// pid namespace. False if there is no /proc/locks: a kernel without it has no leases.
fn has_write_lease(inode: u64) -> bool {
    // Read for each file. That a file is mapped does not exclude a lease: a process gets one by the descriptor that it
    // has mapped, or on a file of an overlay, whose mappings are of the file below. The kernel takes 6 ms for a read,
    // but 0.2 ms within 20 ms of another one, so what was read would have to be kept for longer to save time.
    match File::open("/proc/locks") {
        Ok(locks) => may_list_write_lease(locks, inode),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Returns whether the text of /proc/locks has a lease for writing on a file with this inode; also true if the text
/// cannot be read, or has more than [`MAX_LOCKS_BYTES`].
fn may_list_write_lease(locks: impl Read, inode: u64) -> bool {
    read_file_within(locks, MAX_LOCKS_BYTES).map_or(true, |text| {
        let text = String::from_utf8_lossy(&text);
        text.lines().any(|line| is_write_lease(line, inode))
    })
}

/// Returns whether a line of /proc/locks is of a lease for writing on a file with this inode, or of a delegation for
/// writing, which the opening of the file breaks too (`F_SETDELEG`, Linux 6.19). An example of a line is `1: LEASE
/// ACTIVE    WRITE 6820 fe:00:10019142 0 EOF`. A lease on another device with the same inode number counts too: its
/// only cost is that this file is not read.
fn is_write_lease(line: &str, inode: u64) -> bool {
    // Number, type, state, access, pid, file.
    let mut fields = line.split_whitespace().skip(1);
    let is_lease =
        matches!(fields.next(), Some("LEASE" | "DELEG")) && fields.nth(1) == Some("WRITE");
    let file = fields.nth(1).and_then(|file| file.rsplit(':').next());
    is_lease && file.and_then(|inode| inode.parse().ok()) == Some(inode)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::errno::Errno;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn fuse_mounts_are_recognized_by_device_and_id() {
        let check = |mount: &str, key: MountKey<'_>, expected: bool| {
            assert_eq!(is_fuse_mount(mount, key), expected, "{mount}");
        };
        let fuse = "36 35 0:40 / /mnt/f rw,nosuid shared:1 - fuse x rw,user_id=0,group_id=0";
        check(fuse, MountKey::Device(b"00:28"), true);
        check(fuse, MountKey::Device(b"00:40"), false);
        check(fuse, MountKey::Device(b""), false);
        check(fuse, MountKey::Id(36), true);
        check(fuse, MountKey::Id(35), false);
        let named = "36 35 0:40 / /mnt/f rw - fuse.sshfs x rw";
        check(named, MountKey::Id(36), true);
        let disk = "36 35 254:0 / /fuse rw - ext4 /dev/fuse rw";
        check(disk, MountKey::Device(b"fe:00"), false);
        check("36 35", MountKey::Id(36), false);
        let mounts = Mounts(Some(fuse.to_owned()));
        assert!(mounts.is_fuse_descriptor("pos:\t0\nflags:\t0100000\nmnt_id:\t36\nino:\t2\n"));
        assert!(!mounts.is_fuse_descriptor("pos:\t0\nflags:\t0100000\nmnt_id:\t37\n"));
    }

    #[test]
    fn unknown_mounts_may_be_fuse() {
        let check = |read: io::Result<String>, expected: bool| {
            let text = format!("{read:?}");
            let found = Mounts::from_mountinfo(read).is_fuse(MountKey::Id(36));
            assert_eq!(found, expected, "{text}");
        };
        check(Ok(String::new()), false);
        for errno in [Errno::ENOENT, Errno::ESRCH, Errno::EINVAL] {
            check(Err(errno.into()), false);
        }
        check(Err(Errno::EFBIG.into()), true);
        check(Err(Errno::EMFILE.into()), true);
    }

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
            let opened = open_regular_file(&path(name), inode);
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

    #[test]
    #[expect(unsafe_code, reason = "fcntl(2) for leases, which nix does not have")]
    fn file_with_write_lease_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leased");
        fs::write(&path, "text").unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let inode = file.metadata().unwrap().ino();
        let control = |command, argument: libc::c_int| {
            // SAFETY: fcntl(2) takes numbers, of a file that is open.
            unsafe { libc::fcntl(file.as_raw_fd(), command, argument) }
        };
        // A signal that is ignored: SIGIO would end this process.
        const F_SETSIG: libc::c_int = 10;
        assert_eq!(control(F_SETSIG, libc::SIGWINCH), 0);
        assert_eq!(control(libc::F_SETLEASE, libc::F_WRLCK), 0);
        assert!(open_regular_file(&path, inode).is_none());
        // An attempt to open it would have begun to reduce the lease to one for reading.
        assert_eq!(control(libc::F_GETLEASE, 0), libc::F_WRLCK);
        assert_eq!(control(libc::F_SETLEASE, libc::F_UNLCK), 0);
        drop(file);
        assert!(open_regular_file(&path, inode).is_some());
    }

    #[test]
    fn write_leases_are_recognized() {
        let check =
            |line, expected| assert_eq!(is_write_lease(line, 10_019_142), expected, "{line}");
        check("1: LEASE  ACTIVE    WRITE 6820 fe:00:10019142 0 EOF", true);
        check("2: LEASE  BREAKING  WRITE 6820 fe:00:10019142 0 EOF", true);
        check("3: LEASE  ACTIVE    READ 6820 fe:00:10019142 0 EOF", false);
        check("3: DELEG  ACTIVE    WRITE 6820 fe:00:10019142 0 EOF", true);
        check("3: DELEG  ACTIVE    READ 6820 fe:00:10019142 0 EOF", false);
        check("4: LEASE  ACTIVE    WRITE 6820 fe:00:7 0 EOF", false);
        check("5: POSIX  ADVISORY  WRITE 6820 fe:00:10019142 0 EOF", false);
        check(
            "5: -> POSIX  ADVISORY  WRITE 6820 fe:00:10019142 0 EOF",
            false,
        );
        check("6: LEASE", false);
        check("", false);
    }

    #[test]
    fn locks_that_are_not_read_to_the_end_may_have_a_lease() {
        let line = "3: POSIX  ADVISORY  WRITE 6820 fe:00:10019142 0 EOF\n";
        assert!(!may_list_write_lease(line.as_bytes(), 10_019_142));
        assert!(may_list_write_lease(io::repeat(b'\n'), 10_019_142));
    }
}
