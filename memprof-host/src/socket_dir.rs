//! Where control sockets lie, and whether a directory may hold one.

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
        .unwrap_or_else(|| without_environment(uid))
}

fn without_environment(uid: u32) -> PathBuf {
    match uid {
        0 => PathBuf::from("/run/memprof"),
        uid => PathBuf::from(format!("/tmp/memprof-{uid}")),
    }
}

/// Every directory in which a host that this user may talk to can have its socket: a daemon's
/// environment is not the shell's. Root may talk to everybody's hosts.
pub fn all_dirs(uid: u32, variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let mut dirs = vec![default_dir(uid, &variable), without_environment(uid)];
    let without_variable = |name: &str| variable(name).filter(|_| name != VARIABLE);
    dirs.push(default_dir(uid, without_variable));
    let children = |parent: &str| {
        // A parent that cannot be read holds no socket that could be reached.
        let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    if uid == 0 {
        let users = children("/run/user")
            .into_iter()
            .map(|dir| dir.join("memprof"));
        let of_users = children("/tmp")
            .into_iter()
            .filter(|path| is_of_a_user(path));
        dirs.extend(users.chain(of_users));
    } else {
        dirs.push(PathBuf::from(format!("/run/user/{uid}/memprof")));
    }
    dirs.sort();
    dirs.dedup();
    dirs
}

/// Whether it is a directory `/tmp/memprof-<uid>`: others may put anything into `/tmp`.
fn is_of_a_user(path: &Path) -> bool {
    let name = path.to_string_lossy();
    let uid = name.strip_prefix("/tmp/memprof-").unwrap_or_default();
    let is_uid = !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_digit());
    is_uid
        && path
            .symlink_metadata()
            .is_ok_and(|metadata| metadata.is_dir())
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
        return Err(unsafe_place(
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
        return Err(unsafe_place(directory, "others may write to it"));
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

fn unsafe_place(directory: &Path, why: &str) -> io::Error {
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
    fn only_directories_of_users_are_looked_into() {
        let place = tempfile::Builder::new()
            .prefix("memprof-")
            .tempdir_in("/tmp")
            .unwrap();
        assert!(!is_of_a_user(place.path()));
        assert!(!is_of_a_user(Path::new("/tmp")));
        assert!(!is_of_a_user(Path::new("/tmp/memprof-")));
        let uid = std::process::id() + 1_000_000_000;
        let file = PathBuf::from(format!("/tmp/memprof-{uid}"));
        std::fs::write(&file, "").unwrap();
        let taken = is_of_a_user(&file);
        std::fs::remove_file(&file).unwrap();
        assert!(!taken);
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
