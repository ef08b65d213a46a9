//! The capabilities (capabilities(7)) of our threads. Each thread has its own, so a program that
//! gives some up, other than by changing its user, leaves them to every thread but the one that
//! does so.
#![expect(unsafe_code, reason = "capset(2)")]

use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::guarded_fd::GuardedFd;

/// setuid(3) and its relatives make the system call in every thread, ours too, and end the process
/// when it succeeds in some only. Where a program locks all its memory, each allocation needs the
/// third.
const NEEDED: u64 = 1 << CAP_SETGID | 1 << CAP_SETUID | 1 << CAP_IPC_LOCK;

/// linux/capability.h.
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_IPC_LOCK: u32 = 14;
const VERSION_3: u32 = 0x2008_0522;

/// The main thread is not looked at more often: the kernel takes tens of microseconds for it, which
/// is longer than a short message.
const FRESH: Duration = Duration::from_millis(100);

/// The capabilities of the calling thread, which must be the one that got this.
#[derive(Debug)]
pub struct Privileges {
    /// Those it may still have.
    kept: u64,
    /// When the main thread was looked at last.
    looked: Option<Instant>,
}

impl Privileges {
    /// Gives up all but those without which the program could be harmed.
    pub(crate) fn drop_unneeded() -> Self {
        let mut privileges = Self::of_program();
        privileges.retain(NEEDED);
        privileges
    }

    /// Gives up none yet.
    pub(crate) fn of_program() -> Self {
        Self {
            kept: u64::MAX,
            looked: None,
        }
    }

    /// Gives up those that the program's main thread does not have any more, or did not have a tenth
    /// of a second ago. Costs nothing in a process that had none to begin with.
    pub fn match_main_thread(&mut self) {
        let is_fresh = |looked: Instant| looked.elapsed() < FRESH;
        if self.kept == 0 || self.looked.is_some_and(is_fresh) {
            return;
        }
        self.looked = Some(Instant::now());
        if let Some(main) = Capabilities::read(c"/proc/self/status") {
            self.retain(main.permitted);
        }
    }

    fn retain(&mut self, those: u64) {
        if self.kept & !those == 0 {
            return;
        }
        // Without /proc, as after chroot(2), nothing is known.
        let Some(own) = Capabilities::read(c"/proc/thread-self/status") else {
            return;
        };
        let all = own.permitted | own.effective | own.inheritable;
        self.kept = all & those;
        if all & !those == 0 {
            return;
        }
        // A filter of system calls may end the process for this one.
        if own.is_filtered || !own.reduced_to(those).set() {
            self.kept = all;
        }
    }
}

/// What `/proc/PID/status` tells of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Capabilities {
    inheritable: u64,
    permitted: u64,
    effective: u64,
    /// It has a seccomp(2) filter.
    is_filtered: bool,
}

impl Capabilities {
    /// Allocates nothing: a new thread does not know yet who would notice.
    fn read(path: &std::ffi::CStr) -> Option<Self> {
        let file = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let file = GuardedFd::new(file).ok()?;
        Self::parse(|piece| rustix::io::read(file.get().ok()?, piece).ok())
    }

    fn parse(read: impl FnMut(&mut [u8]) -> Option<usize>) -> Option<Self> {
        let [mut inheritable, mut permitted, mut effective, mut seccomp] = [None; 4];
        for_each_line(read, |line| {
            let Some((name, value)) = line.split_once(':') else {
                return;
            };
            let field = match name {
                "CapInh" => &mut inheritable,
                "CapPrm" => &mut permitted,
                "CapEff" => &mut effective,
                "Seccomp" => &mut seccomp,
                _ => return,
            };
            *field = u64::from_str_radix(value.trim(), 16).ok();
        })?;
        Some(Self {
            inheritable: inheritable?,
            permitted: permitted?,
            effective: effective?,
            // A kernel without filters has no such line.
            is_filtered: seccomp.is_some_and(|mode| mode != 0),
        })
    }

    fn reduced_to(self, those: u64) -> Self {
        Self {
            inheritable: self.inheritable & those,
            permitted: self.permitted & those,
            effective: self.effective & those,
            ..self
        }
    }

    /// False where the kernel refuses.
    fn set(self) -> bool {
        let header = [VERSION_3, 0];
        let half = |shift: u32| {
            let word = |all: u64| (all >> shift) as u32;
            [
                word(self.effective),
                word(self.permitted),
                word(self.inheritable),
            ]
        };
        let data = [half(0), half(32)];
        // SAFETY: capset(2): version 3 has a header of two words and data of two times three, which
        // the kernel only reads; 0 is the calling thread.
        unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) == 0 }
    }
}

/// `read` fills a slice from its start and returns how many bytes it wrote, at the end none. A line
/// that is longer than the buffer, as that of a user's groups may be, comes in pieces.
fn for_each_line(
    mut read: impl FnMut(&mut [u8]) -> Option<usize>,
    mut take: impl FnMut(&str),
) -> Option<()> {
    // Less than a page, as each page of a stack that is touched stays the thread's own.
    let mut buffer = [0; 2048];
    let mut filled = 0;
    loop {
        let length = read(&mut buffer[filled..])?;
        filled += length;
        let ended = buffer[..filled].iter().rposition(|&byte| byte == b'\n');
        let whole = match ended {
            Some(end) => end + 1,
            None if filled == buffer.len() => filled,
            None => 0,
        };
        let lines = buffer[..whole].split(|&byte| byte == b'\n');
        lines.flat_map(str::from_utf8).for_each(&mut take);
        if length == 0 {
            return Some(());
        }
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_status_is_read() {
        let check = |text: &str, expected| {
            let mut rest = text.as_bytes();
            let read = Capabilities::parse(|piece| rest.read(piece).ok());
            assert_eq!(read, expected, "{text}");
        };
        let all = "Groups:\t0\nCapInh:\t0000000000000000\nCapPrm:\t000001ffffffffff\n\
                   CapEff:\t0000000000000080\nCapBnd:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        check(
            all,
            Some(Capabilities {
                inheritable: 0,
                permitted: 0x1ff_ffff_ffff,
                effective: 0x80,
                is_filtered: true,
            }),
        );
        check("CapInh:\t0\nCapPrm:\t0\n", None);
        check(
            "CapInh:\t0\nCapPrm:\t0\nCapEff:\t0\n",
            Some(Capabilities::default()),
        );
        let groups = "1000000000 ".repeat(65_536);
        check(
            &format!("Groups:\t{groups}\nCapInh:\t0\nCapPrm:\t0\nCapEff:\t0\n"),
            Some(Capabilities::default()),
        );
    }

    #[test]
    fn a_thread_of_ours_keeps_what_its_program_may_need() {
        let before = Capabilities::read(c"/proc/thread-self/status").unwrap();
        let after = std::thread::spawn(|| {
            let mut privileges = Privileges::drop_unneeded();
            privileges.match_main_thread();
            Capabilities::read(c"/proc/thread-self/status").unwrap()
        });
        assert_eq!(after.join().unwrap(), before.reduced_to(NEEDED));
        assert_eq!(
            Capabilities::read(c"/proc/thread-self/status"),
            Some(before)
        );
    }
}
