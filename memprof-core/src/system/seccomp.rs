//! Tests whether the process survives profiling under its seccomp filter.
//!
//! A filter may kill the process at a system call that it does not allow, and its rules cannot be read without
//! privileges. So a forked child, which has the same filter, makes the calls first, with arguments that have no effect.
//! If the filter kills the child, the host survives.
#![expect(unsafe_code, reason = "system calls of the child, and a shared page")]

mod forked_child;

use std::io;
use std::iter;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

use libc::c_long;
use memprof_own::for_each_status_line;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};
use forked_child::{ForkedChild, close_descriptors};

/// System calls for messages and dumps that not every program with threads and files makes, with arguments. The
/// arguments are invalid, so each call only fails. The first two calls are also needed for the child itself.
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

/// Maximum times to wait for a child, one after the other. The first is longer than the fork of the largest program
/// takes; both processes may have been frozen for all of it, so a short one follows.
const PROBE_TIMEOUTS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(1)];

/// Index of the call after which the child disables core dumps and the SIGSYS handler.
const SILENCE_AFTER: usize = 1;

/// Result of one probe, for a process and its number of filters, with a link to the previous result. Never freed: there
/// are few, and another thread may be reading one at any time.
#[derive(Debug)]
struct ProbedFilters {
    process: u32,
    filters: u64,
    outcome: Result<()>,
    previous: Option<&'static Self>,
}

/// Most recent probe, or null. Not protected by a lock, because in a forked child the thread that holds it would not
/// exist.
static LAST_PROBE: AtomicPtr<ProbedFilters> = AtomicPtr::new(ptr::null_mut());

/// Most recent probe, which links to the earlier ones. `None` before the first probe.
fn last_probe() -> Option<&'static ProbedFilters> {
    // SAFETY: `require_seccomp_allows_calls` stores only leaked boxes, so a pointer other than null stays valid.
    unsafe { LAST_PROBE.load(Ordering::Acquire).as_ref() }
}

/// Fails if a seccomp filter of the calling thread would kill or hold the process at a system call that the profiler
/// makes. Forks a child once for each number of filters. Later calls use the stored result. Succeeds without a filter,
/// and if the number of filters cannot be read.
///
/// # Errors
/// `Io`: the filter would kill or hold the process at a system call, which the message names; or the test failed.
pub fn require_seccomp_allows_calls() -> Result<()> {
    let Some(filters) = filter_count() else {
        return Ok(());
    };
    let process = process::id();
    let mut all = iter::successors(last_probe(), |known| known.previous);
    if let Some(known) = all.find(|known| (known.process, known.filters) == (process, filters)) {
        return known.outcome.clone();
    }
    let outcome = probe_in_child(&PROBE_TIMEOUTS)
        .map_err(|error| Error::io("try out the seccomp filter", &error))?;
    let outcome = outcome.map_or(Ok(()), |call| Err(blocked_call_error(call)));
    // If two threads do this at the same time, one result may be lost. That filter is then tested again.
    let found = Box::leak(Box::new(ProbedFilters {
        process,
        filters,
        outcome: outcome.clone(),
        previous: last_probe(),
    }));
    LAST_PROBE.store(found, Ordering::Release);
    outcome
}

/// `Io` error that names the system call at which the filter would kill or hold the process.
fn blocked_call_error(call: &str) -> Error {
    let message = format!(
        "the seccomp filter of this process would end or hold it at {call}, which memprof needs"
    );
    Error::new(ErrorKind::Io, message).with_remedy(format!(
        "allow {call} in the filter, or let it answer with an error (systemd: \
         SystemCallErrorNumber=EPERM)"
    ))
}

/// Number of the calling thread's seccomp filters. `None` if there are none, or if /proc is missing.
pub(crate) fn filter_count() -> Option<u64> {
    count_filters(read_status_fields(["Seccomp", "Seccomp_filters"])?)
}

/// Reads fields with decimal numbers from the calling thread's status. An element is `None` if its field is missing;
/// the whole result is `None` if /proc cannot be read. Makes no system calls but openat(2), read(2) and close(2),
/// because the filter may kill the process at others, such as those of `std::fs::read`.
fn read_status_fields<const N: usize>(names: [&str; N]) -> Option<[Option<u64>; N]> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open("/proc/thread-self/status", flags, Mode::empty()).ok()?;
    parse_status_fields(names, |piece| rustix::io::read(&file, piece).ok())
}

/// Parses fields with decimal numbers from the text of /proc/PID/status. `read` fills a buffer with the next piece of
/// the text, and returns its length. An element is `None` if its field is missing; the whole result is `None` if a read
/// fails.
fn parse_status_fields<const N: usize>(
    names: [&str; N],
    read: impl FnMut(&mut [u8]) -> Option<usize>,
) -> Option<[Option<u64>; N]> {
    let mut numbers = [None; N];
    for_each_status_line(read, |line| {
        let Some((name, value)) = line.split_once(':') else {
            return;
        };
        if let Some(index) = names.iter().position(|each| *each == name) {
            numbers[index] = value.trim().parse().ok();
        }
    })?;
    Some(numbers)
}

/// Number of filters, from the fields `Seccomp` and `Seccomp_filters`. `None` if no filter is installed, or if the
/// kernel does not report it. 1 if the kernel reports filters, but not their number.
fn count_filters([mode, filters]: [Option<u64>; 2]) -> Option<u64> {
    // `SECCOMP_MODE_FILTER` of linux/seccomp.h.
    const FILTERED: u64 = 2;
    // The kernel reports the number since Linux 5.9.
    (mode? == FILTERED).then(|| filters.unwrap_or(1))
}

/// Number above all descriptors of the calling thread: the slots in its table of descriptors. 0 if it cannot be read.
fn descriptor_table_size() -> c_long {
    let slots = read_status_fields(["FDSize"]).and_then(|[slots]| slots);
    slots.unwrap_or(0) as c_long
}

/// Forks a child that makes all [`CALLS`]. Returns the name of the call at which it was killed, or is held for all of
/// `timeouts`. `None` if it survived.
///
/// # Errors
/// The child could not be created, did nothing, or did not end in that time.
fn probe_in_child(timeouts: &[Duration]) -> io::Result<Option<&'static str>> {
    let shared = ProbePage::map()?;
    let descriptors = descriptor_table_size();
    let child = ForkedChild::fork(|| {
        close_descriptors(descriptors);
        make_probe_calls(shared.progress());
    })?;
    let mut has_ended = child.wait_for_exit(timeouts)?;
    let started = shared.progress().load(Ordering::Acquire);
    // The filter leaves a call to a supervisor that does not answer (`SECCOMP_RET_USER_NOTIF`).
    let is_held = !has_ended && (1..=CALLS.len()).contains(&started);
    if !has_ended && !is_held {
        return Err(Errno::TIMEDOUT.into());
    }
    // wait4(2) is the child's first call. Where the filter does not allow it, the children stay zombies in the process
    // table.
    let may_wait = started > 1;
    if is_held {
        has_ended = kill_through_another_child(&child, descriptors, timeouts, may_wait);
    }
    if has_ended && may_wait {
        child.reap();
    }
    match started.checked_sub(1) {
        // Past the last call, all have returned.
        Some(last) => Ok(CALLS.get(last).map(|(name, ..)| *name)),
        None => Err(io::Error::other("the forked process did nothing")),
    }
}

/// Kills the process `held`, which would keep a copy of the program's memory. Another child does so, because the filter
/// may end the caller of kill(2), or hold it. This child closes all descriptors below `descriptors`. It is reaped only
/// if the filter allows wait4(2), as `may_wait` says. Returns whether the held process has ended.
fn kill_through_another_child(
    held: &ForkedChild,
    descriptors: c_long,
    timeouts: &[Duration],
    may_wait: bool,
) -> bool {
    let kill = || {
        close_descriptors(descriptors);
        // SAFETY: kill(2) takes numbers; the pid is that of the held process, which is not reaped before.
        unsafe { libc::syscall(libc::SYS_kill, held.pid(), libc::SIGKILL) };
    };
    let Ok(killer) = ForkedChild::fork(kill) else {
        return false;
    };
    if killer.wait_for_exit(timeouts).is_ok_and(|ended| ended) && may_wait {
        killer.reap();
    }
    let last = timeouts.len().saturating_sub(1);
    held.wait_for_exit(&timeouts[last..])
        .is_ok_and(|ended| ended)
}

/// A page that the forked child shares with its parent.
struct ProbePage(*mut AtomicUsize);

impl ProbePage {
    /// Maps a zeroed page that forked children share.
    fn map() -> io::Result<Self> {
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: mmap(2) of new anonymous memory: zeroed, and at least one page long.
        let page = unsafe { libc::mmap(ptr::null_mut(), size_of::<usize>(), access, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(page.cast()))
    }

    /// Number of calls that the child has begun; the number of [`CALLS`] plus one after all have returned.
    fn progress(&self) -> &AtomicUsize {
        // SAFETY: the page stays mapped until `self` is dropped and is page-aligned; zeroed bytes are a valid
        // `AtomicUsize`.
        unsafe { &*self.0 }
    }
}

impl Drop for ProbePage {
    fn drop(&mut self) {
        // SAFETY: the mapping is the one that `map` created, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.0.cast(), size_of::<usize>()) };
    }
}

/// Makes all [`CALLS`] in the child. Stores the number of calls begun in `progress`, and one more after the last. After
/// the first two calls, disables core dumps and the program's handler of SIGSYS.
fn make_probe_calls(progress: &AtomicUsize) {
    const NOTHING: [u64; 4] = [0; 4];
    for (index, (_, number, [a, b, c, d, e])) in CALLS.iter().enumerate() {
        progress.store(index + 1, Ordering::Release);
        // SAFETY: no argument is a valid pointer or descriptor, so the kernel only reports errors.
        unsafe { libc::syscall(*number, *a, *b, *c, *d, *e) };
        if index == SILENCE_AFTER {
            // SAFETY: prlimit(2) reads a limit of zeros from `NOTHING`. Without it, a large program's child could write
            // a large core dump.
            unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_CORE, &NOTHING, 0_usize) };
            // SAFETY: rt_sigaction(2) reads the kernel's struct from `NOTHING`. All zeros are SIG_DFL, so that no
            // handler of the program runs in the child. The last argument is the size of a signal mask.
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
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use libc::c_int;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn filter_count_of_proc_status() {
        let check = |status: &str, expected| {
            let mut remaining = status.as_bytes();
            let names = ["Seccomp", "Seccomp_filters"];
            let fields = parse_status_fields(names, |piece| remaining.read(piece).ok());
            assert_eq!(count_filters(fields.unwrap()), expected, "{status}");
        };
        check("Name:\tweb\nSeccomp:\t0\nSeccomp_filters:\t0\n", None);
        check("Seccomp:\t2\nSeccomp_filters:\t3\n", Some(3));
        check("Seccomp:\t2\n", Some(1));
        check("Name:\tweb\n", None);
        // The kernel's limit (NGROUPS_MAX).
        let groups = "4294967294 ".repeat(65_536);
        let filtered = "Seccomp:\t2\nSeccomp_filters:\t3\n";
        check(&format!("Groups:\t{groups}\n{filtered}"), Some(3));
    }

    #[test]
    fn probe_without_filter_passes_every_call() {
        assert_eq!(probe_in_child(&PROBE_TIMEOUTS).unwrap(), None);
    }

    /// Calls `run` on a thread whose filter answers `number` with `action`, and passes it the descriptor of the
    /// filter's notifications, or -1. A filter stays for the life of its thread.
    fn run_filtered<T: Send>(
        number: c_long,
        action: u32,
        flags: libc::c_ulong,
        run: impl FnOnce(c_long) -> T + Send,
    ) -> T {
        let statement = |code: u32, jf, k| libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf,
            k,
        };
        let answer = libc::BPF_RET | libc::BPF_K;
        let mut rules = [
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            statement(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                1,
                number as u32,
            ),
            statement(answer, 0, action),
            statement(answer, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filtered = move || {
            let program = libc::sock_fprog {
                len: rules.len() as u16,
                filter: rules.as_mut_ptr(),
            };
            // SAFETY: prctl(2) takes numbers here.
            let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            assert_eq!(result, 0);
            let mode = libc::SECCOMP_SET_MODE_FILTER;
            // SAFETY: seccomp(2) reads `program`, whose pointer and length are those of `rules`.
            let result =
                unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
            assert!(result >= 0, "{}", io::Error::last_os_error());
            run(result)
        };
        std::thread::scope(|scope| scope.spawn(filtered).join().unwrap())
    }

    #[test]
    fn probe_ends_under_a_filter_that_refuses_exit_group() {
        let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let probed = run_filtered(libc::SYS_exit_group, refuse, 0, |_| {
            probe_in_child(&PROBE_TIMEOUTS)
        });
        assert_eq!(probed.unwrap(), None);
    }

    /// The child, under a supervisor that never answers, keeps no descriptor, and is gone afterwards.
    #[test]
    fn held_probe_keeps_nothing_of_the_program() {
        let check = |number, name| {
            let (read_end, write_end) = std::os::unix::net::UnixStream::pair().unwrap();
            let timeouts = [Duration::from_secs(2)];
            let listener_flag = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
            let notify = libc::SECCOMP_RET_USER_NOTIF;
            let (probed, children, is_closed) =
                run_filtered(number, notify, listener_flag, |listener| {
                    let probed = probe_in_child(&timeouts);
                    let children = std::fs::read_to_string("/proc/thread-self/children");
                    drop(write_end);
                    let mut polled = [PollFd::new(&read_end, PollFlags::IN)];
                    let limit = Timespec::try_from(timeouts[0]).unwrap();
                    let closed = poll(&mut polled, Some(&limit)).unwrap();
                    // SAFETY: the descriptor is the filter's, and nothing else owns it.
                    unsafe { libc::close(listener as c_int) };
                    (probed.unwrap(), children.unwrap(), closed == 1)
                });
            assert_eq!(probed, Some(name));
            assert!(is_closed, "{name}");
            children
        };
        assert_eq!(check(libc::SYS_memfd_create, "memfd_create"), "");
        assert_eq!(check(libc::SYS_fsync, "fsync"), "");
        // It cannot be reaped.
        check(libc::SYS_wait4, "wait4");
    }
}
