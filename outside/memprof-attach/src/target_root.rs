//! The root directory of a process, which differs from memprof's after chroot(2). Its contents belong to the
//! process; paths in it are resolved so that no link leads outside.

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

/// Directories for a temporary file, the best first.
const COPY_DIRS: [&str; 5] = ["tmp", "dev/shm", "var/tmp", "run", "."];
/// File name of the copy, by which the plugin is found in a process.
const COPY_NAME: &str = "memory_profile.so";

const ACCESS_MODE: Mode = Mode::from_raw_mode(0o755);
const DIRECTORY_FLAGS: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// An open /proc/PID/root.
#[derive(Debug)]
pub(crate) struct TargetRoot {
    pid: u32,
    root: OwnedFd,
}

/// A copy of the plugin's file, removed when dropped; by then it is mapped.
#[derive(Debug)]
pub(crate) struct TemporaryCopy {
    /// Path in the process's root directory.
    pub(crate) path: PathBuf,
    parent: OwnedFd,
    name: String,
    directory: OwnedFd,
}

impl TargetRoot {
    /// Opens the root directory of a process. Fails if the process has ended, or this user may not open it.
    pub(crate) fn for_pid(pid: u32) -> io::Result<Self> {
        let path = format!("/proc/{pid}/root");
        // The process cannot change this link, so it may be followed.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { pid, root })
    }

    /// Returns whether the process can open descriptors by their paths in /proc: /proc is mounted in its root
    /// directory.
    pub(crate) fn has_proc(&self) -> bool {
        let proc = self.open_directory("proc");
        proc.is_ok_and(|proc| statat(&proc, "self", AtFlags::SYMLINK_NOFOLLOW).is_ok())
    }

    /// Creates a file with these bytes that the process can open, in the first of [`COPY_DIRS`] where that works. Fails
    /// with the error of the last directory if it works in none.
    pub(crate) fn write_copy(&self, bytes: &[u8]) -> io::Result<TemporaryCopy> {
        let mut last_error = io::Error::from(Errno::NOENT);
        for dir in COPY_DIRS {
            match self.write_copy_in(dir, bytes) {
                Ok(copy) => return Ok(copy),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    /// Creates a file with these bytes in a new directory below `dir`. Fails if the process itself could not create
    /// such a file, or not execute it.
    fn write_copy_in(&self, dir: &str, bytes: &[u8]) -> io::Result<TemporaryCopy> {
        let parent = self.open_directory(dir)?;
        // Where the process may have mounted `dir` itself, its own rights count, not those of memprof.
        if !self.has_system_mounts() {
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
        let directory = create_dir(&parent, &name, ACCESS_MODE)?;
        let copy = TemporaryCopy {
            path: PathBuf::from(format!("/{dir}/{name}/{COPY_NAME}")),
            parent,
            name,
            directory,
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(openat(&copy.directory, COPY_NAME, flags, ACCESS_MODE)?);
        fchmod(&file, ACCESS_MODE)?;
        file.write_all(bytes)?;
        Ok(copy)
    }

    /// Returns whether the process is in this process's user namespace, where only a privileged process changes roots
    /// and mounts. In its own namespace, any process can mount any directory of the machine as its /tmp. False if one
    /// of the namespaces cannot be read.
    fn has_system_mounts(&self) -> bool {
        let namespace = |process: &str| {
            let namespace = fs::metadata(format!("/proc/{process}/ns/user"));
            namespace.map(|namespace| (namespace.dev(), namespace.ino()))
        };
        let target = namespace(&self.pid.to_string());
        target.is_ok_and(|target| namespace("self").is_ok_and(|own| own == target))
    }

    /// Opens the directory `path`, relative to the process's root. Symbolic links cannot leave the root. Fails if there
    /// is no such directory.
    pub(crate) fn open_directory(&self, path: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(&self.root, path, flags, Mode::empty(), resolve)?)
    }
}

/// Fails with `ACCESS` if the user with the id `user` cannot create files in a directory, by its owner and mode; rights
/// of groups do not count. memprof may run as root, and must create no file that the process itself could not create.
pub(crate) fn require_writable(directory: &Stat, user: u32) -> Result<(), Errno> {
    const WRITABLE_BY_OWNER: u32 = 0o200;
    const WRITABLE_BY_ALL: u32 = 0o002;
    let is_own = directory.st_uid == user && directory.st_mode & WRITABLE_BY_OWNER != 0;
    match user == 0 || is_own || directory.st_mode & WRITABLE_BY_ALL != 0 {
        true => Ok(()),
        false => Err(Errno::ACCESS),
    }
}

/// Creates the directory `name` in `parent` with exactly the rights `mode`, and opens it. Fails with `EPERM` if another
/// user has replaced the directory meanwhile.
fn create_dir(parent: &OwnedFd, name: &str, mode: Mode) -> io::Result<OwnedFd> {
    mkdirat(parent, name, mode)?;
    let directory = openat(parent, name, DIRECTORY_FLAGS, Mode::empty())?;
    if fstat(&directory)?.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::PERM.into());
    }
    // mkdirat(2) applies the umask, fchmod(2) does not.
    fchmod(&directory, mode)?;
    Ok(directory)
}

impl Drop for TemporaryCopy {
    /// Removes the copy and its directory.
    fn drop(&mut self) {
        // If this fails, the files stay in a directory for temporary files.
        let _ = unlinkat(&self.directory, COPY_NAME, AtFlags::empty());
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
    fn files_are_created_only_where_the_target_s_user_may() {
        let dir = tempfile::tempdir().unwrap();
        let check = |mode, user: u32, expected| {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            let directory = rustix::fs::stat(dir.path()).unwrap();
            let found = require_writable(&directory, user).is_ok();
            assert_eq!(found, expected, "{mode:o} {user}");
        };
        let own = rustix::process::geteuid().as_raw();
        check(0o700, own, true);
        check(0o700, own + 1, false);
        check(0o755, own + 1, false);
        check(0o1777, own + 1, true);
    }

    /// A directory in place of /tmp that only root may write to, for a process of another user: in the process's own
    /// user namespace, and as set up by a privileged process.
    #[test]
    fn nothing_is_created_where_the_target_may_not() {
        assert!(rustix::process::geteuid().is_root(), "this test needs root");
        let check = |before: &[&str], is_placed: bool| {
            let dir = tempfile::tempdir().unwrap();
            let tmp = dir.path().join("tmp");
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
                root: File::open(dir.path()).unwrap().into(),
            };
            let created = root.write_copy_in("tmp", b"plugin").map(drop);
            let remaining = fs::read_dir(&tmp).unwrap().count();
            fs::set_permissions(&tmp, fs::Permissions::from_mode(0o1777)).unwrap();
            let placed_for_all = root.write_copy_in("tmp", b"plugin").map(drop);
            process.kill().unwrap();
            process.wait().unwrap();
            match is_placed {
                true => created.unwrap(),
                false => {
                    let denied = Some(Errno::ACCESS.raw_os_error());
                    assert_eq!(created.unwrap_err().raw_os_error(), denied);
                }
            }
            assert_eq!(remaining, 0);
            placed_for_all.unwrap();
        };
        check(&["unshare", "--user"], false);
        check(&[], true);
    }
}
