//! The listening socket with its directory, lock and permissions.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use memprof_own::GuardedFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, shutdown};

use super::ControlError;
use crate::socket_dir::lock::{
    is_socket, lock_file_path, lock_socket_path, refuses_connections, remove_abandoned_files,
    remove_file_if_exists,
};
use crate::socket_dir::{
    abstract_name, check_socket_parent, ensure_private_dir, list_sockets, own_default_dir,
    socket_names,
};

/// Interval at which `accept` checks the descriptor and `is_stopping`.
const CHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Largest number of connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// A listening control socket. Dropping it removes its files.
#[derive(Debug)]
pub(super) struct Listener {
    path: PathBuf,
    /// Id of the process that opened it: a forked child must not remove its parent's files.
    owner: u32,
    socket: GuardedFd<UnixListener>,
    /// Held while the host runs: only its holder may replace an abandoned socket. `None` for an abstract socket, which
    /// needs no lock.
    _lock: Option<GuardedFd<File>>,
    /// Files to remove at the end, in this order: the socket, the link in the default directory to a socket elsewhere,
    /// and last the lock file, while the lock is held. They are arguments for unlink(2), because the exiting thread may
    /// have been interrupted during malloc.
    files: Vec<CString>,
}

impl Listener {
    /// Opens the socket at `configured`, a path or an abstract name; if it is `None`, at a free default path. Removes
    /// abandoned sockets from the default directory. For a configured path, also creates a link in the default
    /// directory; a failure to create the link is only logged. Fails if another host has the path, or if the directory
    /// is not safe.
    pub(super) fn bind(configured: Option<&Path>) -> Result<Self, ControlError> {
        let error_at = |path: &Path| {
            let path = path.to_owned();
            move |cause| ControlError { path, cause }
        };
        if let Some(path) = configured
            && let Some(name) = abstract_name::abstract_name_bytes(path)
        {
            let address = SocketAddrUnix::new_abstract_name(name).map_err(io::Error::from);
            let socket = address.and_then(|address| listen(&address));
            return Ok(Self {
                path: path.to_owned(),
                owner: std::process::id(),
                socket: socket.map_err(error_at(path))?,
                _lock: None,
                files: Vec::new(),
            });
        }
        let default = own_default_dir();
        let (path, lock) = match configured {
            None => {
                ensure_private_dir(&default).map_err(error_at(&default))?;
                remove_abandoned_files(&default);
                lock_unused_name(&default).map_err(error_at(&default))?
            }
            Some(path) => {
                check_socket_parent(path.parent().unwrap_or(Path::new("/")))
                    .map_err(error_at(path))?;
                (
                    path.to_owned(),
                    lock_socket_path(path).map_err(error_at(path))?,
                )
            }
        };
        let lock = GuardedFd::new(lock).map_err(error_at(&path))?;
        let socket = bind_path(&path).map_err(error_at(&path))?;
        let link = configured.and_then(|_| {
            let created = ensure_private_dir(&default).and_then(|()| {
                remove_abandoned_files(&default);
                replace_link(&path, &default)
            });
            // The socket works without the link; only `memprof ps` does not list the host.
            created
                .inspect_err(|e| log::warn!("{} is not listed: {e}", path.display()))
                .ok()
        });
        let files = [Some(path.clone()), link, Some(lock_file_path(&path))];
        let files = files.into_iter().flatten();
        let files = files.map(|path| CString::new(path.into_os_string().into_vec()));
        Ok(Self {
            files: files.filter_map(Result::ok).collect(),
            path,
            owner: std::process::id(),
            socket,
            _lock: Some(lock),
        })
    }

    /// Returns the path of the socket, or its abstract name after an `@`.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a connection. Fails with `EBADF` if the program closed the descriptor, or has put another socket under
    /// its number; with `ECANCELED` within a second after `is_stopping` returns true.
    pub(super) fn accept(
        &self,
        is_stopping: impl Fn() -> bool,
    ) -> io::Result<GuardedFd<UnixStream>> {
        // accept4(2) reserves the lowest free descriptor before it waits. A program that closes descriptor 1 and opens
        // it again would find it taken until the next connection (dup2(2), EBUSY). So poll(2) waits instead. It is
        // repeated, because it waits for ever if the program has put another socket under the number.
        loop {
            let mut polled = [PollFd::new(self.socket.get()?, PollFlags::IN)];
            match poll(&mut polled, Some(&CHECK_INTERVAL)) {
                _ if is_stopping() => return Err(Errno::CANCELED.into()),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) | Err(_) => break,
            }
        }
        // The program may have closed the descriptor meanwhile, and opened another socket under its number. So the
        // accepted stream must have this socket's address.
        let (stream, _) = self.socket.get()?.accept()?;
        GuardedFd::new_if_expected(stream, |stream| {
            let address = stream.local_addr();
            address.is_ok_and(
                |address| match abstract_name::abstract_name_bytes(&self.path) {
                    Some(name) => address.as_abstract_name() == Some(name),
                    None => address.as_pathname() == Some(&self.path),
                },
            )
        })
    }

    /// Returns whether the descriptor is still open. The program may have closed it, with all others.
    pub(super) fn is_open(&self) -> bool {
        self.socket.get().is_ok()
    }

    /// Shuts the socket down, which makes a waiting `accept` fail. Does not close the descriptor. A failure is only
    /// logged.
    pub(super) fn shut_down(&self) {
        let socket = self.socket.get();
        let result = socket.and_then(|socket| shutdown(socket, Shutdown::Both));
        if let Err(errno) = result {
            log::debug!("closing {}: {errno}", self.path.display());
        }
    }

    /// Removes the socket's files: the socket, the link to it and the lock file. Does nothing in a forked child,
    /// because the files are its parent's. Allocates nothing.
    pub(super) fn remove_files(&self) {
        if self.owner != std::process::id() {
            return;
        }
        for path in &self.files {
            // A failure is ignored: the file may be gone already, and the next host of this user removes what stays.
            let _ = rustix::fs::unlink(path.as_c_str());
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.remove_files();
    }
}

/// Removes an abandoned socket at `path`, and opens a socket that listens there. The caller holds the lock of the path.
/// Fails with `AlreadyExists` if there is a file of another kind, and with the errors of the system calls.
fn bind_path(path: &Path) -> io::Result<GuardedFd<UnixListener>> {
    // The lock proves that the host of an existing socket has died.
    match path.symlink_metadata() {
        Ok(metadata) if is_socket(&metadata) => std::fs::remove_file(path)?,
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "a file is in the way",
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    listen(&SocketAddrUnix::new(path)?)
}

/// Opens a socket that listens at `address`. Only the user of this process, and root, can connect to it.
fn listen(address: &SocketAddrUnix) -> io::Result<GuardedFd<UnixListener>> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let socket = GuardedFd::new(UnixListener::from(socket))?;
    // bind(2) copies the mode. Set later, it would leave a moment in which other users can connect.
    rustix::fs::fchmod(socket.get()?, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(socket.get()?, address)?;
    rustix::net::listen(socket.get()?, BACKLOG)?;
    Ok(socket)
}

/// Iterates over the paths that a socket of this process may have in a default directory. There are several, because
/// containers that share the directory may have processes with the same pid.
fn candidate_paths(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let pid = std::process::id();
    let names = socket_names(pid);
    let directory = directory.to_owned();
    names.map(move |name| directory.join(name))
}

/// Locks the first candidate name that no host has locked. Returns its path and lock. Fails with `AddrInUse` if all are
/// locked.
fn lock_unused_name(directory: &Path) -> io::Result<(PathBuf, File)> {
    for path in candidate_paths(directory) {
        match lock_socket_path(&path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            result => return Ok((path, result?)),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Creates a link to `socket` in the default directory, under the first name that is not in use, and returns its path.
/// Removes older links to the same socket: the caller holds the socket's lock, which proves that they are of a host
/// that died. Also removes a link with one of the tried names if its socket refuses connections. Fails with
/// `AlreadyExists` if all names are in use.
fn replace_link(socket: &Path, directory: &Path) -> io::Result<PathBuf> {
    for other in list_sockets(directory)? {
        if other.read_link().is_ok_and(|target| target == socket) {
            remove_file_if_exists(&other);
        }
    }
    for link in candidate_paths(directory) {
        if link.is_symlink() && refuses_connections(&link) {
            remove_file_if_exists(&link);
        }
        match symlink(socket, &link) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => return result.map(|()| link),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_of_dead_host_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("run");
        std::fs::create_dir(&directory).unwrap();
        let link = |pid: u32| directory.join(format!("{pid}.sock"));
        symlink("/other/host.sock", link(1)).unwrap();
        symlink("/my/host.sock", link(2)).unwrap();
        let own = replace_link(Path::new("/my/host.sock"), &directory).unwrap();
        assert_eq!(own, link(std::process::id()));
        replace_link(Path::new("/my/host.sock"), &directory).unwrap();
        assert_eq!(list_sockets(&directory).unwrap(), [link(1), own]);
    }

    #[test]
    fn hosts_with_same_pid_have_different_names() {
        let root = tempfile::tempdir().unwrap();
        let (first, lock) = lock_unused_name(root.path()).unwrap();
        let socket = bind_path(&first).unwrap();
        let (second, _) = lock_unused_name(root.path()).unwrap();
        let pid = std::process::id();
        assert_eq!(first, root.path().join(format!("{pid}.sock")));
        assert_eq!(second, root.path().join(format!("{pid}.2.sock")));
        let link = replace_link(Path::new("/my/host.sock"), root.path()).unwrap();
        assert_eq!(link, second, "a host that lives keeps its name");
        assert!(first.exists());
        drop((socket, lock));
    }
}
