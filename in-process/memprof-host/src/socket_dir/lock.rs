//! The lock beside a socket: held while its host lives, it decides who may replace the socket or
//! remove what a host left.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memprof_own::above_stdio;
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::sockets;

const EXTENSION: &str = "lock";
/// Longer than a host takes from its lock to its socket.
const STARTING: Duration = Duration::from_secs(60);

/// The lock of the socket at that path.
pub fn lock_path(socket: &Path) -> PathBuf {
    socket.with_added_extension(EXTENSION)
}

/// Takes the lock of a socket's path.
///
/// # Errors
/// `AddrInUse` where another process holds it, else the reason why it cannot be had.
pub fn lock(socket: &Path) -> io::Result<File> {
    let path = lock_path(socket);
    // NONBLOCK: in a directory that others may write to, it can be a FIFO.
    let flags =
        OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    loop {
        let file = rustix::fs::openat(CWD, &path, flags, Mode::RUSR | Mode::WUSR)
            .and_then(above_stdio)
            .map_err(|errno| lock_held_error(&path, errno.into()))?;
        let opened = rustix::fs::fstat(&file)?;
        let own = rustix::process::geteuid().as_raw();
        let is_file = FileType::from_raw_mode(opened.st_mode) == FileType::RegularFile;
        if !is_file || (opened.st_uid != own && opened.st_uid != 0) {
            let held = io::Error::from(io::ErrorKind::PermissionDenied);
            return Err(lock_held_error(&path, held));
        }
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                let message = "another process listens there";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
            }
            Err(errno) => return Err(errno.into()),
            Ok(()) => {}
        }
        // Whoever held it before may have removed it: then the next one locks another file.
        match rustix::fs::lstat(&path) {
            Ok(now) if (now.st_dev, now.st_ino) == (opened.st_dev, opened.st_ino) => {
                return Ok(file.into());
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Names who keeps the lock, where somebody else put something in its place.
fn lock_held_error(path: &Path, error: io::Error) -> io::Error {
    use std::os::unix::fs::MetadataExt;
    let Ok(found) = path.symlink_metadata() else {
        return error;
    };
    let message = format!(
        "{} of uid {} is in the way ({error}): remove it, or put the socket into a directory that \
         only its user writes to",
        path.display(),
        found.uid()
    );
    io::Error::new(error.kind(), message)
}

/// Removes what hosts that died left in a directory of this user's: sockets that refuse and whose
/// lock is free, locks without a socket, and links that lead nowhere.
pub(crate) fn sweep(directory: &Path) {
    // What cannot be read is not swept; binding tells what is wrong with the directory.
    let left = sockets(directory).unwrap_or_default();
    for socket in &left {
        // A link has its lock elsewhere: whoever listens there keeps it.
        if socket.is_symlink() {
            if !socket.exists() {
                remove(socket);
            }
        } else if socket
            .symlink_metadata()
            .is_ok_and(|found| is_socket(&found))
        {
            sweep_one(socket);
        }
    }
    for lock_file in locks(directory) {
        let socket = lock_file.with_extension("");
        if left.contains(&socket) || !is_old(&lock_file) {
            continue;
        }
        if let Ok(_held) = lock(&socket)
            && !socket.exists()
        {
            remove(&lock_file);
        }
    }
}

/// Whether no host can be about to lock it: taken for a moment here, it would send that host to
/// another name.
fn is_old(lock_file: &Path) -> bool {
    let modified = lock_file.symlink_metadata().and_then(|m| m.modified());
    modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > STARTING))
}

/// Asks only where the lock is free, so that hosts that live are left in peace.
fn sweep_one(socket: &Path) {
    if let Ok(_held) = lock(socket) {
        if refuses_connections(socket) {
            remove(socket);
        }
        remove(&lock_path(socket));
    }
}

/// Whether nobody listens there. One that is too busy to accept does listen.
pub fn refuses_connections(path: &Path) -> bool {
    let attempt = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .and_then(above_stdio)?;
        connect(&socket, &SocketAddrUnix::new(path)?)
    };
    attempt() == Err(Errno::CONNREFUSED)
}

/// Whether it is a socket.
pub fn is_socket(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    metadata.file_type().is_socket()
}

fn locks(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.to_string_lossy().ends_with(".sock.lock"))
        .collect()
}

/// Removes a file; that it is gone already is no fault.
pub(crate) fn remove(path: &Path) {
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

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn only_what_dead_hosts_left_is_swept() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let killed = UnixListener::bind(path("1.sock")).unwrap();
        drop((killed, lock(&path("1.sock")).unwrap()));
        let alive = UnixListener::bind(path("2.sock")).unwrap();
        let held = lock(&path("2.sock")).unwrap();
        // It closed all its descriptors but the socket, as a daemon may.
        let unlocked = UnixListener::bind(path("3.sock")).unwrap();
        // It holds its lock and did not bind yet.
        let starting = lock(&path("4.sock")).unwrap();
        drop(lock(&path("5.sock")).unwrap());
        let long_ago = std::time::SystemTime::now() - 2 * STARTING;
        let orphan = lock(&path("8.sock")).unwrap();
        orphan.set_modified(long_ago).unwrap();
        drop(orphan);
        std::fs::write(path("6.sock"), "a file").unwrap();
        std::os::unix::fs::symlink("/gone/host.sock", path("7.sock")).unwrap();
        sweep(place.path());
        let left = [
            "2.sock",
            "2.sock.lock",
            "3.sock",
            "4.sock.lock",
            "5.sock.lock",
            "6.sock",
        ];
        assert_eq!(names(place.path()), left);
        drop((alive, held, unlocked, starting));
    }

    #[test]
    fn a_lock_that_was_removed_meanwhile_is_none() {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("h.sock");
        let first = lock(&socket).unwrap();
        let busy = lock(&socket).unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::AddrInUse);
        // Opened before it is removed, locked after: as two that wait for the same host do.
        let late = File::open(lock_path(&socket)).unwrap();
        remove(&lock_path(&socket));
        drop(first);
        rustix::fs::flock(&late, FlockOperation::NonBlockingLockExclusive).unwrap();
        let held = lock(&socket).unwrap();
        assert_eq!(lock(&socket).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop((held, late));
    }

    #[test]
    fn what_is_in_the_way_of_a_lock_is_named() {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("h.sock");
        let path = lock_path(&socket);
        let check = |kind: &str| {
            let refused = lock(&socket).unwrap_err().to_string();
            let expected = format!("{} of uid ", path.display());
            assert!(refused.starts_with(&expected), "{kind}: {refused}");
            std::fs::remove_file(&path).unwrap();
        };
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        check("link");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        check("fifo");
    }
}
