//! Starts a program and stops it right before it exits, while its memory is still there.
#![expect(
    unsafe_code,
    reason = "ptrace(2) in a forked child, and waitpid(2), whose arguments are bare numbers"
)]

use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use libc::{c_int, pid_t};

use crate::ptrace_request::request;
use crate::stop::StoppedThread;

/// Longest wait for the other threads of an exiting program to end, on a busy machine.
const THREADS_EXIT_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// Result of running a program under [`run`].
#[derive(Debug)]
pub enum RunOutcome {
    /// The program is stopped in exit.
    AtExit(ExitingProgram),
    /// The program has ended: by a signal, or its main thread ended before others.
    Exited(ExitStatus),
}

/// A program that has called exit(3), stopped when only its main thread was left. It ends when this value is
/// dropped.
#[derive(Debug)]
pub struct ExitingProgram {
    stopped: StoppedThread,
    pid: pid_t,
}

/// Starts a program, and blocks until it is about to exit. Signals are delivered to it; a stop signal has no effect.
/// If this process is killed, the program continues. `on_start` gets the program's pid as soon as signals can be
/// sent to it.
///
/// # Errors
/// The program cannot be started or traced.
pub fn run(command: &mut Command, on_start: impl FnOnce(u32)) -> io::Result<RunOutcome> {
    // SAFETY: the closure only calls ptrace(2), which is async-signal-safe, as code between fork(2) and execve(2)
    // must be.
    unsafe { command.pre_exec(|| request(libc::PTRACE_TRACEME, 0, 0, 0)) };
    let pid = command.spawn()?.id().cast_signed();
    on_start(pid.cast_unsigned());
    // With PTRACE_TRACEME it stops at execve(2).
    wait_for_status(pid)?;
    let options = libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_TRACEEXEC;
    request(libc::PTRACE_SETOPTIONS, pid, 0, options as usize)?;
    let mut signal = 0;
    loop {
        match request(libc::PTRACE_CONT, pid, 0, signal as usize) {
            // It was killed; the next wait status says so.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            other => other?,
        }
        let status = wait_for_status(pid)?;
        if !libc::WIFSTOPPED(status) {
            return Ok(RunOutcome::Exited(ExitStatus::from_raw(status)));
        }
        signal = match status >> 16 {
            libc::PTRACE_EVENT_EXIT if is_whole_exit(pid)? => {
                let stopped = StoppedThread::from_event(pid);
                return Ok(RunOutcome::AtExit(ExitingProgram { stopped, pid }));
            }
            0 => libc::WSTOPSIG(status),
            _ => 0,
        };
    }
}

/// Returns whether the whole process exits, and not by a signal. If so, waits for the other threads to end; false
/// also if they do not end in time.
fn is_whole_exit(pid: pid_t) -> io::Result<bool> {
    let mut status: libc::c_ulong = 0;
    let address = &raw mut status;
    request(libc::PTRACE_GETEVENTMSG, pid, 0, address as usize)?;
    if !libc::WIFEXITED(status as c_int) {
        return Ok(false);
    }
    let start = Instant::now();
    while fs::read_dir(format!("/proc/{pid}/task"))?.count() > 1 {
        if start.elapsed() > THREADS_EXIT_TIMEOUT {
            return Ok(false);
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(true)
}

/// Waits for the next stop or the end of a child; returns its wait status (waitpid(2)). Signals do not end the
/// wait.
fn wait_for_status(pid: pid_t) -> io::Result<c_int> {
    loop {
        let mut status = 0;
        // SAFETY: waitpid(2) writes an integer to `status`.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
        match io::Error::last_os_error() {
            _ if waited == pid => return Ok(status),
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
}

impl ExitingProgram {
    /// Pid in this process's pid namespace.
    pub fn pid(&self) -> u32 {
        self.pid.cast_unsigned()
    }

    /// Main thread of the program.
    pub fn thread(&self) -> &StoppedThread {
        &self.stopped
    }

    /// Lets the program end, and waits for its exit status.
    ///
    /// # Errors
    /// Another thread of this process has waited for the program.
    pub fn end(self) -> io::Result<ExitStatus> {
        drop(self.stopped);
        wait_for_status(self.pid).map(ExitStatus::from_raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_script(script: &str) -> RunOutcome {
        run(Command::new("sh").args(["-c", script]), |_| ()).unwrap()
    }

    #[test]
    fn exiting_program_is_stopped_before_its_end() {
        // Executes another program and handles a signal before it exits.
        let script = "trap : USR1; kill -USR1 $$; exec sh -c 'exit 7'";
        let RunOutcome::AtExit(ending) = run_script(script) else {
            panic!("it has ended");
        };
        let maps = fs::read_to_string(format!("/proc/{}/maps", ending.pid())).unwrap();
        assert!(maps.contains("[stack]"), "{maps}");
        assert!(ending.thread().registers().unwrap().rsp > 0x1000);
        assert_eq!(ending.end().unwrap().code(), Some(7));
    }

    #[test]
    fn program_killed_by_signal_has_exited() {
        for (signal, number) in [("TERM", libc::SIGTERM), ("KILL", libc::SIGKILL)] {
            let RunOutcome::Exited(status) = run_script(&format!("kill -{signal} $$; sleep 9"))
            else {
                panic!("{signal}");
            };
            assert_eq!(status.signal(), Some(number));
        }
    }

    #[test]
    fn missing_program_is_an_error() {
        let error = run(&mut Command::new("/no/such/program"), |_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
