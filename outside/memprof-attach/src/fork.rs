//! A program of one thread that may fork in a handler of a signal. As long as a process never had a second thread,
//! fork(3) of glibc takes no locks of malloc, so that a handler may fork though it interrupted malloc; once it had one,
//! such a handler waits for ever. Nothing undoes that, and whether a handler forks is not to be seen from outside.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use memprof_ptrace::library_image::LibraryImage;
use memprof_ptrace::maps::mappings;
use memprof_ptrace::process::ProcStatus;
use nix::sys::signal::Signal;

use crate::target::Target;

/// Faults and aborts: a handler of these runs in a program that ends.
const FAULTS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGABRT)
    | bit(libc::SIGSYS);
/// libc's own handlers.
const LIBC: u64 = bit(32) | bit(33);

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The signals whose handlers may fork, by name; none where it had more threads already, or the program itself does
/// not call fork(3).
pub(crate) fn handled(target: &Target, status: &ProcStatus) -> Vec<String> {
    let handled = of_status(status);
    if handled.is_empty() || !forks(target) {
        return Vec::new();
    }
    let name = |number: i32| match Signal::try_from(number) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) => format!("signal {number}"),
    };
    handled.into_iter().map(name).collect()
}

fn of_status(status: &ProcStatus) -> Vec<i32> {
    let caught = match status.threads {
        1 => status.caught & !FAULTS & !LIBC,
        _ => 0,
    };
    (1..=64)
        .filter(|signal| caught & bit(*signal) != 0)
        .collect()
}

/// Whether the program calls fork(3). Its libraries are not looked at: most have no handlers.
fn forks(target: &Target) -> bool {
    let Ok(path) = fs::read_link(format!("/proc/{}/exe", target.pid)) else {
        return false;
    };
    let path = path.as_os_str().as_bytes();
    let start = mappings(&target.maps).find(|mapping| mapping.offset == 0 && mapping.path == path);
    let image = start.and_then(|start| LibraryImage::read(&target.memory, start.range.start).ok());
    image.is_some_and(|image| image.imports("fork"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_of_one_thread_count_and_those_of_faults_do_not() {
        let own = std::fs::read("/proc/self/status").unwrap();
        let known = ProcStatus::parse(&own).unwrap();
        let check = |threads, caught, expected: &[i32]| {
            let status = ProcStatus {
                threads,
                caught,
                ..known.clone()
            };
            assert_eq!(of_status(&status), expected, "{threads} {caught:x}");
        };
        check(1, bit(libc::SIGALRM) | bit(libc::SIGSEGV), &[libc::SIGALRM]);
        check(1, bit(33) | bit(64), &[64]);
        check(1, 0, &[]);
        check(2, bit(libc::SIGALRM), &[]);
    }
}
