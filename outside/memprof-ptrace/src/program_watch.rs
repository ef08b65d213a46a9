//! Watches whether a process still executes its program while memprof works on it. If the process ends or calls
//! execve(2), any step may fail, with an error that hides this cause.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::auxiliary::ProgramIdentity;
use crate::pidfd::PidFd;
use crate::refusal::Refusal;

/// Timeout for the end of a process to become visible once a step has failed: its threads end one after another.
const END_TIMEOUT: Duration = Duration::from_millis(250);
/// Time in which an execve(2) ends the other threads.
const EXECUTE_DELAY: Duration = Duration::from_millis(20);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The program that a process executed when this value was created.
#[derive(Debug)]
pub struct ProgramWatch {
    pid: u32,
    /// `None` before Linux 5.3, and if the process had ended.
    process: Option<PidFd>,
    /// The open /proc/PID/maps, which shows the memory of that program only, and nothing once it is gone. `None` if
    /// this user may not read it.
    maps: Option<File>,
    /// Shows an execve(2) even if another process keeps the old memory alive (clone(2), `CLONE_VM`).
    program: ProgramIdentity,
}

/// The reason why a process no longer executes a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramEnd {
    /// The process has ended, or all its threads are about to.
    Exited,
    /// It executes another program.
    Executed,
}

impl ProgramWatch {
    /// Opens the process `pid` and its memory map, which show the end of its program. Without the right to read the
    /// memory map, only the end of the process is noticed, no execve(2). Waits up to 20 ms if the process has no
    /// memory, or if its memory map cannot be read.
    pub fn open(pid: u32) -> Self {
        let process = PidFd::open(pid).ok();
        let process = process.filter(|process| !process.wait_for_end(Duration::ZERO));
        let program = ProgramIdentity::for_pid(pid);
        let open_maps = || File::open(format!("/proc/{pid}/maps")).ok();
        let has_memory = |maps: &File| !is_memory_gone(maps);
        // Kernel threads and zombies have no memory. Neither has the main thread while another thread's execve(2) ends
        // it: then the second attempt succeeds.
        let maps = open_maps().filter(has_memory).or_else(|| {
            let has_ended = process.as_ref()?.wait_for_end(EXECUTE_DELAY);
            (!has_ended).then(open_maps)?.filter(has_memory)
        });
        Self {
            pid,
            process,
            maps,
            program,
        }
    }

    /// Returns how the program ended. `None` if the process still executes it, or did not exist when this value was
    /// created.
    pub fn program_end(&self) -> Option<ProgramEnd> {
        let has_exited = || {
            let process = self.process.as_ref();
            process.is_some_and(|process| process.wait_for_end(Duration::ZERO))
        };
        if has_exited() {
            return Some(ProgramEnd::Exited);
        }
        if !self.maps.as_ref().is_some_and(is_memory_gone) && !self.program.was_replaced(self.pid) {
            return None;
        }
        // The kernel installs the new program's memory before it releases the old one's, so a process without an
        // executable has ended. A link that exists may be denied to this user.
        let has_memory = match fs::read_link(format!("/proc/{}/exe", self.pid)) {
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        };
        Some(match has_memory && !has_exited() {
            true => ProgramEnd::Executed,
            false => ProgramEnd::Exited,
        })
    }

    /// Replaces an error by the end of the program, if the program has ended. Waits up to 250 ms for that end if
    /// `may_be_exit_or_exec` says that the error may come from a process that is about to end.
    pub fn explain_error<E: From<Refusal>>(
        &self,
        error: E,
        may_be_exit_or_exec: impl Fn(&E) -> bool,
    ) -> E {
        let end = match may_be_exit_or_exec(&error) {
            true => self.wait_for_end(),
            false => self.program_end(),
        };
        end.map_or(error, |end| Refusal::from(end).into())
    }

    /// Waits up to 250 ms for the end of the program, because the threads of a process take a moment to end. Returns
    /// how it ended. `None` if it has not ended by then. Does not wait if [`Self::open`] could open neither the process
    /// nor its memory map.
    pub fn wait_for_end(&self) -> Option<ProgramEnd> {
        let is_watched = self.process.is_some() || self.maps.is_some();
        let timeout = if is_watched {
            END_TIMEOUT
        } else {
            Duration::ZERO
        };
        self.wait_for_end_until(Instant::now() + timeout)
    }

    /// Waits for the end of the program until `deadline`. Returns how it ended. `None` if it has not ended by then.
    pub fn wait_for_end_until(&self, deadline: Instant) -> Option<ProgramEnd> {
        loop {
            let end = self.program_end();
            if end.is_some() || Instant::now() > deadline {
                return end;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Returns whether the memory that an open /proc/PID/maps shows is gone: the process has ended or executed another
/// program.
fn is_memory_gone(maps: &File) -> bool {
    match maps.read_at(&mut [0], 0) {
        Ok(length) => length == 0,
        Err(error) => error.raw_os_error() == Some(Errno::ESRCH as i32),
    }
}

impl From<ProgramEnd> for Refusal {
    fn from(end: ProgramEnd) -> Self {
        match end {
            ProgramEnd::Exited => Self::Ended,
            ProgramEnd::Executed => Self::Executed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};

    use nix::sys::signal::Signal;

    use super::*;
    use crate::memory::Memory;

    fn start(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped());
        let child = command.spawn().unwrap();
        // Waits until the child executes the shell and waits for a line.
        let read = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap();
        while read("comm") != "sh\n" || !read("syscall").starts_with("0 ") {
            thread::yield_now();
        }
        child
    }

    fn await_end(watch: &ProgramWatch) -> ProgramEnd {
        loop {
            if let Some(end) = watch.wait_for_end() {
                return end;
            }
        }
    }

    #[test]
    fn end_and_execve_are_distinguished() {
        let check = |script: &str, expected: ProgramEnd| {
            let mut child = start(script);
            let watch = ProgramWatch::open(child.id());
            assert_eq!(watch.program_end(), None, "{script}");
            child.stdin.as_ref().unwrap().write_all(b"\n").unwrap();
            assert_eq!(await_end(&watch), expected, "{script}");
            child.kill().unwrap();
            assert_eq!(
                await_end(&ProgramWatch {
                    maps: None,
                    program: ProgramIdentity::default(),
                    ..watch
                }),
                ProgramEnd::Exited
            );
            child.wait().unwrap();
        };
        check("read x; exec sleep 60", ProgramEnd::Executed);
        check(
            "read x; exec sh -c 'read x; sleep 60'",
            ProgramEnd::Executed,
        );
        check("read x", ProgramEnd::Exited);
        check("read x; kill -KILL $$", ProgramEnd::Exited);
    }

    /// Makes a process that shares its memory, prints its pid, and executes another program at a line.
    const SHARER: &str = "
import ctypes, os, sys
libc = ctypes.CDLL(None)
stack = ctypes.create_string_buffer(1 << 16)
top = ctypes.c_void_p(ctypes.addressof(stack) + len(stack) & ~15)
CLONE_VM, SIGCHLD = 0x100, 17
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
print(libc.clone(pause, top, CLONE_VM | SIGCHLD, None), flush=True)
sys.stdin.readline()
os.execvp('sleep', ['sleep', '60'])";

    #[test]
    fn execve_is_noticed_while_another_process_shares_the_memory() {
        let mut command = Command::new("python3");
        command.args(["-c", SHARER]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let sharer = PidFd::open(line.trim().parse().unwrap()).unwrap();
        let memory = Memory::open(child.id()).unwrap();
        let watch = ProgramWatch::open(child.id());
        assert_eq!(watch.program_end(), None);
        assert!(!memory.was_program_replaced());
        child.stdin.as_ref().unwrap().write_all(b"\n").unwrap();
        assert_eq!(await_end(&watch), ProgramEnd::Executed);
        assert!(memory.was_program_replaced());
        sharer.send_signal(Signal::SIGKILL).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn zombie_reaped_child_and_absent_process_have_no_program() {
        let mut child = start("read x");
        let watch = ProgramWatch::open(child.id());
        child.kill().unwrap();
        assert_eq!(await_end(&watch), ProgramEnd::Exited);
        // A zombie has no program to watch: it ended before.
        assert_eq!(ProgramWatch::open(child.id()).program_end(), None);
        child.wait().unwrap();
        assert_eq!(watch.program_end(), Some(ProgramEnd::Exited));
        assert_eq!(ProgramWatch::open(u32::MAX >> 2).program_end(), None);
    }
}
