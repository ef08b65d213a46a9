//! Capabilities (capabilities(7)) of memprof's threads. Each thread has its own set. If a program drops capabilities
//! without changing its user, only the thread that makes the system call loses them.
#![expect(unsafe_code, reason = "capset(2)")]

use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::guarded_fd::GuardedFd;
use crate::status_lines::for_each_status_line;

/// Capabilities that memprof's threads keep. `CAP_SETGID` and `CAP_SETUID`: setuid(3) and related functions make the
/// system call in every thread, and abort the process if it succeeds in only some of them. `CAP_IPC_LOCK`: if a program
/// locks all its memory, each allocation needs it.
const NEEDED: u64 = 1 << CAP_SETGID | 1 << CAP_SETUID | 1 << CAP_IPC_LOCK;

// Constants of linux/capability.h.
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_IPC_LOCK: u32 = 14;
const VERSION_3: u32 = 0x2008_0522;

/// Minimum interval between two reads of the main thread's capabilities. A read takes tens of microseconds in the
/// kernel, longer than a short message.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(100);

/// Capabilities of the thread that created this value. Only that thread may use it.
#[derive(Debug)]
pub struct Privileges {
    /// Upper bound of the thread's capabilities, as a bit mask.
    upper_bound: u64,
    /// Time of the last read of the main thread's capabilities. `None` if there was none.
    last_read: Option<Instant>,
}

impl Privileges {
    /// Drops all capabilities of the calling thread except those in [`NEEDED`]. Drops none if the thread's capabilities
    /// cannot be read, if the thread has a seccomp filter, or if the kernel refuses.
    pub(crate) fn drop_unneeded() -> Self {
        let mut privileges = Self::keep_all();
        privileges.drop_all_except(NEEDED);
        privileges
    }

    /// Creates privileges that keep all capabilities of the calling thread, until [`Self::limit_to_main_thread`] drops
    /// some.
    pub(crate) fn keep_all() -> Self {
        Self {
            upper_bound: u64::MAX,
            last_read: None,
        }
    }

    /// Drops capabilities that the program's main thread no longer has. Reads the main thread's capabilities at most
    /// every 100 ms, and does nothing on calls in between. Also does nothing if they cannot be read, or if the calling
    /// thread has no capabilities.
    pub fn limit_to_main_thread(&mut self) {
        let is_recent = |last_read: Instant| last_read.elapsed() < MIN_READ_INTERVAL;
        if self.upper_bound == 0 || self.last_read.is_some_and(is_recent) {
            return;
        }
        self.last_read = Some(Instant::now());
        if let Some(main) = Capabilities::read(c"/proc/self/status") {
            self.drop_all_except(main.permitted);
        }
    }

    /// Drops all capabilities of the calling thread except those in `mask`. Drops none if the thread's capabilities
    /// cannot be read, if the thread has a seccomp filter, or if the kernel refuses.
    fn drop_all_except(&mut self, mask: u64) {
        if self.upper_bound & !mask == 0 {
            return;
        }
        // Without /proc, for example after chroot(2), the capabilities are unknown.
        let Some(own) = Capabilities::read(c"/proc/thread-self/status") else {
            return;
        };
        let all = own.permitted | own.effective | own.inheritable;
        self.upper_bound = all & mask;
        if all & !mask == 0 {
            return;
        }
        // A seccomp filter may end the process for capset(2).
        if own.is_filtered || !own.intersect(mask).apply_to_thread() {
            self.upper_bound = all;
        }
    }
}

/// Returns whether the calling thread has no seccomp(2) filter. False if that is unknown, for example because /proc is
/// not mounted.
pub(crate) fn has_no_seccomp_filter() -> bool {
    Capabilities::read(c"/proc/thread-self/status").is_some_and(|own| !own.is_filtered)
}

/// Capabilities of a thread, from its /proc status file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Capabilities {
    inheritable: u64,
    permitted: u64,
    effective: u64,
    /// Whether the thread has a seccomp(2) filter.
    is_filtered: bool,
}

impl Capabilities {
    /// Reads a thread's status file. `None` if it cannot be read. Allocates nothing, because it runs at the start of a
    /// new thread, where the program's hooks of malloc would see the allocation.
    fn read(path: &std::ffi::CStr) -> Option<Self> {
        let file = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let file = GuardedFd::new(file).ok()?;
        Self::parse(|piece| rustix::io::read(file.get().ok()?, piece).ok())
    }

    /// Parses a status file, whose text `read` returns in pieces: it fills a slice, and returns the number of bytes, 0
    /// at the end. `None` if a read fails, or if a capability set is missing.
    fn parse(read: impl FnMut(&mut [u8]) -> Option<usize>) -> Option<Self> {
        let [mut inheritable, mut permitted, mut effective, mut seccomp] = [None; 4];
        for_each_status_line(read, |line| {
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
            // A kernel without seccomp filters has no such line.
            is_filtered: seccomp.is_some_and(|mode| mode != 0),
        })
    }

    /// Returns the capabilities that are also in `mask`.
    fn intersect(self, mask: u64) -> Self {
        Self {
            inheritable: self.inheritable & mask,
            permitted: self.permitted & mask,
            effective: self.effective & mask,
            ..self
        }
    }

    /// Sets the calling thread's capabilities by capset(2). Returns false if the kernel refuses.
    fn apply_to_thread(self) -> bool {
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
        // SAFETY: capset(2): in version 3, the header has two words, and the data has two structs of three words. The
        // kernel only reads them. Thread 0 is the calling thread.
        unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) == 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn status_lines_are_parsed() {
        let check = |text: &str, expected| {
            let mut remaining = text.as_bytes();
            let read = Capabilities::parse(|piece| remaining.read(piece).ok());
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
    fn thread_retains_needed_capabilities() {
        let before = Capabilities::read(c"/proc/thread-self/status").unwrap();
        let after = std::thread::spawn(|| {
            let mut privileges = Privileges::drop_unneeded();
            privileges.limit_to_main_thread();
            Capabilities::read(c"/proc/thread-self/status").unwrap()
        });
        assert_eq!(after.join().unwrap(), before.intersect(NEEDED));
        assert_eq!(
            Capabilities::read(c"/proc/thread-self/status"),
            Some(before)
        );
    }
}
