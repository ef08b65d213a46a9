//! Waits for the end of a process that may be no child of this one, reads its exit status, and sends it signals.
#![expect(
    unsafe_code,
    reason = "pidfd_open(2) and what its descriptors are for: no used library has wrappers"
)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::ptr;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::process::ProcStat;

/// `struct pidfd_info` of the kernel's include/uapi/linux/pidfd.h in its first version; later ones append to it.
#[repr(C)]
#[derive(Debug, Default)]
struct PidfdInfo {
    /// Requested fields; on return, those that are valid.
    mask: u64,
    cgroup: u64,
    numbers_and_users: [u32; 11],
    exit_code: i32,
}

/// `PIDFD_INFO_EXIT`, since Linux 6.15.
const INFO_EXIT: u64 = 1 << 3;
/// `PIDFD_GET_INFO`: `_IOWR(0xff, 11, struct pidfd_info)`.
const GET_INFO: libc::c_ulong =
    3 << 30 | (size_of::<PidfdInfo>() as libc::c_ulong) << 16 | 0xff << 8 | 11;

/// `PIDFD_SIGNAL_PROCESS_GROUP` of the kernel's include/uapi/linux/pidfd.h, since Linux 6.9.
const SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;

/// `PIDFD_THREAD` of the kernel's include/uapi/linux/pidfd.h, since Linux 6.9.
const PIDFD_THREAD: libc::c_int = libc::O_EXCL;

/// A descriptor of a process (`pidfd_open(2)`), which never refers to another process with the same pid. Readable
/// once the process has ended.
#[derive(Debug)]
pub struct PidFd {
    pid: u32,
    descriptor: OwnedFd,
}

impl PidFd {
    /// Opens a process, which may be a zombie.
    ///
    /// # Errors
    /// `ESRCH`: no process has that pid. `ENOSYS`: Linux before 5.3.
    pub fn open(pid: u32) -> io::Result<Self> {
        Self::open_with_flags(pid, 0)
    }

    /// Opens a thread, e.g. one with a descriptor table of its own.
    ///
    /// # Errors
    /// `ESRCH`: no thread has that id. `EINVAL`: Linux before 6.9.
    pub(crate) fn open_thread(tid: u32) -> io::Result<Self> {
        Self::open_with_flags(tid, PIDFD_THREAD)
    }

    /// Calls `pidfd_open(2)`. `flags` are 0 for a process, or [`PIDFD_THREAD`] for a thread. Fails with the errno of
    /// the call.
    fn open_with_flags(pid: u32, flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: pidfd_open(2) takes two numbers.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) };
        let descriptor = Errno::result(opened)?;
        Ok(Self {
            pid,
            // SAFETY: pidfd_open(2) has just returned the descriptor, so nothing else owns it.
            descriptor: unsafe { OwnedFd::from_raw_fd(descriptor as i32) },
        })
    }

    /// Waits until all threads of the process have ended, for `timeout` at most. Returns whether they have; false
    /// also if a signal interrupts the wait.
    pub fn wait_for_end(&self, timeout: Duration) -> bool {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let mut polled = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        // poll(2) fails if a signal interrupts it: the process may still run.
        poll(&mut polled, timeout).is_ok_and(|ready| ready > 0)
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    /// `ESRCH`: its parent has waited for it; `EPERM`: it runs as another user.
    pub fn send_signal(&self, signal: Signal) -> io::Result<()> {
        self.send_signal_with_flags(signal as i32, 0)
    }

    /// Sends a signal to the process group whose leader this process is, or was until its end. Linux before 6.9 finds
    /// the group by its number, which may belong to a new group once no process of the old one is left.
    ///
    /// # Errors
    /// `ESRCH`: no process of the group is left; `EPERM`: they run as other users.
    pub fn send_signal_to_group(&self, signal: Signal) -> io::Result<()> {
        match self.send_signal_with_flags(signal as i32, SIGNAL_PROCESS_GROUP) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                Ok(killpg(Pid::from_raw(self.pid.cast_signed()), signal)?)
            }
            sent => sent,
        }
    }

    /// Calls `pidfd_send_signal(2)`. `signal` is 0 for none: then the call only checks. `flags` are 0 for the process,
    /// or [`SIGNAL_PROCESS_GROUP`]. Fails with the errno of the call.
    fn send_signal_with_flags(&self, signal: i32, flags: libc::c_uint) -> io::Result<()> {
        let descriptor = self.descriptor.as_raw_fd();
        let no_info = ptr::null::<libc::siginfo_t>();
        // SAFETY: pidfd_send_signal(2) takes numbers, and a null pointer for the signal's record.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                descriptor,
                signal,
                no_info,
                flags,
            )
        };
        Errno::result(sent)?;
        Ok(())
    }

    /// Duplicates descriptor `number` of the opened process into the process that calls this (`pidfd_getfd(2)`).
    ///
    /// # Errors
    /// The process has closed the descriptor, this user may not access it, or Linux is older than 5.6.
    pub fn duplicate_descriptor(&self, number: i32) -> io::Result<OwnedFd> {
        let descriptor = self.descriptor.as_raw_fd();
        // SAFETY: pidfd_getfd(2) takes three numbers.
        let duplicate = unsafe { libc::syscall(libc::SYS_pidfd_getfd, descriptor, number, 0) };
        let duplicate = Errno::result(duplicate)?;
        // SAFETY: pidfd_getfd(2) has just returned the descriptor, so nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(duplicate as i32) })
    }

    /// Returns the wait status of the process. `None` before it ends, if it is a zombie that this user may not trace,
    /// or if its parent has waited for it and the kernel keeps no status (Linux before 6.15). Before Linux 5.17, the
    /// status of a zombie is that of its main thread, which is 0 if that thread ended before the others.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        if !self.wait_for_end(Duration::ZERO) {
            return None;
        }
        // In this order: if the parent waits for the zombie in between, `reaped_status` gets the status.
        let code = self.zombie_status().or_else(|| self.reaped_status())?;
        Some(ExitStatus::from_raw(code))
    }

    /// Returns the wait status of a process that is still a zombie, from /proc/PID/stat. `None` if it runs or was
    /// reaped, if the file cannot be read, or if it does not show the status to this user.
    fn zombie_status(&self) -> Option<i32> {
        let text = fs::read(format!("/proc/{}/stat", self.pid)).ok()?;
        let stat = ProcStat::parse(&text).ok()?;
        let status = stat.exit_code.filter(|_| stat.is_zombie)?;
        // To a user who may not trace the process, the kernel shows 0 instead of the status. It reads the link by the
        // same right.
        let is_shown = status != 0 || fs::read_link(format!("/proc/{}/ns/pid", self.pid)).is_ok();
        // Once it is reaped, both files may be those of a later process with the pid.
        (is_shown && !self.was_reaped()).then_some(status)
    }

    /// Returns whether the process's parent has waited for it.
    fn was_reaped(&self) -> bool {
        let checked = self.send_signal_with_flags(0, 0);
        checked.is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH))
    }

    /// Returns the wait status of a process whose parent has waited for it, from the pidfd. `None` before that, and on
    /// kernels before Linux 6.15.
    fn reaped_status(&self) -> Option<i32> {
        let mut info = PidfdInfo {
            mask: INFO_EXIT,
            ..PidfdInfo::default()
        };
        // SAFETY: the request contains the size of `info`, beyond which the kernel does not write.
        let result = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), GET_INFO, &raw mut info) };
        (result == 0 && info.mask & INFO_EXIT != 0).then_some(info.exit_code)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn zombie_has_exit_status() {
        let check = |script: &str, expected: i32| {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let process = PidFd::open(child.id()).unwrap();
            assert!(process.wait_for_end(LONG), "{script}");
            let found = process.exit_status();
            assert_eq!(found, Some(ExitStatus::from_raw(expected)), "{script}");
            let reaped = child.wait().unwrap();
            // Linux before 6.15 keeps no status of a reaped process.
            let kept = process.exit_status();
            assert!(kept.is_none_or(|kept| kept == reaped), "{kept:?}");
        };
        check("exit 0", 0);
        check("exit 7", 7 << 8);
        check("kill -KILL $$", libc::SIGKILL);
    }

    #[test]
    fn exit_status_that_is_not_shown_to_this_user_is_unknown() {
        let other = nix::unistd::geteuid().as_raw() + 1;
        let mut child = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let process = PidFd::open(child.id()).unwrap();
        assert!(process.wait_for_end(LONG));
        let as_other_user = || {
            // SAFETY: setresuid(2) takes numbers. Unlike the C library's function, it changes this thread only.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, other, other, other) };
            Errno::result(changed).map(|_| process.exit_status())
        };
        let found = thread::scope(|scope| scope.spawn(as_other_user).join().unwrap());
        match found {
            Ok(found) => assert_eq!(found, None),
            Err(errno) => eprintln!("SKIPPED (needs root): {errno}"),
        }
        assert_eq!(process.exit_status(), Some(ExitStatus::from_raw(7 << 8)));
        child.wait().unwrap();
    }

    #[test]
    fn signal_reaches_process_and_its_group_but_no_later_one() {
        let mut leader = Command::new("sh");
        let leader = leader.args(["-c", "sleep 60 & echo $!; read x"]);
        let leader = leader.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut leader = leader.process_group(0).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(leader.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let member = PidFd::open(line.trim().parse().unwrap()).unwrap();
        let process = PidFd::open(leader.id()).unwrap();
        process.send_signal(Signal::SIGKILL).unwrap();
        assert_eq!(leader.wait().unwrap().signal(), Some(libc::SIGKILL));
        let error = process.send_signal(Signal::SIGKILL).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
        assert!(!member.wait_for_end(Duration::ZERO));
        process.send_signal_to_group(Signal::SIGKILL).unwrap();
        assert!(member.wait_for_end(LONG));
    }

    #[test]
    fn running_process_has_no_exit_status() {
        let own = PidFd::open(std::process::id()).unwrap();
        assert!(!own.wait_for_end(Duration::ZERO));
        assert_eq!(own.exit_status(), None);
        let error = PidFd::open(u32::MAX >> 2).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
