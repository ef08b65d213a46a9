//! Checks whether a process is a Node that opens its inspector on SIGUSR1. The signal would end a process without a
//! handler.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use memprof_ptrace::executable::loader_name;
use memprof_ptrace::mapped_file::open_mapped_file;
use memprof_ptrace::maps::mappings;
use memprof_ptrace::process::{ProcStatus, ProcessState};
use memprof_ptrace::{Refusal, proc_denied_refusal, read_proc_text};
use nix::errno::Errno;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol, ReadCache};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::error::{AttachError, InspectorError};
use crate::maps_text::read_maps_text;
use crate::patched_functions::file_budget::FileBudget;

/// `node::Start(int, char**)` of `node.h`.
const NODE_START_SYMBOL: &[u8] = b"_ZN4node5StartEiPPc";
/// Prefix of the file name if Node is a shared library, as distributions build it.
const LIBRARY_PREFIX: &[u8] = b"libnode";
/// Upper bound of the size of Node's file, in bytes.
const MAX_FILE_SIZE: u64 = 1 << 30;

/// Opens a process as a pidfd. Fails unless it is a Node that handles SIGUSR1, and neither a zombie nor stopped.
pub(super) fn open_node_process(pid: u32) -> Result<OwnedFd, AttachError> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let number = number.ok_or(Refusal::NoSuchProcess)?;
    require_process(pid, &ProcStatus::read_thread(pid)?)?;
    let process = pidfd_open(number, PidfdFlags::empty());
    let process = process.map_err(|_| Refusal::NoSuchProcess)?;
    // Once the process is open, a reuse of its pid is harmless: the signal goes to the opened process, or fails.
    require_node_program(pid)?;
    let status = ProcStatus::read_thread(pid)?;
    require_process(pid, &status)?;
    match status.caught & 1 << (Signal::USR1.as_raw() - 1) {
        0 => Err(InspectorError::NoHandler.into()),
        _ => Ok(process),
    }
}

/// Builds the error for a file of the process in /proc that could not be read. The error is `Ended` if the process is
/// gone, and a refusal if this user may not read the file.
pub(super) fn proc_error(pid: u32, file: &str, error: io::Error) -> AttachError {
    match Errno::from_raw(error.raw_os_error().unwrap_or_default()) {
        Errno::ENOENT | Errno::ESRCH => Refusal::Ended.into(),
        errno @ (Errno::EACCES | Errno::EPERM) => proc_denied_refusal(pid, file, errno).into(),
        _ => AttachError::io_error(format!("/proc/{pid}/{file}"))(error),
    }
}

/// Returns the kernel function in which the main thread waits, if a signal may make that call fail. `None` if no call
/// would fail: libuv repeats waits for events (epoll), and glibc those for locks (futex). Also `None` if the thread's
/// files in /proc cannot be read.
pub(super) fn call_that_signal_would_disturb(pid: u32) -> Option<String> {
    let read = |file: &str| read_proc_text(format!("/proc/{pid}/task/{pid}/{file}"));
    function_that_signal_would_disturb(&read("status").ok()?, &read("wchan").ok()?)
}

/// Returns the kernel function in which the main thread waits, if a signal may make that call fail. `status` and
/// `function` are the contents of the thread's files status and wchan (proc(5)). `None` if no call would fail;
/// `unknown` if wchan is hidden.
fn function_that_signal_would_disturb(status: &str, function: &str) -> Option<String> {
    let is_running = status.lines().any(|line| line.starts_with("State:\tR"));
    let is_safe = function.contains("epoll")
        || function.starts_with("ep_poll")
        || function.starts_with("futex");
    match function {
        _ if is_running || is_safe => None,
        "" | "0" => Some("unknown".to_owned()),
        function => Some(function.to_owned()),
    }
}

/// Fails unless `pid` is the pid of a process, not of another thread, and the process is neither a zombie nor stopped.
/// `status` is the status of that pid.
fn require_process(pid: u32, status: &ProcStatus) -> Result<(), Refusal> {
    if status.thread_group != pid {
        let process = status.thread_group;
        return Err(Refusal::Thread { process });
    }
    match status.state {
        ProcessState::Zombie => Err(Refusal::Zombie),
        ProcessState::Stopped => Err(Refusal::Stopped { pid }),
        ProcessState::Alive | ProcessState::Traced => Ok(()),
    }
}

/// Fails unless the process executes a Node for glibc: the program or a mapped `libnode` exports `node::Start`, and the
/// program's loader is not musl's.
fn require_node_program(pid: u32) -> Result<(), AttachError> {
    let file = File::open(format!("/proc/{pid}/exe"));
    let file = file.map_err(|error| proc_error(pid, "exe", error))?;
    let maps = read_maps_text(pid);
    let maps = maps.map_err(|error| proc_error(pid, "maps", error))?;
    let is_node = exports_node_start(&file)
        || mappings(&maps)
            .filter(|mapping| {
                mapping.offset == 0 && mapping.file_name().starts_with(LIBRARY_PREFIX)
            })
            .filter_map(|mapping| open_mapped_file(pid, &mapping))
            .any(|library| exports_node_start(&library));
    if !is_node {
        return Err(InspectorError::NotNode.into());
    }
    if loader_name(b"node", &ReadCache::new(&file))?.starts_with(b"ld-musl-") {
        return Err(Refusal::Musl.into());
    }
    Ok(())
}

/// Returns whether a file is ELF and exports [`NODE_START_SYMBOL`]. False if it is too large or cannot be read.
fn exports_node_start(file: &File) -> bool {
    if !file
        .metadata()
        .is_ok_and(|file| file.is_file() && file.len() < MAX_FILE_SIZE)
    {
        return false;
    }
    let cache = ReadCache::new(file);
    // The symbol tables are read as a whole.
    if !FileBudget::new().charge(&cache).unwrap_or(false) {
        return false;
    }
    let Ok(elf) = ElfFile64::<Endianness, _>::parse(&cache) else {
        return false;
    };
    let mut symbols = elf.dynamic_symbols();
    symbols.any(|symbol| symbol.is_definition() && symbol.name_bytes() == Ok(NODE_START_SYMBOL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_a_signal_would_disturb_are_recognized() {
        let check = |state: &str, function: &str, expected: Option<&str>| {
            let status = format!("Name:\tnode\nState:\t{state}\nTgid:\t7\n");
            assert_eq!(
                function_that_signal_would_disturb(&status, function).as_deref(),
                expected,
                "{function}"
            );
        };
        check("S (sleeping)", "do_epoll_wait", None);
        check("S (sleeping)", "ep_poll", None);
        check("S (sleeping)", "futex_wait_queue", None);
        check("S (sleeping)", "anon_pipe_read", Some("anon_pipe_read"));
        check("S (sleeping)", "0", Some("unknown"));
        check("R (running)", "0", None);
    }

    /// Returns the reason why a process is no Node to attach to.
    fn refusal(pid: u32) -> String {
        open_node_process(pid).unwrap_err().to_string()
    }

    #[test]
    fn other_programs_get_no_signal() {
        let words = refusal(std::process::id());
        assert!(words.starts_with("is no Node"), "{words}");
        assert_eq!(refusal(0), "no such process");
        assert_eq!(refusal(u32::MAX), "no such process");
    }
}
