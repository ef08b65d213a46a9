//! Where control sockets lie, and whether a directory may hold one.

#[cfg(any(feature = "control", feature = "client"))]
pub(crate) mod abstract_name;
#[cfg(any(feature = "control", feature = "client"))]
pub mod lock;

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The environment variable that names another directory.
pub const VARIABLE: &str = "MEMPROF_SOCKET_DIR";

/// The default directory: `$MEMPROF_SOCKET_DIR`, else `$XDG_RUNTIME_DIR/memprof`, else
/// `/run/memprof` for root, else `/tmp/memprof-<uid>`. `variable` reads the environment.
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

fn default_dir_for(uid: u32) -> PathBuf {
    match uid {
        0 => PathBuf::from("/run/memprof"),
        uid => in_tmp(uid),
    }
}

/// The directory of a user who has none in /run.
pub fn in_tmp(uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/memprof-{uid}"))
}

/// A directory that may hold the sockets of hosts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SocketDir {
    /// As it is configured, or by default.
    pub directory: PathBuf,
    /// The user in its name, whose it must be: anybody may make a directory in `/tmp`.
    pub named_after: Option<u32>,
}

/// Every directory in which a host that this user may talk to can have its socket: a daemon's
/// environment is not the shell's. Root may talk to everybody's hosts.
pub fn socket_dirs(uid: u32, variable: impl Fn(&str) -> Option<OsString>) -> Vec<SocketDir> {
    let without_variable = |name: &str| variable(name).filter(|_| name != VARIABLE);
    let mut places: Vec<SocketDir> = user_dirs(uid).collect();
    if uid == 0 {
        places.push(SocketDir {
            directory: default_dir_for(0),
            named_after: Some(0),
        });
        places.extend(users().into_iter().flat_map(user_dirs));
    }
    let from_environment = [
        default_dir(uid, &variable),
        default_dir(uid, without_variable),
    ];
    for directory in from_environment {
        if !places.iter().any(|place| place.directory == directory) {
            places.push(SocketDir {
                directory,
                named_after: None,
            });
        }
    }
    places.sort();
    places.dedup();
    places
}

fn user_dirs(uid: u32) -> impl Iterator<Item = SocketDir> {
    let directories = [
        format!("/run/user/{uid}/memprof"),
        format!("/tmp/memprof-{uid}"),
    ];
    directories.into_iter().map(move |directory| SocketDir {
        directory: directory.into(),
        named_after: Some(uid),
    })
}

/// The users that have a runtime directory or one of ours in `/tmp`.
fn users() -> Vec<u32> {
    let names = |parent: &str| {
        // A parent that cannot be read holds no socket that could be reached.
        let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    let with_runtime = names("/run/user").filter_map(|name| name.parse().ok());
    let in_tmp = names("/tmp").filter_map(|name| name.strip_prefix("memprof-")?.parse().ok());
    with_runtime.chain(in_tmp).collect()
}

impl SocketDir {
    /// The user whose hosts it holds, or `None` where there is no such directory.
    ///
    /// # Errors
    /// It cannot be looked at, or it belongs to somebody whom its name does not tell.
    pub fn owner(&self) -> io::Result<Option<u32>> {
        use io::ErrorKind::{NotADirectory, NotFound};
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

/// The default directory of this process.
pub fn own_default_dir() -> PathBuf {
    default_dir(rustix::process::geteuid().as_raw(), |name| {
        std::env::var_os(name)
    })
}

/// Makes `directory` with mode 0700 where it is missing, and checks that it is ours alone.
///
/// # Errors
/// It cannot be made, or somebody else could put a socket there.
pub fn make_private(directory: &Path) -> io::Result<()> {
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

/// Checks that only the owner can replace what lies in a configured socket's directory.
///
/// # Errors
/// It is missing, or others may rename files in it.
pub fn check_parent(directory: &Path) -> io::Result<()> {
    let metadata = directory.metadata()?;
    if metadata.mode() & 0o022 != 0 && metadata.mode() & 0o1000 == 0 {
        return Err(insecure_dir_error(directory, "others may write to it"));
    }
    Ok(())
}

/// The sockets in a directory: the hosts that may be running. A missing directory has none, and
/// neither has a file of its name, which anybody may have put into /tmp.
///
/// # Errors
/// It cannot be read.
pub fn sockets(directory: &Path) -> io::Result<Vec<PathBuf>> {
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

fn insecure_dir_error(directory: &Path, why: &str) -> io::Error {
    let message = format!("{} is not safe for a socket: {why}", directory.display());
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn default_directories() {
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
    fn every_user_has_places_and_the_environment_adds_to_them() {
        let check = |uid, name: &'static str, value: &str, expected: &[(&str, Option<u32>)]| {
            let variable = |asked: &str| (asked == name).then(|| OsString::from(value));
            let found = socket_dirs(uid, variable);
            for (directory, named_after) in expected {
                let place = SocketDir {
                    directory: directory.into(),
                    named_after: *named_after,
                };
                assert!(found.contains(&place), "{directory}: {found:?}");
            }
        };
        let of_user = [
            ("/run/user/7/memprof", Some(7)),
            ("/tmp/memprof-7", Some(7)),
        ];
        check(7, "", "", &of_user);
        check(7, VARIABLE, "/a", &[of_user[0], of_user[1], ("/a", None)]);
        check(
            7,
            "XDG_RUNTIME_DIR",
            "/x",
            &[of_user[1], ("/x/memprof", None)],
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
    fn a_directory_that_somebody_else_made_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid().as_raw();
        let place = |name: &str, named_after| SocketDir {
            directory: parent.path().join(name),
            named_after,
        };
        std::fs::create_dir(parent.path().join("dir")).unwrap();
        std::fs::write(parent.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("/", parent.path().join("link")).unwrap();
        assert_eq!(place("dir", Some(own)).owner().unwrap(), Some(own));
        assert_eq!(place("dir", None).owner().unwrap(), Some(own));
        assert_eq!(place("missing", Some(own)).owner().unwrap(), None);
        for name in ["file", "link"] {
            let refused = place(name, Some(own)).owner().unwrap_err().to_string();
            assert!(
                refused.starts_with("it is not a directory of uid"),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_directory_that_others_may_enter_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("sockets");
        make_private(&directory).unwrap();
        make_private(&directory).unwrap();
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(
            make_private(&directory)
                .unwrap_err()
                .to_string()
                .contains("mode 0700")
        );
    }

    #[test]
    fn a_link_in_place_of_the_directory_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let link = parent.path().join("link");
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        assert!(make_private(&link).is_err());
    }

    #[test]
    fn what_is_no_directory_holds_no_socket() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join("memprof-1000");
        std::fs::write(&file, "").unwrap();
        for path in [file, parent.path().join("missing")] {
            assert_eq!(sockets(&path).unwrap(), Vec::<PathBuf>::new());
        }
    }
}
