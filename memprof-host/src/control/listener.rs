//! The listening socket: its directory, its lock, its mode.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::ControlError;
use crate::socket_dir::{check_parent, make_private, own_default_dir, sockets};

const BACKLOG: i32 = 64;

#[derive(Debug)]
pub(super) struct Listener {
    path: PathBuf,
    /// The process that opened it: a forked child must leave its parent's files alone.
    owner: u32,
    socket: Ours<UnixListener>,
    /// Held while the host lives; decides who may replace a socket that is left over.
    lock: Ours<File>,
    /// What is removed at the end, in this order: the socket, the link by which the default directory
    /// tells of a socket elsewhere, and last the lock's file, while the lock is still held. Ready for
    /// unlink(2), because the exiting thread may have been interrupted in the midst of malloc.
    files: Vec<CString>,
}

/// A descriptor in a program that may close it behind our back, as daemons do that close all
/// they have: its number can then stand for a file of the program's. So it is closed only while
/// it still is what it was.
#[derive(Debug)]
struct Ours<T: AsFd> {
    descriptor: ManuallyDrop<T>,
    opened: (u64, u64),
}

impl<T: AsFd> Ours<T> {
    fn new(descriptor: T) -> io::Result<Self> {
        Ok(Self {
            opened: identity(&descriptor)?,
            descriptor: ManuallyDrop::new(descriptor),
        })
    }

    fn is_open(&self) -> bool {
        identity(&*self.descriptor).is_ok_and(|now| now == self.opened)
    }

    fn close(&self) {
        if self.is_open()
            && let Err(errno) = nix::unistd::close(self.descriptor.as_fd().as_raw_fd())
        {
            log::debug!("closing {:?}: {errno}", self.opened);
        }
    }
}

impl<T: AsFd> Drop for Ours<T> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Device and inode.
fn identity(descriptor: &impl AsFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(descriptor)?;
    Ok((stat.st_dev, stat.st_ino))
}

impl Listener {
    pub(super) fn bind(configured: Option<&Path>) -> Result<Self, ControlError> {
        let default = own_default_dir();
        let own_name = format!("{}.sock", std::process::id());
        let path = configured.map_or_else(|| default.join(&own_name), Path::to_owned);
        let failed = |cause| ControlError {
            path: path.clone(),
            cause,
        };
        let link = match configured {
            None => {
                make_private(&default).map_err(failed)?;
                sweep(&default);
                None
            }
            Some(configured) => {
                check_parent(configured.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
                Some(default.join(&own_name))
            }
        };
        let lock = lock(&path).and_then(Ours::new).map_err(failed)?;
        let socket = bind(&path).and_then(Ours::new).map_err(failed)?;
        let link = link.filter(|link| {
            let linked = make_private(&default).and_then(|()| {
                sweep(&default);
                relink(&path, link)
            });
            // The socket works without it; only `memprof ps` will not list this host.
            linked
                .inspect_err(|e| log::warn!("{} is not listed: {e}", path.display()))
                .is_ok()
        });
        let files = [Some(path.clone()), link, Some(lock_path(&path))];
        let files = files.into_iter().flatten();
        let files = files.map(|path| CString::new(path.into_os_string().into_vec()));
        Ok(Self {
            files: files.filter_map(Result::ok).collect(),
            path,
            owner: std::process::id(),
            socket,
            lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn accept(&self) -> io::Result<UnixStream> {
        self.socket.descriptor.accept().map(|(stream, _)| stream)
    }

    /// False when the program closed our descriptors.
    pub(super) fn is_open(&self) -> bool {
        self.socket.is_open()
    }

    /// Wakes `accept`, which then fails.
    pub(super) fn close(&self) {
        if let Err(errno) =
            rustix::net::shutdown(&*self.socket.descriptor, rustix::net::Shutdown::Both)
        {
            log::debug!("closing {}: {errno}", self.path.display());
        }
    }

    /// Closes the descriptors, which a forked child inherits: it would hold the lock that tells
    /// whether the parent lives.
    pub(super) fn let_go(&self) {
        self.socket.close();
        self.lock.close();
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
        self.let_go();
    }
}

fn lock_path(socket: &Path) -> PathBuf {
    socket.with_added_extension("lock")
}

/// Takes the lock of a socket's path.
fn lock(socket: &Path) -> io::Result<File> {
    let path = lock_path(socket);
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, &path, flags, Mode::RUSR | Mode::WUSR)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another host listens there",
        )),
        Err(errno) => Err(errno.into()),
        Ok(()) => Ok(file.into()),
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
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
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Before bind, which takes the mode over: afterwards there would be a moment for others.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn is_socket(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    metadata.file_type().is_socket()
}

/// Links to `socket`, whose lock we hold: another link to it is of a host that died.
fn relink(socket: &Path, link: &Path) -> io::Result<()> {
    let directory = link.parent().unwrap_or(Path::new("/"));
    for other in sockets(directory)? {
        if other.read_link().is_ok_and(|target| target == socket) {
            remove(&other);
        }
    }
    remove(link);
    symlink(socket, link)
}

/// Removes what hosts that died left in the default directory.
fn sweep(directory: &Path) {
    // What cannot be read is not swept; binding tells what is wrong with the directory.
    let left = sockets(directory).unwrap_or_default();
    for socket in left {
        // A link has its lock elsewhere: whoever listens there keeps it.
        if !socket.is_symlink() && lock(&socket).is_ok() {
            remove(&socket);
            remove(&lock_path(&socket));
        } else if socket.is_symlink() && !socket.exists() {
            remove(&socket);
        }
    }
}

fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            log::warn!("failed to remove {}: {error}", path.display());
        }
        Ok(()) | Err(_) => {}
    }
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
        symlink("/my/host.sock", link(3)).unwrap();
        relink(Path::new("/my/host.sock"), &link(3)).unwrap();
        relink(Path::new("/my/host.sock"), &link(4)).unwrap();
        assert_eq!(sockets(&directory).unwrap(), [link(1), link(4)]);
    }
}
