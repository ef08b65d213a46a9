//! Whether a seccomp filter lets the process live while it is profiled.
//!
//! A filter may end the process at a system call that it does not know, and nobody may read what
//! it says. So a forked child, which has the same filter, makes the calls first, with arguments
//! that do nothing; if it is killed, the host is not.
#![expect(
    unsafe_code,
    reason = "clone without the C library's handlers, and its child"
)]

use std::io;
use std::iter;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use libc::{c_int, c_long, pid_t};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};

/// What a message or a dump calls, beside what every program with threads and files does, and with what. No
/// argument is valid: each call only fails. The first two are for
/// the child itself.
const CALLS: &[(&str, c_long, [c_long; 5])] = &[
    (
        "wait4",
        libc::SYS_wait4,
        [-1, 0, libc::WNOHANG as c_long, 0, 0],
    ),
    (
        "prlimit64",
        libc::SYS_prlimit64,
        [0, libc::RLIMIT_CORE as c_long, 0, 0, 0],
    ),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask, [-1, 0, 0, 8, 0]),
    ("memfd_create", libc::SYS_memfd_create, [0; 5]),
    ("fchmod", libc::SYS_fchmod, [-1, 0, 0, 0, 0]),
    ("fstatfs", libc::SYS_fstatfs, [-1, 0, 0, 0, 0]),
    ("ftruncate", libc::SYS_ftruncate, [-1, 0, 0, 0, 0]),
    ("fallocate", libc::SYS_fallocate, [-1, 3, 0, 4096, 0]),
    ("pread64", libc::SYS_pread64, [-1, 0, 0, 0, 0]),
    ("lseek", libc::SYS_lseek, [-1, 0, 0, 0, 0]),
    ("uname", libc::SYS_uname, [0; 5]),
    ("getrandom", libc::SYS_getrandom, [0; 5]),
    ("statx", libc::SYS_statx, [-1, 0, 0, 0, 0]),
    ("newfstatat", libc::SYS_newfstatat, [-1, 0, 0, 0, 0]),
    ("getdents64", libc::SYS_getdents64, [-1, 0, 0, 0, 0]),
    ("linkat", libc::SYS_linkat, [-1, 0, -1, 0, 0]),
    ("renameat2", libc::SYS_renameat2, [-1, 0, -1, 0, 0]),
    ("unlinkat", libc::SYS_unlinkat, [-1, 0, 0, 0, 0]),
    ("flock", libc::SYS_flock, [-1, 0, 0, 0, 0]),
    ("fsync", libc::SYS_fsync, [-1, 0, 0, 0, 0]),
];

/// Longer than a fork of the largest program takes.
const PATIENCE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// The call after which the child makes its own end a quiet one.
const QUIET: usize = 1;

/// What was found out of a process's filters, in the order in which threads of it have more of them. Leaked: there
/// are few, and anybody may be reading it.
#[derive(Debug)]
struct ProbedFilters {
    process: u32,
    filters: u64,
    outcome: Result<()>,
    before: Option<&'static Self>,
}

/// What was found out last, or null. No lock: a forked child would wait for the thread that was trying out a filter.
static KNOWN: AtomicPtr<ProbedFilters> = AtomicPtr::new(ptr::null_mut());

fn cached_probe() -> Option<&'static ProbedFilters> {
    // SAFETY: null, or leaked.
    unsafe { KNOWN.load(Ordering::Acquire).as_ref() }
}

/// Fails where a seccomp filter of the calling thread ends the process at a call that the profiler
/// makes. A filter is tried out once, by a fork.
///
/// # Errors
/// `Io`: names the call.
pub fn require_calls() -> Result<()> {
    let Some(filters) = filters() else {
        return Ok(());
    };
    let process = process::id();
    let mut all = iter::successors(cached_probe(), |known| known.before);
    if let Some(known) = all.find(|known| (known.process, known.filters) == (process, filters)) {
        return known.outcome.clone();
    }
    let outcome =
        probe_in_child().map_err(|error| Error::io("try out the seccomp filter", &error))?;
    let outcome = outcome.map_or(Ok(()), |call| Err(refusal(call)));
    // What another thread finds out at the same time may be lost, and is tried out again.
    let found = Box::leak(Box::new(ProbedFilters {
        process,
        filters,
        outcome: outcome.clone(),
        before: cached_probe(),
    }));
    KNOWN.store(found, Ordering::Release);
    outcome
}

fn refusal(call: &str) -> Error {
    let message =
        format!("the seccomp filter of this process would end it at {call}, which memprof needs");
    Error::new(ErrorKind::Io, message).remedy(format!(
        "allow {call} in the filter, or let it answer with an error (systemd: \
         SystemCallErrorNumber=EPERM)"
    ))
}

/// The number of the calling thread's filters; none where there is none, or no /proc.
pub(crate) fn filters() -> Option<u64> {
    // Without the calls that `std::fs::read` makes beside these.
    let mut status = [const { MaybeUninit::uninit() }; 4096];
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open("/proc/thread-self/status", flags, Mode::empty()).ok()?;
    let (status, _) = rustix::io::read(&file, &mut status).ok()?;
    parse(&String::from_utf8_lossy(status))
}

fn parse(status: &str) -> Option<u64> {
    const FILTERED: u64 = 2;
    let number = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    // The number is told since Linux 5.9.
    (number("Seccomp:")? == FILTERED).then(|| number("Seccomp_filters:").unwrap_or(1))
}

/// The call at which a forked child was killed, if it was.
fn probe_in_child() -> io::Result<Option<&'static str>> {
    let shared = ProbePage::map()?;
    let (child, exit) = fork(shared.progress())?;
    let mut polled = [PollFd::new(&exit, PollFlags::IN)];
    loop {
        match poll(&mut polled, Some(&PATIENCE)) {
            Ok(0) => return Err(Errno::TIMEDOUT.into()),
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let begun = shared.progress().load(Ordering::Acquire);
    // Whether waiting is allowed, the child has shown. If it is not, its entry stays in the
    // process table.
    if begun > 1 {
        // SAFETY: waitpid(2) of our own child, which nobody else waits for: it sends no SIGCHLD.
        unsafe { libc::waitpid(child, ptr::null_mut(), libc::__WALL) };
    }
    match begun.checked_sub(1) {
        Some(last) => Ok(CALLS.get(last).map(|(name, ..)| *name)),
        None => Err(io::Error::other("the forked process did nothing")),
    }
}

/// A page that a child shares.
struct ProbePage(*mut AtomicUsize);

impl ProbePage {
    fn map() -> io::Result<Self> {
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: mmap(2): new zeroed memory, of a page at the least.
        let page = unsafe { libc::mmap(ptr::null_mut(), size_of::<usize>(), access, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(page.cast()))
    }

    /// How many calls the child has begun.
    fn progress(&self) -> &AtomicUsize {
        // SAFETY: mapped until it is dropped, aligned, and zeroes are a value.
        unsafe { &*self.0 }
    }
}

impl Drop for ProbePage {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made.
        unsafe { libc::munmap(self.0.cast(), size_of::<usize>()) };
    }
}

/// `struct clone_args` of clone3(2), as of Linux 5.3.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

/// A child that makes the calls, and a descriptor that tells its end. In the same order as the C
/// library makes a thread, clone3 and then clone: a filter lets that pass.
fn fork(progress: &AtomicUsize) -> io::Result<(pid_t, OwnedFd)> {
    let mut descriptor: c_int = -1;
    let descriptor_at = &raw mut descriptor;
    let args = CloneArgs {
        flags: libc::CLONE_PIDFD as u64,
        pidfd: descriptor_at as u64,
        ..CloneArgs::default()
    };
    // SAFETY: clone3(2) with its arguments and their size. Without CLONE_VM the child has memory
    // of its own; it makes system calls only, so that no lock of another thread matters.
    let mut child = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    if child == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
        let flags = c_long::from(libc::CLONE_PIDFD);
        // SAFETY: clone(2), as above; the third argument is where the descriptor goes.
        child = unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, descriptor_at, 0, 0) };
    }
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => make_calls(progress),
        // SAFETY: the kernel made it for this process.
        child => Ok((child as pid_t, unsafe { OwnedFd::from_raw_fd(descriptor) })),
    }
}

/// In the child: nothing but system calls.
fn make_calls(progress: &AtomicUsize) -> ! {
    const NOTHING: [u64; 4] = [0; 4];
    for (at, (_, number, [a, b, c, d, e])) in CALLS.iter().enumerate() {
        progress.store(at + 1, Ordering::Release);
        // SAFETY: no argument is a valid pointer or descriptor, or leads to one.
        unsafe { libc::syscall(*number, *a, *b, *c, *d, *e) };
        if at == QUIET {
            // SAFETY: prlimit(2) with a limit of nothing: no core of a large program is written.
            unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_CORE, &NOTHING, 0_usize) };
            // SAFETY: rt_sigaction(2) with the kernel's struct, all zero: no handler of the
            // program's runs in the child.
            unsafe {
                libc::syscall(
                    libc::SYS_rt_sigaction,
                    libc::SIGSYS,
                    &NOTHING,
                    0_usize,
                    8_usize,
                )
            };
        }
    }
    progress.store(CALLS.len() + 1, Ordering::Release);
    // SAFETY: exit_group(2) ends the child, without any handler.
    unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    loop {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_of_a_thread() {
        let check = |status: &str, expected| assert_eq!(parse(status), expected, "{status}");
        check("Name:\tweb\nSeccomp:\t0\nSeccomp_filters:\t0\n", None);
        check("Seccomp:\t2\nSeccomp_filters:\t3\n", Some(3));
        check("Seccomp:\t2\n", Some(1));
        check("Name:\tweb\n", None);
    }

    #[test]
    fn without_a_filter_every_call_passes() {
        assert_eq!(probe_in_child().unwrap(), None);
    }
}
