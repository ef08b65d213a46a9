//! Finds signal handlers of a single-threaded program that may fork. While a process has never had a second thread,
//! fork(3) of glibc takes no locks of malloc, so a handler may fork even if it interrupted malloc. Once it has had
//! one, such a handler deadlocks. This cannot be undone, and whether a handler forks is not visible from outside.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use memprof_ptrace::library_image::LibraryImage;
use memprof_ptrace::maps::mappings;
use memprof_ptrace::process::ProcStatus;
use nix::sys::signal::Signal;

use crate::target::Target;

/// Signals of faults and aborts: their handlers run in a program that ends.
const FAULT_SIGNALS: u64 = signal_bit(libc::SIGSEGV)
    | signal_bit(libc::SIGBUS)
    | signal_bit(libc::SIGILL)
    | signal_bit(libc::SIGFPE)
    | signal_bit(libc::SIGTRAP)
    | signal_bit(libc::SIGABRT)
    | signal_bit(libc::SIGSYS);
/// Signals that libc handles.
const LIBC_SIGNALS: u64 = signal_bit(32) | signal_bit(33);

/// Returns the signal mask with the bit of one signal, whose number begins at 1.
const fn signal_bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Returns the names of the signals whose handlers may fork, which can deadlock once the process gets a second thread.
/// Empty if the process has several threads already, has no such handlers, or if the program itself does not import
/// fork(3).
pub(crate) fn signals_that_may_fork(target: &Target, status: &ProcStatus) -> Vec<String> {
    let handled = handled_signals(status);
    if handled.is_empty() || !program_imports_fork(target) {
        return Vec::new();
    }
    let name = |number: i32| match Signal::try_from(number) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) => format!("signal {number}"),
    };
    handled.into_iter().map(name).collect()
}

/// Returns the numbers of the signals with a handler of the program, without those of faults and of libc. Empty if the
/// process has several threads already.
fn handled_signals(status: &ProcStatus) -> Vec<i32> {
    let caught = match status.threads {
        1 => status.caught & !FAULT_SIGNALS & !LIBC_SIGNALS,
        _ => 0,
    };
    (1..=64)
        .filter(|signal| caught & signal_bit(*signal) != 0)
        .collect()
}

/// Returns whether the program imports fork(3); false if its symbols cannot be read. Its libraries are not checked:
/// most install no signal handlers.
fn program_imports_fork(target: &Target) -> bool {
    let Ok(path) = fs::read_link(format!("/proc/{}/exe", target.pid)) else {
        return false;
    };
    let path = path.as_os_str().as_bytes();
    let start = mappings(&target.maps).find(|mapping| mapping.offset == 0 && mapping.path == path);
    let image = start.and_then(|start| LibraryImage::read(&target.memory, start.range.start).ok());
    image.is_some_and(|image| image.imports_symbol("fork"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_signals_and_threaded_processes_are_excluded() {
        let own = std::fs::read("/proc/self/status").unwrap();
        let known = ProcStatus::parse(&own).unwrap();
        let check = |threads, caught, expected: &[i32]| {
            let status = ProcStatus {
                threads,
                caught,
                ..known.clone()
            };
            assert_eq!(handled_signals(&status), expected, "{threads} {caught:x}");
        };
        check(
            1,
            signal_bit(libc::SIGALRM) | signal_bit(libc::SIGSEGV),
            &[libc::SIGALRM],
        );
        check(1, signal_bit(33) | signal_bit(64), &[64]);
        check(1, 0, &[]);
        check(2, signal_bit(libc::SIGALRM), &[]);
    }
}
