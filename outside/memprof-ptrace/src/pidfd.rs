//! The end of a process that is no child of this one's, and its exit status.
#![expect(
    unsafe_code,
    reason = "pidfd_open(2) and an ioctl(2) of its descriptors, which no library of ours knows"
)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::process::ProcStat;

/// `struct pidfd_info` of the kernel's include/uapi/linux/pidfd.h in its first version; later ones append to it.
#[repr(C)]
#[derive(Debug, Default)]
struct PidfdInfo {
    /// Asked for, then known.
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

/// A process, which no other one that gets its pid is taken for (`pidfd_open(2)`). Readable once it has ended.
#[derive(Debug)]
pub struct PidFd {
    pid: u32,
    descriptor: OwnedFd,
}

impl PidFd {
    /// Opens a process, which may be a zombie already.
    ///
    /// # Errors
    /// `ESRCH`: there is none of that pid. `ENOSYS`: Linux before 5.3.
    pub fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: pidfd_open(2) takes two numbers.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let descriptor = Errno::result(opened)?;
        Ok(Self {
            pid,
            // SAFETY: the system call has just returned it, so nothing else owns it.
            descriptor: unsafe { OwnedFd::from_raw_fd(descriptor as i32) },
        })
    }

    /// Waits until all its threads have ended, for `timeout` at the most. Whether they have.
    pub fn wait(&self, timeout: Duration) -> bool {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let mut polled = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        // An error is a signal's: it has not ended as far as is known.
        poll(&mut polled, timeout).is_ok_and(|ready| ready > 0)
    }

    /// The status that it ended with. `None` before, and where its parent has got it and the kernel keeps none (Linux
    /// before 6.15).
    pub fn exit_status(&self) -> Option<ExitStatus> {
        if !self.wait(Duration::ZERO) {
            return None;
        }
        // In this order: a zombie that is reaped in between is known to the second.
        let code = self.of_zombie().or_else(|| self.of_reaped())?;
        Some(ExitStatus::from_raw(code))
    }

    fn of_zombie(&self) -> Option<i32> {
        let text = fs::read(format!("/proc/{}/stat", self.pid)).ok()?;
        let stat = ProcStat::parse(&text).ok()?;
        stat.exit_code.filter(|_| stat.is_zombie)
    }

    fn of_reaped(&self) -> Option<i32> {
        let mut info = PidfdInfo {
            mask: INFO_EXIT,
            ..PidfdInfo::default()
        };
        // SAFETY: the request carries the size of the struct, which the kernel fills no further.
        let got = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), GET_INFO, &raw mut info) };
        (got == 0 && info.mask & INFO_EXIT != 0).then_some(info.exit_code)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn exit_status_is_known_of_zombies() {
        let check = |script: &str, expected: i32| {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let process = PidFd::open(child.id()).unwrap();
            assert!(process.wait(LONG), "{script}");
            let found = process.exit_status();
            assert_eq!(found, Some(ExitStatus::from_raw(expected)), "{script}");
            let reaped = child.wait().unwrap();
            // Linux before 6.15 keeps none.
            let kept = process.exit_status();
            assert!(kept.is_none_or(|kept| kept == reaped), "{kept:?}");
        };
        check("exit 0", 0);
        check("exit 7", 7 << 8);
        check("kill -KILL $$", libc::SIGKILL);
    }

    #[test]
    fn running_process_has_no_exit_status() {
        let own = PidFd::open(std::process::id()).unwrap();
        assert!(!own.wait(Duration::ZERO));
        assert_eq!(own.exit_status(), None);
        let error = PidFd::open(u32::MAX >> 2).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
