//! Empty directories that the plugin leaves in a process's own root directory, as in a container, where nothing else
//! removes them. Paths that the process chose are resolved so that no link leads outside of its root.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memprof_host::client::Client;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, openat, openat2, statat, unlinkat};

/// Name of the directories above those of single programs.
const MEMPROF: &str = "memprof";

/// Root directory of a process that is not memprof's, with the directories that the plugin makes there.
#[derive(Debug)]
pub(crate) struct Leftovers {
    root: OwnedFd,
    /// User of the process: the owner of everything that the plugin created there.
    user: u32,
    directories: Vec<PathBuf>,
}

impl Leftovers {
    /// Finds the directories that the plugin may leave in a process's root directory. Requests the dump directory from
    /// the plugin, so call this before the plugin is detached. `None` if this program has the same root directory, or
    /// if the process's root or owner cannot be read.
    pub(crate) fn for_process(pid: u32, client: &mut Client) -> Option<Self> {
        let path = format!("/proc/{pid}/root");
        let [own, target] = ["/", &path].map(|path| {
            let metadata = fs::metadata(path).ok()?;
            Some((metadata.dev(), metadata.ino()))
        });
        if own == target {
            return None;
        }
        // The process cannot change this link, so it may be followed.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty()).ok()?;
        let user = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        let mut directories: Vec<PathBuf> = Vec::new();
        if let Ok(status) = client.status() {
            let dump_dir = Path::new(&status.dump_dir);
            let is_memprofs = |path: &Path| {
                path == dump_dir || path.file_name().is_some_and(|name| name == MEMPROF)
            };
            // From the dump directory upwards: each must be empty before the one above it can be removed.
            let above = dump_dir.ancestors();
            let made = above.filter(|path| is_memprofs(path));
            directories.extend(made.map(Path::to_owned));
        }
        directories.extend([
            // The directories of the control socket: of other users, and of root.
            PathBuf::from(format!("/tmp/memprof-{user}")),
            PathBuf::from("/run/memprof"),
        ]);
        Some(Self {
            root,
            user,
            directories,
        })
    }

    /// Removes the directories that are empty and belong to the process's user. Ignores errors.
    pub(crate) fn remove_empty_directories(&self) {
        for directory in &self.directories {
            self.unlink(directory, AtFlags::REMOVEDIR);
        }
    }

    /// Removes a file at a path below the root, unless it belongs to another user. Ignores errors.
    pub(crate) fn remove_file(&self, path: &Path) {
        self.unlink(path, AtFlags::empty());
    }

    /// Removes the file at a path below the root, or the empty directory if `flags` are `REMOVEDIR`. Removes nothing of
    /// another user than the process's: the process chose the path, which may name a file that the plugin did not
    /// create. Ignores errors.
    fn unlink(&self, path: &Path, flags: AtFlags) {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return;
        };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(parent) = openat2(&self.root, parent, directory, Mode::empty(), resolve) {
            let found = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW);
            if found.is_ok_and(|found| found.st_uid == self.user) {
                let _ = unlinkat(&parent, name, flags);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_empty_directories_below_the_root_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        for name in [
            "root/tmp/memprof-0",
            "root/var/lib/memprof/web",
            "outside/memprof-0",
        ] {
            fs::create_dir_all(path(name)).unwrap();
        }
        fs::write(path("root/var/lib/memprof/web/kept.heap"), "").unwrap();
        symlink(path("outside"), path("root/link")).unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let leftovers = Leftovers {
            root: openat(CWD, path("root"), flags, Mode::empty()).unwrap(),
            user: rustix::process::geteuid().as_raw(),
            directories: [
                "/var/lib/memprof/web",
                "/tmp/memprof-0",
                "/link/memprof-0",
                "/none/x",
            ]
            .map(PathBuf::from)
            .into(),
        };
        leftovers.remove_empty_directories();
        assert!(!path("root/tmp/memprof-0").exists());
        assert!(path("root/var/lib/memprof/web").exists());
        assert!(path("outside/memprof-0").exists());
        let kept = Path::new("/var/lib/memprof/web/kept.heap");
        let of_another_user = Leftovers {
            root: leftovers.root.try_clone().unwrap(),
            user: leftovers.user + 1,
            directories: Vec::new(),
        };
        of_another_user.remove_file(kept);
        assert!(path("root").join("var/lib/memprof/web/kept.heap").exists());
        leftovers.remove_file(kept);
        leftovers.remove_empty_directories();
        assert!(!path("root/var/lib/memprof/web").exists());
    }
}
