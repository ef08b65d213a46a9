//! When the door is open, and how it is opened: a JVM that gets SIGQUIT and finds `.attach_pidPID` in its
//! temporary directory makes a socket there.

use std::fs;
use std::io;
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

/// HotSpot's temporary directory, whatever `java.io.tmpdir` says.
const TEMPORARY: &str = "tmp";
/// How long a JVM may take to open its socket: `jcmd` waits for so long at the most.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Connects to the JVM in a process with these mappings. None: it has none, or none that lets us in.
pub(super) fn open(pid: u32, maps: &[u8]) -> Option<UnixStream> {
    if !is_hotspot(maps) || is_disabled(pid) {
        return None;
    }
    let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
    // Its status is read through the pid afterwards: a signal never goes to a process that has no handler.
    let process = pidfd_open(number, PidfdFlags::empty()).ok()?;
    let status = ProcStatus::read_thread(pid).ok()?;
    if status.state != ProcessState::Alive {
        return None;
    }
    let place = TargetRoot::of(pid).ok()?.directory(TEMPORARY).ok()?;
    let jvm = Jvm { pid, place, status };
    jvm.connect().or_else(|| jvm.open(&process))
}

/// OpenJ9 names its library alike, and answers SIGQUIT with a file of all its threads.
fn is_hotspot(maps: &[u8]) -> bool {
    let has = |prefix: &[u8]| mappings(maps).any(|mapping| mapping.file_name().starts_with(prefix));
    has(b"libjvm.so") && !has(b"libj9")
}

/// Such a JVM answers SIGQUIT with the stacks of its threads on its standard output.
fn is_disabled(pid: u32) -> bool {
    let says_so = |file: &str| {
        let words = fs::read(format!("/proc/{pid}/{file}"));
        words.is_ok_and(|words| memmem::find(&words, b"+DisableAttachMechanism").is_some())
    };
    says_so("cmdline") || says_so("environ")
}

#[derive(Debug)]
struct Jvm {
    pid: u32,
    /// Its temporary directory.
    place: OwnedFd,
    status: ProcStatus,
}

impl Jvm {
    /// Asks the JVM to open its socket. One that leaves signals alone (`-Xrs`) has opened it at its start.
    fn open(&self, process: &OwnedFd) -> Option<UnixStream> {
        if self.status.caught & (1 << (Signal::QUIT.as_raw() - 1)) == 0 {
            return None;
        }
        let asked = AttachFile::new(self).ok()?;
        pidfd_send_signal(process, Signal::QUIT).ok()?;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(stream) = self.connect() {
                return Some(stream);
            }
            thread::sleep(LOOK_AGAIN);
        }
        drop(asked);
        None
    }

    /// The socket, if the JVM has opened it, and nobody else in its place.
    fn connect(&self) -> Option<UnixStream> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        let name = format!(".java_pid{}", self.pid_in_namespace());
        let socket = openat2(&self.place, name, flags, Mode::empty(), resolve).ok()?;
        // The kernel's own link to what was opened, whatever lies by its name now.
        let address = format!("/proc/self/fd/{}", socket.as_raw_fd());
        let stream = connect_at_once(&address).ok()?;
        let peer = getsockopt(&stream, PeerCredentials).ok()?;
        (u32::try_from(peer.pid()) == Ok(self.pid)).then_some(stream)
    }

    /// Its pid as it knows it.
    fn pid_in_namespace(&self) -> u32 {
        self.status.ns_pids.last().copied().unwrap_or(self.pid)
    }
}

/// Connects, unless that takes a wait: a listener that accepts nothing would decide how long.
fn connect_at_once(path: &str) -> io::Result<UnixStream> {
    let kind = SocketType::STREAM;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The file by which a JVM tells this SIGQUIT from one that asks for its threads; removed when dropped.
#[derive(Debug)]
struct AttachFile<'a> {
    place: &'a OwnedFd,
    name: String,
}

impl<'a> AttachFile<'a> {
    fn new(jvm: &'a Jvm) -> Result<Self, Errno> {
        let place = &jvm.place;
        let [_, user, ..] = jvm.status.uids;
        require_writable(&fstat(place)?, user)?;
        let name = format!(".attach_pid{}", jvm.pid_in_namespace());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(place, &name, flags, Mode::RUSR | Mode::WUSR)?;
        let asked = Self { place, name };
        // Java 8 does not heed a file of root's.
        let [_, group, ..] = jvm.status.gids;
        fchown(&file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
        Ok(asked)
    }
}

impl Drop for AttachFile<'_> {
    fn drop(&mut self) {
        // An empty file in a directory for what is left over.
        let _ = unlinkat(self.place, &self.name, AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// As of a process that listens and accepts nothing.
    #[test]
    fn a_full_queue_is_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let path = path.to_str().unwrap();
        let mut accepted = Vec::new();
        let error = loop {
            match connect_at_once(path) {
                Ok(stream) => accepted.push(stream),
                Err(error) => break error,
            }
            assert!(accepted.len() < 16);
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn which_jvm_has_the_door() {
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
