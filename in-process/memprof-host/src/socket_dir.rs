//! Directories of control sockets, and checks that they are safe.

#[cfg(any(feature = "control", feature = "client"))]
pub(crate) mod abstract_name;
#[cfg(any(feature = "control", feature = "client"))]
pub mod lock;

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Environment variable that names another directory.
pub const VARIABLE: &str = "MEMPROF_SOCKET_DIR";

/// Returns the default directory of a user's sockets: `$MEMPROF_SOCKET_DIR`, otherwise `$XDG_RUNTIME_DIR/memprof`,
/// otherwise `/run/memprof` for root and `/tmp/memprof-<uid>` for other users. `variable` reads the environment; a
/// value that is no absolute path is ignored.
pub fn default_dir(uid: u32, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let absolute = |name| {
        variable(name)
            .map(PathBuf::from)
            .filter(|dir| dir.is_absolute())
    };
    absolute(VARIABLE)
        .or_else(|| absolute("XDG_RUNTIME_DIR").map(|runtime| runtime.join("memprof")))
        .unwrap_or_else(|| default_dir_for(uid))
}

/// Returns the default directory of a user for whom no environment variable names one.
fn default_dir_for(uid: u32) -> PathBuf {
    match uid {
        0 => PathBuf::from("/run/memprof"),
        uid => tmp_dir(uid),
    }
}

/// Returns the directory of a user's sockets in /tmp, for a user who has none in /run: `/tmp/memprof-<uid>`.
pub fn tmp_dir(uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/memprof-{uid}"))
}

/// A directory that may contain the sockets of hosts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SocketDir {
    /// Path of the directory.
    pub directory: PathBuf,
    /// Id of the user in its name, who must own it, because any user may create a directory in `/tmp`. `None` if the
    /// name contains no user.
    pub named_after: Option<u32>,
}

/// Returns every directory that may contain the socket of a host to which this user may connect. There are several,
/// because the environment of a daemon differs from that of the shell. For root these are the directories of all users.
/// `variable` reads the environment.
pub fn socket_dirs(uid: u32, variable: impl Fn(&str) -> Option<OsString>) -> Vec<SocketDir> {
    let without_variable = |name: &str| variable(name).filter(|_| name != VARIABLE);
    let mut dirs: Vec<SocketDir> = standard_dirs_of_user(uid).collect();
    if uid == 0 {
        dirs.push(SocketDir {
            directory: default_dir_for(0),
            named_after: Some(0),
        });
        dirs.extend(
            users_with_socket_dirs()
                .into_iter()
                .flat_map(standard_dirs_of_user),
        );
    }
    // A host may have been started without `MEMPROF_SOCKET_DIR`.
    let from_environment = [
        default_dir(uid, &variable),
        default_dir(uid, without_variable),
    ];
    for directory in from_environment {
        if !dirs.iter().any(|dir| dir.directory == directory) {
            dirs.push(SocketDir {
                directory,
                named_after: None,
            });
        }
    }
    dirs.sort();
    dirs.dedup();
    dirs
}

/// Returns the directories that a user may have, whatever the environment.
fn standard_dirs_of_user(uid: u32) -> impl Iterator<Item = SocketDir> {
    let directories = [
        format!("/run/user/{uid}/memprof"),
        format!("/tmp/memprof-{uid}"),
    ];
    directories.into_iter().map(move |directory| SocketDir {
        directory: directory.into(),
        named_after: Some(uid),
    })
}

/// Returns the users that have a runtime directory, or a directory of memprof's in `/tmp`. A user may be listed twice.
fn users_with_socket_dirs() -> Vec<u32> {
    let names = |parent: &str| {
        // A parent that cannot be read contains no socket that can be reached.
        let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    let with_runtime = names("/run/user").filter_map(|name| name.parse().ok());
    let in_tmp = names("/tmp").filter_map(|name| name.strip_prefix("memprof-")?.parse().ok());
    with_runtime.chain(in_tmp).collect()
}

impl SocketDir {
    /// Returns the user whose hosts the directory contains. `None` if there is no such directory.
    ///
    /// # Errors
    /// `PermissionDenied` if the name contains a user, and the path is no directory of that user, of this process's
    /// user or of root. Also the errors of stat(2).
    pub fn owner(&self) -> io::Result<Option<u32>> {
        use io::ErrorKind::{NotADirectory, NotFound};
        // A link is followed only if the name contains no user: any user may create one in /tmp that leads elsewhere.
        let metadata = match self.named_after {
            Some(_) => self.directory.symlink_metadata(),
            None => self.directory.metadata(),
        };
        let metadata = match metadata {
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(None),
            metadata => metadata?,
        };
        let own = rustix::process::geteuid().as_raw();
        let owner = metadata.uid();
        match self.named_after {
            Some(named) if !metadata.is_dir() || ![named, own, 0].contains(&owner) => {
                let message = match metadata.is_dir() {
                    true => {
                        format!("it belongs to uid {owner}, not to uid {named} as its name says")
                    }
                    false => format!("it is not a directory of uid {named}, as its name says"),
                };
                Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
            }
            _ => Ok(Some(owner)),
        }
    }
}

/// Returns the default directory of this process, by its effective user and its environment.
pub fn own_default_dir() -> PathBuf {
    default_dir(rustix::process::geteuid().as_raw(), |name| {
        std::env::var_os(name)
    })
}

/// Creates `directory` with mode 0700 if it is missing, and checks that it belongs to this user and that no other user
/// has any right to it.
///
/// # Errors
/// The errors of mkdir(2) and stat(2); `PermissionDenied` if another user could create a socket there.
pub fn ensure_private_dir(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let metadata = directory.symlink_metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || metadata.uid() != own || metadata.mode() & 0o077 != 0 {
        return Err(insecure_dir_error(
            directory,
            &format!("it must be a directory of uid {own}, mode 0700"),
        ));
    }
    Ok(())
}

/// Checks a directory for a configured socket: only the owner of a file in it may replace the file.
///
/// # Errors
/// The errors of stat(2); `PermissionDenied` if others may rename files in it.
pub fn check_socket_parent(directory: &Path) -> io::Result<()> {
    // In a sticky directory (0o1000), only a file's owner may rename it.
    let metadata = directory.metadata()?;
    if metadata.mode() & 0o022 != 0 && metadata.mode() & 0o1000 == 0 {
        return Err(insecure_dir_error(directory, "others may write to it"));
    }
    Ok(())
}

/// Returns the default names of the sockets of process `pid`: of its first host, and of up to eight further ones, such
/// as a second plugin in a foreign program.
#[cfg(any(feature = "client", feature = "control"))]
pub(crate) fn socket_names(pid: u32) -> impl Iterator<Item = String> {
    let further = (2..=9).map(move |number| format!("{pid}.{number}.sock"));
    std::iter::once(format!("{pid}.sock")).chain(further)
}

/// Returns the id of the process whose socket has this name by default. `None` for another name.
#[cfg(feature = "adapter-postgres")]
pub(crate) fn pid_in_name(name: &str) -> Option<u32> {
    let pid = name.split('.').next()?.parse().ok()?;
    let is_default = socket_names(pid).any(|default| default == name);
    is_default.then_some(pid)
}

/// Lists the files in a directory whose extension is `sock`, as paths sorted by name. Empty if `directory` is missing,
/// or is another file than a directory, which any user may create in /tmp.
///
/// # Errors
/// The errors of readdir(3).
pub fn list_sockets(directory: &Path) -> io::Result<Vec<PathBuf>> {
    use io::ErrorKind::{NotADirectory, NotFound};
    let entries = match std::fs::read_dir(directory) {
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut sockets = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "sock")
        {
            sockets.push(path);
        }
    }
    sockets.sort();
    Ok(sockets)
}

/// Creates the error of a directory that is not safe.
fn insecure_dir_error(directory: &Path, reason: &str) -> io::Error {
    let message = format!("{} is not safe for a socket: {reason}", directory.display());
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn default_dir_depends_on_user_and_environment() {
        let check = |uid, runtime: Option<&str>, expected: &str| {
            let variable = |name: &str| {
                runtime
                    .filter(|_| name == "XDG_RUNTIME_DIR")
                    .map(OsString::from)
            };
            assert_eq!(default_dir(uid, variable), Path::new(expected));
        };
        check(0, None, "/run/memprof");
        check(0, Some("/run/user/0"), "/run/user/0/memprof");
        check(1000, Some(""), "/tmp/memprof-1000");
        check(1000, None, "/tmp/memprof-1000");
    }

    #[test]
    fn socket_dirs_include_user_and_environment() {
        let check = |uid, name: &'static str, value: &str, expected: &[(&str, Option<u32>)]| {
            let variable = |requested: &str| (requested == name).then(|| OsString::from(value));
            let dirs = socket_dirs(uid, variable);
            for (directory, named_after) in expected {
                let dir = SocketDir {
                    directory: directory.into(),
                    named_after: *named_after,
                };
                assert!(dirs.contains(&dir), "{directory}: {dirs:?}");
            }
        };
        let user_dirs = [
            ("/run/user/7/memprof", Some(7)),
            ("/tmp/memprof-7", Some(7)),
        ];
        check(7, "", "", &user_dirs);
        check(
            7,
            VARIABLE,
            "/a",
            &[user_dirs[0], user_dirs[1], ("/a", None)],
        );
        check(
            7,
            "XDG_RUNTIME_DIR",
            "/x",
            &[user_dirs[1], ("/x/memprof", None)],
        );
        check(
            0,
            VARIABLE,
            "/a",
            &[("/run/memprof", Some(0)), ("/a", None)],
        );
        check(
            0,
            "XDG_RUNTIME_DIR",
            "/run/user/0",
            &[("/run/user/0/memprof", Some(0))],
        );
    }

    #[test]
    #[cfg(feature = "adapter-postgres")]
    fn pid_is_found_in_default_names_only() {
        let check = |name: &str, expected: Option<u32>| assert_eq!(pid_in_name(name), expected);
        for name in ["17.sock", "17.2.sock", "17.9.sock"] {
            check(name, Some(17));
        }
        for name in [
            "17.1.sock",
            "17.10.sock",
            "017.sock",
            "17.sock.lock",
            "h.sock",
            "",
        ] {
            check(name, None);
        }
    }

    #[test]
    fn owner_refuses_file_and_link() {
        let parent = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid().as_raw();
        let dir = |name: &str, named_after| SocketDir {
            directory: parent.path().join(name),
            named_after,
        };
        std::fs::create_dir(parent.path().join("dir")).unwrap();
        std::fs::write(parent.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("/", parent.path().join("link")).unwrap();
        assert_eq!(dir("dir", Some(own)).owner().unwrap(), Some(own));
        assert_eq!(dir("dir", None).owner().unwrap(), Some(own));
        assert_eq!(dir("missing", Some(own)).owner().unwrap(), None);
        for name in ["file", "link"] {
            let error = dir(name, Some(own)).owner().unwrap_err().to_string();
            assert!(error.starts_with("it is not a directory of uid"), "{error}");
        }
    }

    #[test]
    fn make_private_refuses_open_directory() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("sockets");
        ensure_private_dir(&directory).unwrap();
        ensure_private_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(
            ensure_private_dir(&directory)
                .unwrap_err()
                .to_string()
                .contains("mode 0700")
        );
    }

    #[test]
    fn make_private_refuses_link() {
        let parent = tempfile::tempdir().unwrap();
        let link = parent.path().join("link");
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        assert!(ensure_private_dir(&link).is_err());
    }

    #[test]
    fn sockets_of_missing_or_other_file_is_empty() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join("memprof-1000");
        std::fs::write(&file, "").unwrap();
        for path in [file, parent.path().join("missing")] {
            assert_eq!(list_sockets(&path).unwrap(), Vec::<PathBuf>::new());
        }
    }
}
