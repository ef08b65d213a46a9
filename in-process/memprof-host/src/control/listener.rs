//! The listening socket: its directory, its lock, its mode.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use memprof_own::GuardedFd;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, shutdown};

use super::ControlError;
use crate::socket_dir::lock::{is_socket, lock, lock_path, refuses_connections, remove, sweep};
use crate::socket_dir::{abstract_name, check_parent, make_private, own_default_dir, sockets};

const BACKLOG: i32 = 64;

#[derive(Debug)]
pub(super) struct Listener {
    path: PathBuf,
    /// The process that opened it: a forked child must leave its parent's files alone.
    owner: u32,
    socket: GuardedFd<UnixListener>,
    /// Held while the host lives; decides who may replace a socket that is left over. A socket that is no file needs
    /// none.
    _lock: Option<GuardedFd<File>>,
    /// What is removed at the end, in this order: the socket, the link by which the default directory
    /// tells of a socket elsewhere, and last the lock's file, while the lock is still held. Ready for
    /// unlink(2), because the exiting thread may have been interrupted in the midst of malloc.
    files: Vec<CString>,
}

impl Listener {
    pub(super) fn bind(configured: Option<&Path>) -> Result<Self, ControlError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |cause| ControlError { path, cause }
        };
        if let Some(path) = configured
            && let Some(name) = abstract_name::bytes(path)
        {
            let address = SocketAddrUnix::new_abstract_name(name).map_err(io::Error::from);
            let socket = address.and_then(|address| listen(&address));
            return Ok(Self {
                path: path.to_owned(),
                owner: std::process::id(),
                socket: socket.map_err(at(path))?,
                _lock: None,
                files: Vec::new(),
            });
        }
        let default = own_default_dir();
        let (path, lock) = match configured {
            None => {
                make_private(&default).map_err(at(&default))?;
                sweep(&default);
                lock_first_free(&default).map_err(at(&default))?
            }
            Some(path) => {
                check_parent(path.parent().unwrap_or(Path::new("/"))).map_err(at(path))?;
                (path.to_owned(), lock(path).map_err(at(path))?)
            }
        };
        let lock = GuardedFd::new(lock).map_err(at(&path))?;
        let socket = bind(&path).map_err(at(&path))?;
        let link = configured.and_then(|_| {
            let linked = make_private(&default).and_then(|()| {
                sweep(&default);
                relink(&path, &default)
            });
            // The socket works without it; only `memprof ps` will not list this host.
            linked
                .inspect_err(|e| log::warn!("{} is not listed: {e}", path.display()))
                .ok()
        });
        let files = [Some(path.clone()), link, Some(lock_path(&path))];
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

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn accept(&self) -> io::Result<GuardedFd<UnixStream>> {
        let (stream, _) = self.socket.get()?.accept()?;
        GuardedFd::new_verified(stream, |stream| {
            let address = stream.local_addr();
            address.is_ok_and(|address| match abstract_name::bytes(&self.path) {
                Some(name) => address.as_abstract_name() == Some(name),
                None => address.as_pathname() == Some(&self.path),
            })
        })
    }

    /// False when the program closed our descriptors.
    pub(super) fn is_open(&self) -> bool {
        self.socket.get().is_ok()
    }

    /// Wakes `accept`, which then fails.
    pub(super) fn close(&self) {
        let socket = self.socket.get();
        let closed = socket.and_then(|socket| shutdown(socket, Shutdown::Both));
        if let Err(errno) = closed {
            log::debug!("closing {}: {errno}", self.path.display());
        }
    }

    /// Removes the files, which tell of a process that ends. Allocates nothing.
    pub(super) fn remove_files(&self) {
        if self.owner != std::process::id() {
            return;
        }
        for path in &self.files {
            // What is gone is gone, and what cannot be removed is swept by the next host.
            let _ = rustix::fs::unlink(path.as_c_str());
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.remove_files();
    }
}

fn bind(path: &Path) -> io::Result<GuardedFd<UnixListener>> {
    // We hold the lock: what lies there is left over from a host that died.
    match path.symlink_metadata() {
        Ok(found) if is_socket(&found) => std::fs::remove_file(path)?,
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

fn listen(address: &SocketAddrUnix) -> io::Result<GuardedFd<UnixListener>> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let socket = GuardedFd::new(UnixListener::from(socket))?;
    // Before bind, which takes the mode over: afterwards there would be a moment for others.
    rustix::fs::fchmod(socket.get()?, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(socket.get()?, address)?;
    rustix::net::listen(socket.get()?, BACKLOG)?;
    Ok(socket)
}

/// The names that this process may have in a default directory. Containers that share the
/// directory have processes of the same pid.
fn candidate_names(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let pid = std::process::id();
    let further = (2..=9).map(move |number| format!("{pid}.{number}.sock"));
    let names = std::iter::once(format!("{pid}.sock")).chain(further);
    let directory = directory.to_owned();
    names.map(move |name| directory.join(name))
}

/// The first of our names that no host holds, and its lock.
fn lock_first_free(directory: &Path) -> io::Result<(PathBuf, File)> {
    for path in candidate_names(directory) {
        match lock(&path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            locked => return Ok((path, locked?)),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Links to `socket`, whose lock we hold: another link to it is of a host that died.
fn relink(socket: &Path, directory: &Path) -> io::Result<PathBuf> {
    for other in sockets(directory)? {
        if other.read_link().is_ok_and(|target| target == socket) {
            remove(&other);
        }
    }
    for link in candidate_names(directory) {
        if link.is_symlink() && refuses_connections(&link) {
            remove(&link);
        }
        match symlink(socket, &link) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            linked => return linked.map(|()| link),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_hosts_that_died_are_replaced() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("run");
        std::fs::create_dir(&directory).unwrap();
        let link = |pid: u32| directory.join(format!("{pid}.sock"));
        symlink("/other/host.sock", link(1)).unwrap();
        symlink("/my/host.sock", link(2)).unwrap();
        let own = relink(Path::new("/my/host.sock"), &directory).unwrap();
        assert_eq!(own, link(std::process::id()));
        relink(Path::new("/my/host.sock"), &directory).unwrap();
        assert_eq!(sockets(&directory).unwrap(), [link(1), own]);
    }

    #[test]
    fn hosts_of_the_same_pid_get_names_of_their_own() {
        let place = tempfile::tempdir().unwrap();
        let (first, held) = lock_first_free(place.path()).unwrap();
        let socket = bind(&first).unwrap();
        let (second, _) = lock_first_free(place.path()).unwrap();
        let pid = std::process::id();
        assert_eq!(first, place.path().join(format!("{pid}.sock")));
        assert_eq!(second, place.path().join(format!("{pid}.2.sock")));
        let link = relink(Path::new("/my/host.sock"), place.path()).unwrap();
        assert_eq!(link, second, "a host that lives keeps its name");
        assert!(first.exists());
        drop((socket, held));
    }
}
