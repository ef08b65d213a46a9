//! The root directory of a process, where it is another one than ours, as after chroot(2). What lies there
//! is the process's: no link in it leads outside.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::SystemTime;

use memprof_ptrace::process::ProcStatus;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat, StatVfsMountFlags, fchmod, fstat, fstatvfs,
    mkdirat, openat, openat2, statat, unlinkat,
};
use rustix::io::Errno;

/// Where a file can be for a moment, the best first.
const PLACES: [&str; 5] = ["tmp", "dev/shm", "var/tmp", "run", "."];
/// Who looks for the plugin in a process looks for this name.
const FILE: &str = "memory_profile.so";

const FOR_ALL: Mode = Mode::from_raw_mode(0o755);
const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// An open /proc/PID/root.
#[derive(Debug)]
pub(crate) struct TargetRoot {
    pid: u32,
    root: OwnedFd,
}

/// A copy of the plugin's file, removed when dropped: by then it is mapped.
#[derive(Debug)]
pub(crate) struct TemporaryCopy {
    /// As the process calls it.
    pub(crate) path: PathBuf,
    parent: OwnedFd,
    name: String,
    directory: OwnedFd,
}

impl TargetRoot {
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let path = format!("/proc/{pid}/root");
        // The link itself is the kernel's.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { pid, root })
    }

    /// Whether the process can open its descriptors by their paths.
    pub(crate) fn has_proc(&self) -> bool {
        let proc = self.directory("proc");
        proc.is_ok_and(|proc| statat(&proc, "self", AtFlags::SYMLINK_NOFOLLOW).is_ok())
    }

    /// Puts a file there that the process can open.
    pub(crate) fn put_file(&self, bytes: &[u8]) -> io::Result<TemporaryCopy> {
        let mut why = io::Error::from(Errno::NOENT);
        for place in PLACES {
            match self.put_file_in(place, bytes) {
                Ok(placed) => return Ok(placed),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    fn put_file_in(&self, place: &str, bytes: &[u8]) -> io::Result<TemporaryCopy> {
        let parent = self.directory(place)?;
        if !self.is_chosen_by_the_system() {
            let [_, user, ..] = ProcStatus::read_thread(self.pid)
                .map_err(|refusal| io::Error::other(refusal.to_string()))?
                .uids;
            require_writable(&fstat(&parent)?, user)?;
        }
        if fstatvfs(&parent)?
            .f_flag
            .contains(StatVfsMountFlags::NOEXEC)
        {
            return Err(Errno::PERM.into());
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_micros());
        let name = format!("memprof-attach-{}-{now}", self.pid);
        let directory = make(&parent, &name, FOR_ALL)?;
        let placed = TemporaryCopy {
            path: PathBuf::from(format!("/{place}/{name}/{FILE}")),
            parent,
            name,
            directory,
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(openat(&placed.directory, FILE, flags, FOR_ALL)?);
        fchmod(&file, FOR_ALL)?;
        file.write_all(bytes)?;
        Ok(placed)
    }

    /// Whether the process is in the user namespace of this one, where only a privileged process changes roots and
    /// mounts. In a namespace of its own any process makes any directory of the machine its /tmp.
    fn is_chosen_by_the_system(&self) -> bool {
        let namespace = |process: &str| {
            let namespace = fs::metadata(format!("/proc/{process}/ns/user"));
            namespace.map(|namespace| (namespace.dev(), namespace.ino()))
        };
        let its = namespace(&self.pid.to_string());
        its.is_ok_and(|its| namespace("self").is_ok_and(|own| own == its))
    }

    pub(crate) fn directory(&self, path: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(&self.root, path, flags, Mode::empty(), resolve)?)
    }
}

/// Fails where a user cannot make files in a directory: root makes none for a process where the process could not.
pub(crate) fn require_writable(directory: &Stat, user: u32) -> Result<(), Errno> {
    const WRITABLE_BY_OWNER: u32 = 0o200;
    const WRITABLE_BY_ALL: u32 = 0o002;
    let is_own = directory.st_uid == user && directory.st_mode & WRITABLE_BY_OWNER != 0;
    match user == 0 || is_own || directory.st_mode & WRITABLE_BY_ALL != 0 {
        true => Ok(()),
        false => Err(Errno::ACCESS),
    }
}

/// Makes a directory that nobody else has put there.
fn make(parent: &OwnedFd, name: &str, mode: Mode) -> io::Result<OwnedFd> {
    mkdirat(parent, name, mode)?;
    let made = openat(parent, name, DIRECTORY, Mode::empty())?;
    if fstat(&made)?.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::PERM.into());
    }
    // Whatever the umask is.
    fchmod(&made, mode)?;
    Ok(made)
}

impl Drop for TemporaryCopy {
    fn drop(&mut self) {
        // What cannot be removed lies in a directory for what is left over.
        let _ = unlinkat(&self.directory, FILE, AtFlags::empty());
        let _ = unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn files_are_made_only_where_the_process_s_user_could() {
        let place = tempfile::tempdir().unwrap();
        let check = |mode, user: u32, expected| {
            fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
            let directory = rustix::fs::stat(place.path()).unwrap();
            let found = require_writable(&directory, user).is_ok();
            assert_eq!(found, expected, "{mode:o} {user}");
        };
        let own = rustix::process::geteuid().as_raw();
        check(0o700, own, true);
        check(0o700, own + 1, false);
        check(0o755, own + 1, false);
        check(0o1777, own + 1, true);
    }

    /// A directory in the place of /tmp that only root may write to, before a process of another user: in a user
    /// namespace of its own, and as a privileged process arranged it.
    #[test]
    fn nothing_is_placed_where_the_process_could_not() {
        assert!(rustix::process::geteuid().is_root(), "this test needs root");
        let check = |before: &[&str], is_placed: bool| {
            let place = tempfile::tempdir().unwrap();
            let tmp = place.path().join("tmp");
            fs::create_dir(&tmp).unwrap();
            let words = [before, &["sh", "-c", "echo; exec sleep 60"]].concat();
            let mut process = Command::new(words[0])
                .args(&words[1..])
                .uid(65_534)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            process.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
            let root = TargetRoot {
                pid: process.id(),
                root: File::open(place.path()).unwrap().into(),
            };
            let placed = root.put_file_in("tmp", b"plugin").map(drop);
            let left = fs::read_dir(&tmp).unwrap().count();
            fs::set_permissions(&tmp, fs::Permissions::from_mode(0o1777)).unwrap();
            let placed_for_all = root.put_file_in("tmp", b"plugin").map(drop);
            process.kill().unwrap();
            process.wait().unwrap();
            match is_placed {
                true => placed.unwrap(),
                false => {
                    let denied = Some(Errno::ACCESS.raw_os_error());
                    assert_eq!(placed.unwrap_err().raw_os_error(), denied);
                }
            }
            assert_eq!(left, 0);
            placed_for_all.unwrap();
        };
        check(&["unshare", "--user"], false);
        check(&[], true);
    }
}
