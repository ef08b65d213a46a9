//! A Unix socket at a path that a person chose. Only a socket is ever removed there, only one that
//! nobody listens at, and only under a lock.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use memprof_host::socket_dir::check_parent;
use memprof_host::socket_dir::lock::{is_socket, lock, lock_path, refuses_connections};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

const BACKLOG: i32 = 128;

/// The path of a listening socket, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct BoundPath {
    path: PathBuf,
    /// Device and inode of the socket.
    identity: (u64, u64),
    /// Held for as long as somebody listens.
    _lock: File,
}

/// Listens at `path`, for this user alone. A socket that a server left there is replaced.
///
/// # Errors
/// Somebody listens there, something else lies there, or the path cannot be used.
pub(crate) fn listen(path: &Path) -> io::Result<(UnixListener, BoundPath)> {
    let directory = path.parent().filter(|parent| *parent != Path::new(""));
    check_parent(directory.unwrap_or(Path::new(".")))?;
    let lock = lock(path)?;
    remove_stale(path)?;
    let socket = bind_private(path)?;
    let bound = BoundPath {
        path: path.to_owned(),
        identity: identity(&path.symlink_metadata()?),
        _lock: lock,
    };
    Ok((socket, bound))
}

/// Removes a socket that nobody listens at.
fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !is_socket(&found) {
        let message = "something else than a socket lies there: remove it, or give another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    if !refuses_connections(path) {
        let message = "another process listens there";
        return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
    }
    std::fs::remove_file(path)
}

/// A socket's mode is that of its descriptor when it is bound: never open to others, not even for
/// a moment.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

impl Drop for BoundPath {
    fn drop(&mut self) {
        let found = self.path.symlink_metadata();
        if found.is_ok_and(|found| identity(&found) == self.identity) {
            remove(&self.path);
        }
        // Last, while it is held.
        remove(&lock_path(&self.path));
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        log::warn!("failed to remove {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn refusal(path: &Path) -> (io::ErrorKind, String) {
        let error = listen(path).unwrap_err();
        (error.kind(), error.to_string())
    }

    #[test]
    fn what_is_no_socket_stays() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("precious");
        std::fs::write(&file, "kept").unwrap();
        let link = place.path().join("link");
        symlink(&file, &link).unwrap();
        let dangling = place.path().join("dangling");
        symlink(place.path().join("nothing"), &dangling).unwrap();
        for path in [&file, &link, &dangling, &place.path().to_owned()] {
            let (kind, message) = refusal(path);
            assert_eq!(kind, io::ErrorKind::AlreadyExists, "{message}");
            assert!(
                message.contains("something else than a socket"),
                "{message}"
            );
            assert!(path.symlink_metadata().is_ok(), "{}", path.display());
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    }

    #[test]
    fn a_socket_that_somebody_listens_at_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("other.sock");
        let other = UnixListener::bind(&path).unwrap();
        assert_eq!(refusal(&path).0, io::ErrorKind::AddrInUse);
        UnixStream::connect(&path).unwrap();
        // It ends and leaves its socket.
        drop(other);
        let (_socket, bound) = listen(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(refusal(&path).0, io::ErrorKind::AddrInUse);
        drop(bound);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_took_the_sockets_place_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("http.sock");
        let (_socket, bound) = listen(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "kept").unwrap();
        drop(bound);
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    }
}
