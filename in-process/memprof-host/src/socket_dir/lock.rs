//! The lock file beside a socket. It is locked while the host runs; only its holder may replace the socket or remove
//! the files of a host that died.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memprof_own::move_above_stdio;
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::list_sockets;

/// Extension that is added to the socket's name.
const EXTENSION: &str = "lock";
/// Longest time between a host's lock and its socket, with a margin.
const MAX_STARTUP_TIME: Duration = Duration::from_secs(60);

/// Returns the path of the lock file of a socket.
pub fn lock_file_path(socket: &Path) -> PathBuf {
    socket.with_added_extension(EXTENSION)
}

/// Locks the path of a socket by its lock file, which is created if it is missing. Does not wait. Closing the returned
/// file releases the lock.
///
/// # Errors
/// `AddrInUse` if another process holds the lock; `PermissionDenied` if the lock file is not a regular file, or belongs
/// to a user other than this one and root; the errors of open(2). The text names the owner of a file that is in the
/// way.
pub fn lock_socket_path(socket: &Path) -> io::Result<File> {
    let path = lock_file_path(socket);
    // NONBLOCK: in a directory that others may write to, the path may be a FIFO.
    let flags =
        OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    loop {
        let file = rustix::fs::openat(CWD, &path, flags, Mode::RUSR | Mode::WUSR)
            .and_then(move_above_stdio)
            .map_err(|errno| explain_obstructing_file(&path, errno.into()))?;
        let opened = rustix::fs::fstat(&file)?;
        let own = rustix::process::geteuid().as_raw();
        let is_file = FileType::from_raw_mode(opened.st_mode) == FileType::RegularFile;
        if !is_file || (opened.st_uid != own && opened.st_uid != 0) {
            let denied = io::Error::from(io::ErrorKind::PermissionDenied);
            return Err(explain_obstructing_file(&path, denied));
        }
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                let message = "another process listens there";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
            }
            Err(errno) => return Err(errno.into()),
            Ok(()) => {}
        }
        // An earlier holder may have removed the file; then another process can lock a new file of that name.
        match rustix::fs::lstat(&path) {
            Ok(current) if (current.st_dev, current.st_ino) == (opened.st_dev, opened.st_ino) => {
                return Ok(file.into());
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Adds the owner of the file at `path`, if there is one, and a remedy to the error.
fn explain_obstructing_file(path: &Path, error: io::Error) -> io::Error {
    use std::os::unix::fs::MetadataExt;
    let Ok(metadata) = path.symlink_metadata() else {
        return error;
    };
    let message = format!(
        "{} of uid {} is in the way ({error}): remove it, or put the socket into a directory that \
         only its user writes to",
        path.display(),
        metadata.uid()
    );
    io::Error::new(error.kind(), message)
}

/// Removes files of hosts that died from a directory of this user: sockets that refuse connections and whose lock is
/// free, links without a target, and lock files without a socket that are older than [`MAX_STARTUP_TIME`].
pub(crate) fn remove_abandoned_files(directory: &Path) {
    // Nothing is removed from a directory that cannot be read; the caller's bind reports the reason.
    let existing = list_sockets(directory).unwrap_or_default();
    for socket in &existing {
        // The lock of a link's target is in another directory, where its holder removes the socket.
        if socket.is_symlink() {
            if !socket.exists() {
                remove_file_if_exists(socket);
            }
        } else if socket
            .symlink_metadata()
            .is_ok_and(|metadata| is_socket(&metadata))
        {
            remove_socket_if_abandoned(socket);
        }
    }
    for lock_file in list_lock_files(directory) {
        let socket = lock_file.with_extension("");
        if existing.contains(&socket) || !is_too_old_for_starting_host(&lock_file) {
            continue;
        }
        if let Ok(_lock) = lock_socket_path(&socket)
            && !socket.exists()
        {
            remove_file_if_exists(&lock_file);
        }
    }
}

/// Returns whether the lock file is so old that no starting host can be about to lock it. A younger one must not be
/// removed: this process locks a file to remove it, and a starting host that found it locked would use another name.
/// False if the age is unknown.
fn is_too_old_for_starting_host(lock_file: &Path) -> bool {
    let modified = lock_file
        .symlink_metadata()
        .and_then(|metadata| metadata.modified());
    modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > MAX_STARTUP_TIME))
}

/// Removes a socket that refuses connections, and its lock file. Removes only the lock file if a process listens at the
/// socket without the lock. Does nothing if a host holds the lock. Connects only with the lock, so that running hosts
/// are not disturbed.
fn remove_socket_if_abandoned(socket: &Path) {
    if let Ok(_lock) = lock_socket_path(socket) {
        if refuses_connections(socket) {
            remove_file_if_exists(socket);
        }
        remove_file_if_exists(&lock_file_path(socket));
    }
}

/// Returns whether no process listens at the socket. Does not wait: false if a process listens but is too busy to
/// accept.
pub fn refuses_connections(path: &Path) -> bool {
    let attempt = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .and_then(move_above_stdio)?;
        connect(&socket, &SocketAddrUnix::new(path)?)
    };
    attempt() == Err(Errno::CONNREFUSED)
}

/// Returns whether the file is a socket.
pub fn is_socket(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    metadata.file_type().is_socket()
}

/// Lists the lock files of sockets in a directory. Empty if the directory cannot be read.
fn list_lock_files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.to_string_lossy().ends_with(".sock.lock"))
        .collect()
}

/// Removes a file, if it exists. Logs a failure.
pub(crate) fn remove_file_if_exists(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            log::warn!("failed to remove {}: {error}", path.display());
        }
        Ok(()) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Lists the file names in a directory, in order.
    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn sweep_removes_only_files_of_dead_hosts() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let killed = UnixListener::bind(path("1.sock")).unwrap();
        drop((killed, lock_socket_path(&path("1.sock")).unwrap()));
        let alive = UnixListener::bind(path("2.sock")).unwrap();
        let locked = lock_socket_path(&path("2.sock")).unwrap();
        // The host closed all its descriptors but the socket, as a daemon may.
        let unlocked = UnixListener::bind(path("3.sock")).unwrap();
        // The host has locked its path and not bound the socket yet.
        let starting = lock_socket_path(&path("4.sock")).unwrap();
        drop(lock_socket_path(&path("5.sock")).unwrap());
        let long_ago = std::time::SystemTime::now() - 2 * MAX_STARTUP_TIME;
        let orphan = lock_socket_path(&path("8.sock")).unwrap();
        orphan.set_modified(long_ago).unwrap();
        drop(orphan);
        std::fs::write(path("6.sock"), "a file").unwrap();
        std::os::unix::fs::symlink("/gone/host.sock", path("7.sock")).unwrap();
        remove_abandoned_files(directory.path());
        let remaining = [
            "2.sock",
            "2.sock.lock",
            "3.sock",
            "4.sock.lock",
            "5.sock.lock",
            "6.sock",
        ];
        assert_eq!(names(directory.path()), remaining);
        drop((alive, locked, unlocked, starting));
    }

    #[test]
    fn removed_lock_file_is_locked_anew() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("h.sock");
        let first = lock_socket_path(&socket).unwrap();
        let busy = lock_socket_path(&socket).unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::AddrInUse);
        // Two processes wait for the same host: this one opened the file before it was removed, and locks it
        // afterwards.
        let late = File::open(lock_file_path(&socket)).unwrap();
        remove_file_if_exists(&lock_file_path(&socket));
        drop(first);
        rustix::fs::flock(&late, FlockOperation::NonBlockingLockExclusive).unwrap();
        let locked = lock_socket_path(&socket).unwrap();
        assert_eq!(
            lock_socket_path(&socket).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        drop((locked, late));
    }

    #[test]
    fn error_names_file_in_the_way() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("h.sock");
        let path = lock_file_path(&socket);
        let check = |kind: &str| {
            let error = lock_socket_path(&socket).unwrap_err().to_string();
            let expected = format!("{} of uid ", path.display());
            assert!(error.starts_with(&expected), "{kind}: {error}");
            std::fs::remove_file(&path).unwrap();
        };
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        check("link");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        check("fifo");
    }
}
