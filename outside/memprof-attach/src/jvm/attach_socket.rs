//! Opens a JVM's attach socket: a JVM that gets SIGQUIT and finds `.attach_pidPID` in its temporary directory
//! creates a socket there.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use memchr::memmem;
use memprof_ptrace::maps::mappings;
use memprof_ptrace::process::{ProcStatus, ProcessState};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid, fchown, fstat, openat, openat2, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::target_root::{TargetRoot, require_writable};

/// HotSpot's temporary directory, which does not depend on `java.io.tmpdir`.
const TEMP_DIR: &str = "tmp";
/// Timeout for a JVM to open its socket, the same as `jcmd`'s.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Most bytes of arguments, or of an environment, that are read: execve(2) takes 6 MiB of both together.
const MAX_OPTIONS_BYTES: u64 = 6 << 20;

/// Connects to the JVM in the process `pid`, which has the mappings `maps`. If the JVM's socket is not open, sends
/// SIGQUIT and waits up to 10 s for it. `None` if there is no JVM, if it is stopped or does not accept this user, if
/// attaching is disabled, or if its temporary directory cannot be opened.
pub(super) fn connect_to_jvm(pid: u32, maps: &[u8]) -> Option<UnixStream> {
    if !is_hotspot(maps) || is_attach_disabled(pid) {
        return None;
    }
    let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
    // Opened first: the status read through the pid then belongs to the process that gets the signal, which must
    // have a handler.
    let process = pidfd_open(number, PidfdFlags::empty()).ok()?;
    let status = ProcStatus::read_thread(pid).ok()?;
    if status.state != ProcessState::Alive {
        return None;
    }
    let temp_dir = TargetRoot::for_pid(pid)
        .ok()?
        .open_directory(TEMP_DIR)
        .ok()?;
    let jvm = Jvm {
        pid,
        temp_dir,
        status,
    };
    jvm.connect()
        .or_else(|| jvm.connect_after_sigquit(&process))
}

/// Returns whether the process maps HotSpot. OpenJ9 does not count: its library has the same name, but it writes a file
/// of all its threads on SIGQUIT.
fn is_hotspot(maps: &[u8]) -> bool {
    let has_library =
        |prefix: &[u8]| mappings(maps).any(|mapping| mapping.file_name().starts_with(prefix));
    has_library(b"libjvm.so") && !has_library(b"libj9")
}

/// Returns whether attaching is disabled by `-XX:+DisableAttachMechanism`, in the arguments or the environment. Such a
/// JVM prints the stacks of its threads on SIGQUIT.
fn is_attach_disabled(pid: u32) -> bool {
    let has_option = |file: &str| {
        let options = File::open(format!("/proc/{pid}/{file}"));
        options.is_ok_and(may_disable_attach)
    };
    has_option("cmdline") || has_option("environ")
}

/// Returns whether arguments or an environment contain `+DisableAttachMechanism`. True also if they are longer than
/// [`MAX_OPTIONS_BYTES`]: the process can make them as long as it wants (`PR_SET_MM` of prctl(2)). False if they cannot
/// be read.
fn may_disable_attach(options: impl Read) -> bool {
    let mut bytes = Vec::new();
    let read = options.take(MAX_OPTIONS_BYTES + 1).read_to_end(&mut bytes);
    let is_too_long = bytes.len() as u64 > MAX_OPTIONS_BYTES;
    read.is_ok() && (is_too_long || memmem::find(&bytes, b"+DisableAttachMechanism").is_some())
}

#[derive(Debug)]
struct Jvm {
    pid: u32,
    /// Its temporary directory.
    temp_dir: OwnedFd,
    status: ProcStatus,
}

impl Jvm {
    /// Requests the JVM by SIGQUIT to open its socket, and connects. `None` if the socket is not open in time, or the
    /// JVM does not handle the signal. With `-Xrs`, a JVM handles no signals, and opens the socket at its start.
    fn connect_after_sigquit(&self, process: &OwnedFd) -> Option<UnixStream> {
        if self.status.caught & (1 << (Signal::QUIT.as_raw() - 1)) == 0 {
            return None;
        }
        let attach_file = AttachFile::create(self).ok()?;
        pidfd_send_signal(process, Signal::QUIT).ok()?;
        let start = Instant::now();
        while start.elapsed() < SOCKET_TIMEOUT {
            if let Some(stream) = self.connect() {
                return Some(stream);
            }
            thread::sleep(POLL_INTERVAL);
        }
        // The file must exist until now: the JVM checks for it when it handles the signal.
        drop(attach_file);
        None
    }

    /// Connects to the JVM's attach socket, `.java_pidPID`. `None` unless the socket exists and the JVM itself listens
    /// on it, by the pid of the peer.
    fn connect(&self) -> Option<UnixStream> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        let name = format!(".java_pid{}", self.pid_in_namespace());
        let socket = openat2(&self.temp_dir, name, flags, Mode::empty(), resolve).ok()?;
        // The kernel's link to the opened file, even if the name refers to another one now.
        let address = format!("/proc/self/fd/{}", socket.as_raw_fd());
        let stream = connect_nonblocking(&address).ok()?;
        let peer = getsockopt(&stream, PeerCredentials).ok()?;
        (u32::try_from(peer.pid()) == Ok(self.pid)).then_some(stream)
    }

    /// Returns the pid of the JVM in its own pid namespace, which the names of its files contain.
    fn pid_in_namespace(&self) -> u32 {
        self.status.ns_pids.last().copied().unwrap_or(self.pid)
    }
}

/// Connects to the Unix socket at `path`. Fails if that would block, because a listener that accepts no connections
/// would block it for ever. Later reads and writes block.
fn connect_nonblocking(path: &str) -> io::Result<UnixStream> {
    let kind = SocketType::STREAM;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The file by which a JVM distinguishes this SIGQUIT from a request for its threads; removed when dropped.
#[derive(Debug)]
struct AttachFile<'a> {
    temp_dir: &'a OwnedFd,
    name: String,
}

impl<'a> AttachFile<'a> {
    /// Creates the file `.attach_pidPID`, whose existence the JVM checks before it opens its socket. The file belongs
    /// to the JVM's user. Fails if that user could not create it, or if it exists.
    fn create(jvm: &'a Jvm) -> Result<Self, Errno> {
        let temp_dir = &jvm.temp_dir;
        let [_, user, ..] = jvm.status.uids;
        require_writable(&fstat(temp_dir)?, user)?;
        let name = format!(".attach_pid{}", jvm.pid_in_namespace());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(temp_dir, &name, flags, Mode::RUSR | Mode::WUSR)?;
        let attach_file = Self { temp_dir, name };
        // Java 8 ignores a file that belongs to root.
        let [_, group, ..] = jvm.status.gids;
        fchown(&file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
        Ok(attach_file)
    }
}

impl Drop for AttachFile<'_> {
    /// Removes the file.
    fn drop(&mut self) {
        // If this fails, an empty file stays in a directory for temporary files.
        let _ = unlinkat(self.temp_dir, &self.name, AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A process that listens and accepts nothing.
    #[test]
    fn full_queue_is_not_waited_for() {
        let temp_dir = tempfile::tempdir().unwrap();
        let path = temp_dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let path = path.to_str().unwrap();
        let mut accepted = Vec::new();
        let error = loop {
            match connect_nonblocking(path) {
                Ok(stream) => accepted.push(stream),
                Err(error) => break error,
            }
            assert!(accepted.len() < 16);
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn option_that_disables_attaching_is_found() {
        let check = |options: &[u8], expected| assert_eq!(may_disable_attach(options), expected);
        check(b"java\0-XX:+DisableAttachMechanism\0Main\0", true);
        check(b"java\0-XX:-DisableAttachMechanism\0Main\0", false);
        check(b"", false);
        check(&vec![0; 6 << 20], false);
        assert!(may_disable_attach(io::repeat(0)));
    }

    #[test]
    fn only_hotspot_with_attach_is_accepted() {
        let check = |paths: &[&str], expected: bool| {
            let line = |path: &&str| format!("7f00-7f10 r-xp 00000000 fe:01 1 {path}\n");
            let maps: String = paths.iter().map(line).collect();
            assert_eq!(is_hotspot(maps.as_bytes()), expected, "{paths:?}");
        };
        check(&["/usr/lib/jvm/17/lib/server/libjvm.so"], true);
        check(
            &[
                "/opt/j9/lib/j9vm/libjvm.so",
                "/opt/j9/lib/default/libj9vm29.so",
            ],
            false,
        );
        check(&["/usr/lib/libc.so.6"], false);
    }
}
