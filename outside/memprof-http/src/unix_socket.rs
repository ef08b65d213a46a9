//! Listens at a Unix socket whose path a person chose. Only a socket is ever removed there, only if no process
//! listens, and only under a lock.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use memprof_host::socket_dir::check_socket_parent;
use memprof_host::socket_dir::lock::{
    is_socket, lock_file_path, lock_socket_path, refuses_connections,
};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

const BACKLOG: i32 = 128;

/// Path of a listening socket, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct BoundPath {
    path: PathBuf,
    /// Device and inode of the socket.
    identity: (u64, u64),
    /// Lock of the path, held while the socket listens.
    _lock: File,
}

/// Listens at `path`, for this user only. Replaces a socket that an ended server left there. The path is removed and
/// unlocked when the [`BoundPath`] is dropped. Fails if other users may rename files in the directory, another process
/// listens there, the path is not a socket, or it cannot be used.
pub(crate) fn listen(path: &Path) -> io::Result<(UnixListener, BoundPath)> {
    let directory = path.parent().filter(|parent| *parent != Path::new(""));
    check_socket_parent(directory.unwrap_or(Path::new(".")))?;
    let lock = lock_socket_path(path)?;
    remove_stale_socket(path)?;
    let socket = bind_private_socket(path)?;
    let bound = BoundPath {
        path: path.to_owned(),
        identity: file_identity(&path.symlink_metadata()?),
        _lock: lock,
    };
    Ok((socket, bound))
}

/// Removes the socket at `path` if no process listens there. Does nothing if the path does not exist. Fails if the path
/// is not a socket, or a process listens there. The caller holds the lock of the path.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    let metadata = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata?,
    };
    if !is_socket(&metadata) {
        let message = "the path exists and is not a socket: remove it, or choose another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    if !refuses_connections(path) {
        let message = "another process listens there";
        return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
    }
    std::fs::remove_file(path)
}

/// Binds a socket to `path`, and listens at it. No other user can connect, not even for a moment: the kernel gives the
/// file the mode that the descriptor has when it is bound.
fn bind_private_socket(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

impl Drop for BoundPath {
    /// Removes the socket, unless its path now names another file, and then the lock file.
    fn drop(&mut self) {
        let metadata = self.path.symlink_metadata();
        if metadata.is_ok_and(|metadata| file_identity(&metadata) == self.identity) {
            remove_file_or_log(&self.path);
        }
        // Removed last, while the lock is held: without the file, another process can lock the path.
        remove_file_or_log(&lock_file_path(&self.path));
    }
}

/// Returns the device and inode of a file.
fn file_identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Removes a file; a failure is logged.
fn remove_file_or_log(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        log::warn!("failed to remove {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn listen_error(path: &Path) -> (io::ErrorKind, String) {
        let error = listen(path).unwrap_err();
        (error.kind(), error.to_string())
    }

    #[test]
    fn file_that_is_no_socket_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("precious");
        std::fs::write(&file, "kept").unwrap();
        let link = directory.path().join("link");
        symlink(&file, &link).unwrap();
        let dangling = directory.path().join("dangling");
        symlink(directory.path().join("nothing"), &dangling).unwrap();
        for path in [&file, &link, &dangling, &directory.path().to_owned()] {
            let (kind, message) = listen_error(path);
            assert_eq!(kind, io::ErrorKind::AlreadyExists, "{message}");
            assert!(message.contains("is not a socket"), "{message}");
            assert!(path.symlink_metadata().is_ok(), "{}", path.display());
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    }

    #[test]
    fn socket_in_use_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("other.sock");
        let other = UnixListener::bind(&path).unwrap();
        assert_eq!(listen_error(&path).0, io::ErrorKind::AddrInUse);
        UnixStream::connect(&path).unwrap();
        // The server ends and leaves its socket.
        drop(other);
        let (_socket, bound) = listen(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(listen_error(&path).0, io::ErrorKind::AddrInUse);
        drop(bound);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn replaced_file_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("http.sock");
        let (_socket, bound) = listen(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "kept").unwrap();
        drop(bound);
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    }
}
