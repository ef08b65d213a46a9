//! Data that the kernel queues for descriptors of another process, read without consuming it.
#![expect(
    unsafe_code,
    reason = "ioctl(2), tee(2), recv(2), poll(2) and getsockopt(2) on descriptors of another process"
)]

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};

use nix::errno::Errno;

use crate::pidfd::PidFd;

/// Most bytes that are read of one queue.
const MAX_QUEUE_BYTES: u64 = 16 << 20;
/// Receive memory of an internet socket, in bytes, up to which it holds at most one datagram: each buffer of the kernel
/// takes at least 768 (`SKB_TRUESIZE` of linux/skbuff.h).
const SINGLE_DATAGRAM_MEMORY: u32 = 2 * 768 - 1;
/// `SO_MEMINFO` of asm-generic/socket.h, and the number of its values; the first is the receive memory.
const SO_MEMINFO: libc::c_int = 55;
const MEMINFO_VALUES: usize = 9;

/// Reader of the queues in one descriptor table.
#[derive(Debug)]
pub struct QueueReader {
    /// Id of a process, or of a thread with a table of its own.
    pid: u32,
    process: PidFd,
}

/// Content of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueContent {
    /// Inode of the pipe or socket.
    pub inode: u64,
    /// Data from the start of the queue.
    pub data: Vec<u8>,
    /// Queued bytes that could not be read.
    pub unread_bytes: u64,
    /// Whether further data may be queued behind the first datagram, or behind urgent data.
    pub has_more_data: bool,
    /// Whether it is a Unix socket.
    pub is_unix_socket: bool,
    /// Whether it is a Unix socket whose peers have not read all that was sent to them.
    pub has_unread_output: bool,
    /// Process that made a Unix socket's other end, or both ends, by its id in this pid namespace. `None` if the socket
    /// is not connected, or that process is not visible.
    pub peer_pid: Option<u32>,
}

impl QueueReader {
    /// Prepares to read queues of process `pid`, or of a thread with that id.
    ///
    /// # Errors
    /// There is no such process or thread, or Linux is too old: before 5.3 for a process, before 6.9 for a thread.
    pub fn open(pid: u32) -> io::Result<Self> {
        let process = PidFd::open(pid).or_else(|_| PidFd::open_thread(pid))?;
        Ok(Self { pid, process })
    }

    /// Reads the queue of a pipe, FIFO or socket, at most 16 MiB, without removing anything from it. `None` if
    /// descriptor `number` has no such queue.
    ///
    /// # Errors
    /// The process has closed the descriptor, this user may not access it, or Linux is older than 5.6.
    pub fn read_queue(&self, number: i32) -> io::Result<Option<QueueContent>> {
        let duplicate = self.process.duplicate_descriptor(number).map(File::from)?;
        let metadata = duplicate.metadata()?;
        let inode = metadata.ino();
        let kind = metadata.file_type();
        if kind.is_fifo() {
            return self.read_pipe(number, &duplicate, inode).map(Some);
        }
        match kind.is_socket() {
            true => read_socket(&duplicate, inode),
            false => Ok(None),
        }
    }

    /// Returns the number of bytes that can be read from a terminal or from either end of a pseudoterminal. Unlike
    /// those of [`Self::read_queue`], they cannot be read without consuming them. 0 if the process has closed
    /// descriptor `number`, or if it is a terminal that has hung up, or no terminal.
    ///
    /// # Errors
    /// This user may not access the descriptor, or Linux is older than 5.6.
    pub fn count_terminal_bytes(&self, number: i32) -> io::Result<u64> {
        const NO_DATA: [i32; 3] = [libc::EBADF, libc::EIO, libc::ENOTTY];
        let terminal = self.process.duplicate_descriptor(number).map(File::from);
        match terminal.and_then(|terminal| queued_bytes(&terminal)) {
            Err(error)
                if error
                    .raw_os_error()
                    .is_some_and(|errno| NO_DATA.contains(&errno)) =>
            {
                Ok(0)
            }
            count => count,
        }
    }

    /// Reads the data in a pipe without consuming it. `end` duplicates the process's descriptor `number`, which may be
    /// either end of the pipe. Data that cannot be copied counts as unread. Fails if the data cannot be counted, or if
    /// the end for reading cannot be opened.
    fn read_pipe(&self, number: i32, end: &File, inode: u64) -> io::Result<QueueContent> {
        let mut content = QueueContent {
            inode,
            ..QueueContent::default()
        };
        let queued = queued_bytes(end)?;
        if queued == 0 {
            return Ok(content);
        }
        content.data = match copy_pipe(end, queued) {
            // The process has only the end for writing: the kernel's link opens the other one.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => {
                let path = format!("/proc/{}/fd/{number}", self.pid);
                let mut options = OpenOptions::new();
                let opened = options
                    .read(true)
                    .custom_flags(libc::O_NONBLOCK)
                    .open(path)?;
                copy_pipe(&opened, queued)
            }
            copied => copied,
        }
        .unwrap_or_default();
        content.unread_bytes = queued.saturating_sub(content.data.len() as u64);
        Ok(content)
    }
}

/// Returns the number of bytes that can be read from a descriptor (`FIONREAD`).
fn queued_bytes(descriptor: &File) -> io::Result<u64> {
    let mut queued: libc::c_int = 0;
    // SAFETY: FIONREAD writes one integer to `queued`.
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), libc::FIONREAD, &raw mut queued) };
    Errno::result(result)?;
    Ok(u64::try_from(queued).unwrap_or(0))
}

/// Copies the first bytes of a pipe by tee(2), which does not consume them: at most `queued`, and at most 16 MiB. Empty
/// if the process has consumed them meanwhile. Fails if `source` is the end for writing (`EBADF`).
fn copy_pipe(source: &File, queued: u64) -> io::Result<Vec<u8>> {
    let (mut reader, writer) = io::pipe()?;
    let size = queued.min(MAX_QUEUE_BYTES);
    // The new pipe needs as many buffers as the source: tee(2) copies references to them. A size beyond the limit of
    // this user is refused; then fewer bytes are read.
    // SAFETY: F_GETPIPE_SZ takes no argument.
    let source_size = unsafe { libc::fcntl(source.as_raw_fd(), libc::F_GETPIPE_SZ) };
    // SAFETY: F_SETPIPE_SZ takes a number.
    unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, source_size) };
    // SAFETY: tee(2) takes two descriptors and two numbers.
    let copied = unsafe {
        libc::tee(
            source.as_raw_fd(),
            writer.as_raw_fd(),
            size as usize,
            libc::SPLICE_F_NONBLOCK,
        )
    };
    match Errno::result(copied) {
        Ok(_) => {}
        // The data was consumed meanwhile.
        Err(Errno::EAGAIN) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    }
    // With an open writer, `read_to_end` would wait for more.
    drop(writer);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the receive queue of a socket without consuming it: of a stream up to 16 MiB, else the first datagram. `None`
/// if the socket has no queue of data, such as a listening socket.
fn read_socket(socket: &File, inode: u64) -> io::Result<Option<QueueContent>> {
    let queued = match queued_bytes(socket) {
        Ok(queued) => queued,
        // FIONREAD fails for listening sockets, and for families whose messages come from the kernel.
        Err(_) => return Ok(unread_netlink_queue(socket, inode)),
    };
    let is_unix_socket = socket_option(socket, libc::SO_DOMAIN, 0) == Some(libc::AF_UNIX);
    let events = pending_events(socket);
    let mut content = QueueContent {
        inode,
        is_unix_socket,
        has_unread_output: is_unix_socket && has_unread_output(socket),
        peer_pid: peer_pid(socket).filter(|_| is_unix_socket),
        // Both FIONREAD and recv(2) end in front of urgent data. POLLPRI of a datagram socket means its error queue.
        has_more_data: events & libc::POLLPRI != 0
            && socket_option(socket, libc::SO_TYPE, 0) == Some(libc::SOCK_STREAM),
        ..QueueContent::default()
    };
    if queued == 0 {
        return Ok(Some(content));
    }
    // recv(2) would move the program's position for peeks, or return an error that the program has yet to see.
    let peek_position = socket_option(socket, libc::SO_PEEK_OFF, -1);
    if peek_position.is_some_and(|position| position >= 0) || events & libc::POLLERR != 0 {
        content.unread_bytes = queued;
        return Ok(Some(content));
    }
    let mut bytes = vec![0_u8; queued.min(MAX_QUEUE_BYTES) as usize];
    // SAFETY: recv(2) writes at most `bytes.len()` bytes to the buffer.
    let received = unsafe {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        libc::recv(
            socket.as_raw_fd(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            flags,
        )
    };
    match Errno::result(received) {
        Ok(received) => bytes.truncate(received.unsigned_abs()),
        // The data was consumed meanwhile.
        Err(Errno::EAGAIN) => bytes.clear(),
        Err(error) => return Err(error.into()),
    }
    content.unread_bytes = queued.saturating_sub(bytes.len() as u64);
    content.has_more_data |= socket_option(socket, libc::SO_TYPE, 0) == Some(libc::SOCK_DGRAM)
        && !has_one_datagram(socket);
    content.data = bytes;
    Ok(Some(content))
}

/// Returns the receive queue of a netlink socket for messages between processes (`NETLINK_USERSOCK`), as a number of
/// unread bytes: the receive memory in use, because such sockets have no FIONREAD. Reads no message. `None` for other
/// sockets, and if the kernel does not know `SO_MEMINFO`.
fn unread_netlink_queue(socket: &File, inode: u64) -> Option<QueueContent> {
    let is_between_processes = socket_option(socket, libc::SO_DOMAIN, 0) == Some(libc::AF_NETLINK)
        && socket_option(socket, libc::SO_PROTOCOL, 0) == Some(libc::NETLINK_USERSOCK);
    let values = socket_option(socket, SO_MEMINFO, [0_u32; MEMINFO_VALUES]);
    values
        .filter(|_| is_between_processes)
        .map(|values| QueueContent {
            inode,
            unread_bytes: u64::from(values[0]),
            ..QueueContent::default()
        })
}

/// Returns the events that are pending on a socket: `POLLPRI`, `POLLERR` and `POLLHUP` (poll(2)). Clears none of them,
/// and does not wait.
fn pending_events(socket: &File) -> libc::c_short {
    let mut polled = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLPRI,
        revents: 0,
    };
    // SAFETY: poll(2) writes to one `pollfd`, and does not wait.
    unsafe { libc::poll(&raw mut polled, 1, 0) };
    polled.revents
}

/// Returns whether a Unix socket has sent data that its peers have not read (`SIOCOUTQ` of unix(7)).
fn has_unread_output(socket: &File) -> bool {
    let mut memory: libc::c_int = 0;
    // SAFETY: SIOCOUTQ, which is TIOCOUTQ, writes one integer to `memory`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut memory) };
    result == 0 && memory > 0
}

/// Returns whether an internet socket has exactly one datagram queued: the receive memory in use is too small for a
/// second one. False for Unix sockets, whose datagrams count towards the sender.
fn has_one_datagram(socket: &File) -> bool {
    let values = socket_option(socket, SO_MEMINFO, [0_u32; MEMINFO_VALUES]);
    values.is_some_and(|values| (1..=SINGLE_DATAGRAM_MEMORY).contains(&values[0]))
}

/// Returns the pid of the process that created a Unix socket's other end (`SO_PEERCRED` of unix(7)). `None` if the
/// socket is not connected, or that process is not visible in this pid namespace.
fn peer_pid(socket: &File) -> Option<u32> {
    let unknown = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let peer = socket_option(socket, libc::SO_PEERCRED, unknown)?;
    u32::try_from(peer.pid).ok().filter(|pid| *pid != 0)
}

/// Reads an option of a socket (`SOL_SOCKET`); `None` if the kernel refuses it. `value` is of the kernel's type for the
/// option, which must consist of numbers. A part of it that the kernel does not write is returned unchanged.
fn socket_option<T>(socket: &File, option: libc::c_int, mut value: T) -> Option<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: getsockopt(2) writes at most `length` bytes to `value`, whose type any numbers are valid for.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    (result == 0).then_some(value)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::FromRawFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    fn read(descriptor: &impl AsRawFd) -> QueueContent {
        let reader = QueueReader::open(std::process::id()).unwrap();
        reader.read_queue(descriptor.as_raw_fd()).unwrap().unwrap()
    }

    #[test]
    fn queues_are_read_without_being_consumed() {
        let (mut out, mut into) = io::pipe().unwrap();
        assert_eq!(read(&out).data, b"");
        into.write_all(b"in the pipe").unwrap();
        // The second end in the process reads the same.
        for content in [read(&out), read(&into)] {
            assert_eq!(content.data, b"in the pipe");
            assert_eq!(content.unread_bytes, 0);
        }
        let mut bytes = [0; 11];
        out.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"in the pipe");

        let (mut one, mut other) = UnixStream::pair().unwrap();
        one.write_all(b"in two ").unwrap();
        one.write_all(b"pieces").unwrap();
        let content = read(&other);
        assert_eq!(
            (content.data.as_slice(), content.has_more_data),
            (&b"in two pieces"[..], false)
        );
        assert!(read(&one).has_unread_output && !content.has_unread_output);
        assert_eq!(content.peer_pid, Some(std::process::id()));
        let mut bytes = [0; 13];
        other.read_exact(&mut bytes).unwrap();
        assert!(!read(&one).has_unread_output);
        assert_eq!(&bytes, b"in two pieces");
    }

    #[test]
    fn further_datagrams_are_reported() {
        let (one, other) = UnixDatagram::pair().unwrap();
        one.send(b"first").unwrap();
        one.send(b"second").unwrap();
        let content = read(&other);
        assert_eq!(
            (content.data.as_slice(), content.has_more_data),
            (&b"first"[..], true)
        );
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.send_to(b"one", udp.local_addr().unwrap()).unwrap();
        assert_eq!(read(&udp).data, b"one");
    }

    fn set_option(socket: &impl AsRawFd, option: libc::c_int, value: libc::c_int) {
        // SAFETY: setsockopt(2) reads one integer.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        Errno::result(result).unwrap();
    }

    #[test]
    fn position_for_peeks_is_not_moved() {
        let (mut one, other) = UnixStream::pair().unwrap();
        set_option(&other, libc::SO_PEEK_OFF, 2);
        one.write_all(b"unread").unwrap();
        let content = read(&other);
        assert_eq!((content.data.len(), content.unread_bytes), (0, 6));
        let socket = File::from(other.try_clone().map(std::os::fd::OwnedFd::from).unwrap());
        assert_eq!(socket_option(&socket, libc::SO_PEEK_OFF, -1), Some(2));
    }

    #[test]
    fn pending_error_is_not_consumed() {
        let bind = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (socket, peer) = (bind(), bind());
        socket.connect(peer.local_addr().unwrap()).unwrap();
        peer.send_to(b"five", socket.local_addr().unwrap()).unwrap();
        // The peer's end makes the answer to the next message an error.
        drop(peer);
        socket.send(b"refused").unwrap();
        let content = read(&socket);
        assert_eq!((content.data.len(), content.unread_bytes), (0, 4));
        let error = socket.recv(&mut [0; 4]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(socket.recv(&mut [0; 4]).unwrap(), 4);
    }

    #[test]
    fn data_behind_urgent_data_is_reported() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        one.write_all(b"before").unwrap();
        // SAFETY: send(2) reads one byte.
        let sent = unsafe { libc::send(one.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
        assert_eq!(sent, 1);
        one.write_all(b"behind").unwrap();
        let content = read(&other);
        assert_eq!(
            (content.data.as_slice(), content.has_more_data),
            (&b"before"[..], true)
        );
    }

    #[test]
    fn messages_between_netlink_sockets_are_counted() {
        let open = || {
            // SAFETY: socket(2) takes three numbers.
            let opened =
                unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_USERSOCK) };
            let descriptor = Errno::result(opened).unwrap();
            // SAFETY: socket(2) has just returned the descriptor, so nothing else owns it.
            unsafe { std::os::fd::OwnedFd::from_raw_fd(descriptor) }
        };
        let (sender, receiver) = (open(), open());
        let any = nix::sys::socket::NetlinkAddr::new(0, 0);
        nix::sys::socket::bind(receiver.as_raw_fd(), &any).unwrap();
        assert_eq!(read(&receiver).unread_bytes, 0);
        let own: nix::sys::socket::NetlinkAddr =
            nix::sys::socket::getsockname(receiver.as_raw_fd()).unwrap();
        let flags = nix::sys::socket::MsgFlags::empty();
        nix::sys::socket::sendto(sender.as_raw_fd(), b"message", &own, flags).unwrap();
        assert!(read(&receiver).unread_bytes >= 7);
    }

    #[test]
    fn file_and_listener_have_no_queue() {
        let reader = QueueReader::open(std::process::id()).unwrap();
        let file = tempfile::tempfile().unwrap();
        assert_eq!(reader.read_queue(file.as_raw_fd()).unwrap(), None);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(reader.read_queue(listener.as_raw_fd()).unwrap(), None);
        assert!(reader.read_queue(i32::MAX).is_err());
    }
}
