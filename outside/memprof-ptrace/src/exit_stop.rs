//! A program that is started to be looked at right before it ends: its memory is still there then.
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

/// How long the other threads of a program that ends take, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// How far a program got.
#[derive(Debug)]
pub enum RunOutcome {
    /// It is about to end.
    AtExit(ExitingProgram),
    /// It has ended: by a signal, or after its first thread.
    Exited(ExitStatus),
}

/// A program that has called exit(3), and only its first thread is left. It ends when this is dropped.
#[derive(Debug)]
pub struct ExitingProgram {
    stopped: StoppedThread,
    pid: pid_t,
}

/// Starts a program, and returns when it is about to end. Signals reach it; that it is stopped has no effect. Where
/// this program is killed, it goes on. `on_start` gets its pid as soon as it can be sent signals.
///
/// # Errors
/// It cannot be started, or not be traced.
pub fn run(command: &mut Command, on_start: impl FnOnce(u32)) -> io::Result<RunOutcome> {
    // SAFETY: ptrace(2) is all that the child does between fork(2) and execve(2), where that is safe.
    unsafe { command.pre_exec(|| request(libc::PTRACE_TRACEME, 0, 0, 0)) };
    let pid = command.spawn()?.id().cast_signed();
    on_start(pid.cast_unsigned());
    // It stops as it executes the program.
    wait(pid)?;
    let options = libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_TRACEEXEC;
    request(libc::PTRACE_SETOPTIONS, pid, 0, options as usize)?;
    let mut signal = 0;
    loop {
        match request(libc::PTRACE_CONT, pid, 0, signal as usize) {
            // It was killed, which the next status says.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            other => other?,
        }
        let status = wait(pid)?;
        if !libc::WIFSTOPPED(status) {
            return Ok(RunOutcome::Exited(ExitStatus::from_raw(status)));
        }
        signal = match status >> 16 {
            libc::PTRACE_EVENT_EXIT if exits(pid)? => {
                let stopped = StoppedThread::from_event(pid);
                return Ok(RunOutcome::AtExit(ExitingProgram { stopped, pid }));
            }
            0 => libc::WSTOPSIG(status),
            _ => 0,
        };
    }
}

/// Whether the whole process ends, and not by a signal.
fn exits(pid: pid_t) -> io::Result<bool> {
    let mut status: libc::c_ulong = 0;
    let place = &raw mut status;
    request(libc::PTRACE_GETEVENTMSG, pid, 0, place as usize)?;
    if !libc::WIFEXITED(status as c_int) {
        return Ok(false);
    }
    let begun = Instant::now();
    while fs::read_dir(format!("/proc/{pid}/task"))?.count() > 1 {
        if begun.elapsed() > PATIENCE {
            return Ok(false);
        }
        thread::sleep(LOOK_AGAIN);
    }
    Ok(true)
}

fn wait(pid: pid_t) -> io::Result<c_int> {
    loop {
        let mut status = 0;
        // SAFETY: waitpid(2) fills the status.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
        match io::Error::last_os_error() {
            _ if waited == pid => return Ok(status),
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
}

impl ExitingProgram {
    /// In this program's pid namespace.
    pub fn pid(&self) -> u32 {
        self.pid.cast_unsigned()
    }

    /// Its first thread.
    pub fn thread(&self) -> &StoppedThread {
        &self.stopped
    }

    /// Has it end.
    ///
    /// # Errors
    /// Somebody else waits for it.
    pub fn end(self) -> io::Result<ExitStatus> {
        drop(self.stopped);
        wait(self.pid).map(ExitStatus::from_raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(script: &str) -> RunOutcome {
        run(Command::new("sh").args(["-c", script]), |_| ()).unwrap()
    }

    #[test]
    fn a_program_that_exits_stands_still_before() {
        // By way of another program and a signal that does not end it.
        let script = "trap : USR1; kill -USR1 $$; exec sh -c 'exit 7'";
        let RunOutcome::AtExit(ending) = of(script) else {
            panic!("it has ended");
        };
        let maps = fs::read_to_string(format!("/proc/{}/maps", ending.pid())).unwrap();
        assert!(maps.contains("[stack]"), "{maps}");
        assert!(ending.thread().registers().unwrap().rsp > 0x1000);
        assert_eq!(ending.end().unwrap().code(), Some(7));
    }

    #[test]
    fn one_that_a_signal_ends_has_ended() {
        for (signal, number) in [("TERM", libc::SIGTERM), ("KILL", libc::SIGKILL)] {
            let RunOutcome::Exited(status) = of(&format!("kill -{signal} $$; sleep 9")) else {
                panic!("{signal}");
            };
            assert_eq!(status.signal(), Some(number));
        }
    }

    #[test]
    fn what_cannot_be_started_is_said() {
        let error = run(&mut Command::new("/no/such/program"), |_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
