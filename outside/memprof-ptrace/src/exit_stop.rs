//! Starts a program and stops it right before it exits, while its memory is still there.
#![expect(
    unsafe_code,
    reason = "a forked child, and waitpid(2), whose arguments are bare numbers"
)]

mod start_gate;

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::mem;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::panic::resume_unwind;
use std::process::{Command, ExitStatus};
use std::thread;

use libc::{c_int, c_long, pid_t, user_regs_struct};

use self::start_gate::StartGate;
use crate::process::ProcStatus;
use crate::ptrace_request::ptrace_request;
use crate::stop::StoppedThread;
use crate::xstate::XState;

/// Result of [`run_until_exit`].
#[derive(Debug)]
pub enum RunOutcome {
    /// The program is stopped in exit.
    AtExit(ExitingProgram),
    /// The program has ended: by a signal, or all threads at once.
    Exited(ExitStatus),
}

/// A program whose last thread is stopped in exit. It ends when this value is dropped.
#[derive(Debug)]
pub struct ExitingProgram {
    stopped: StoppedThread,
    pid: pid_t,
    last: pid_t,
    killed: Vec<KilledThread>,
    /// Threads that were resumed in exit, and not waited for.
    unreaped: BTreeSet<pid_t>,
}

/// Registers of a thread that the program's exit has ended. They may hold the only pointers to some objects.
#[derive(Debug)]
pub struct KilledThread {
    /// Thread id (TID).
    pub tid: u32,
    /// General registers.
    pub registers: user_regs_struct,
    /// Vector registers.
    pub xstate: XState,
}

/// Events of a program at which it stops.
const EVENTS: c_int =
    libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACECLONE;

/// Starts a program, and blocks until its last thread is about to exit, or until a signal or the exit of all threads at
/// once has ended the program. The program gets the signals that are sent to it, but stop signals have no effect. If
/// this process is killed, the program continues. `on_start` gets the program's pid once the program is executed: from
/// then on signals reach the program.
///
/// # Errors
/// The program cannot be started or traced.
pub fn run_until_exit(command: &mut Command, on_start: impl FnOnce(u32)) -> io::Result<RunOutcome> {
    let gate = StartGate::new(command)?;
    thread::scope(|scope| {
        // `spawn` blocks until the program is executed, for which the gate must be open.
        let spawning = scope.spawn(|| {
            let spawned = command.spawn();
            // Ends `wait_for_pid` below if no child has started.
            gate.report_pid(0);
            spawned
        });
        let spawned = || match spawning.join() {
            Ok(spawned) => spawned,
            Err(panic) => resume_unwind(panic),
        };
        let Some(pid) = gate.wait_for_pid()? else {
            return Err(spawned().err().unwrap_or(io::ErrorKind::Other.into()));
        };
        // With PTRACE_TRACEME, the stop at execve(2) would be a SIGTRAP, which kills the program if this process is
        // killed meanwhile.
        let seized = ptrace_request(
            libc::PTRACE_SEIZE,
            pid,
            0,
            libc::PTRACE_O_TRACEEXEC as usize,
        );
        gate.open(seized.is_ok())?;
        let has_executed = seized.is_ok() && wait_for_exec(pid)?;
        spawned()?;
        if !has_executed {
            // A signal has killed the child before execve(2), which `spawn` takes for a success.
            return wait_for_status(pid)
                .map(|status| RunOutcome::Exited(ExitStatus::from_raw(status)));
        }
        ptrace_request(libc::PTRACE_SETOPTIONS, pid, 0, EVENTS as usize)?;
        on_start(pid.cast_unsigned());
        resume_thread(pid, 0)?;
        TracedProgram::new(pid).run_to_exit()
    })
}

/// Blocks until a traced process executes a program, and leaves the process stopped after that execve(2). Meanwhile
/// passes on signals. False if the process ends before; its exit status is then left to the thread that started it.
fn wait_for_exec(pid: pid_t) -> io::Result<bool> {
    loop {
        if !wait_until_stopped(pid)? {
            return Ok(false);
        }
        let status = wait_for_status(pid)?;
        let signal = match status >> 16 {
            libc::PTRACE_EVENT_EXEC => return Ok(true),
            0 => libc::WSTOPSIG(status),
            _ => 0,
        };
        resume_thread(pid, signal)?;
    }
}

/// Blocks until a child stops or ends, and leaves its status to the next wait. False if it has ended.
fn wait_until_stopped(pid: pid_t) -> io::Result<bool> {
    loop {
        let options = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL;
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: waitid(2) writes a siginfo_t to `info`.
        let result =
            unsafe { libc::waitid(libc::P_PID, pid.cast_unsigned(), info.as_mut_ptr(), options) };
        match io::Error::last_os_error() {
            _ if result == 0 => {
                // SAFETY: zeroes are a siginfo_t, and so is what waitid(2) wrote.
                let info = unsafe { info.assume_init() };
                return Ok([libc::CLD_STOPPED, libc::CLD_TRAPPED].contains(&info.si_code));
            }
            error if error.kind() == io::ErrorKind::Interrupted => {}
            // The thread that started the process has waited for it.
            error if error.raw_os_error() == Some(libc::ECHILD) => return Ok(false),
            error => return Err(error),
        }
    }
}

/// A program with all its threads traced.
struct TracedProgram {
    pid: pid_t,
    /// Threads that have not begun to exit.
    running: HashSet<pid_t>,
    /// Thread that is kept stopped in the program's exit.
    held: Option<pid_t>,
    /// Threads that were seen stopped, and not waited for.
    started: BTreeSet<pid_t>,
    killed: Vec<KilledThread>,
}

impl TracedProgram {
    /// Wraps a traced program whose only thread so far is its main thread, `pid`.
    fn new(pid: pid_t) -> Self {
        Self {
            pid,
            running: HashSet::from([pid]),
            held: None,
            started: BTreeSet::from([pid]),
            killed: Vec::new(),
        }
    }

    /// Resumes each thread that stops, until every thread has begun to exit. The thread that ends the program, by
    /// `exit_group(2)` or as the last one, stays stopped in its exit. Keeps the registers of threads that the program's
    /// exit ends. Returns `Exited` if the main thread's end is reported before: a signal has ended the program, or all
    /// threads have exited at once. Fails if ptrace(2) or waitpid(2) fails.
    fn run_to_exit(mut self) -> io::Result<RunOutcome> {
        loop {
            if let Some(held) = self.held.filter(|_| self.running.is_empty()) {
                return Ok(RunOutcome::AtExit(self.into_exiting(held)));
            }
            let (tid, status) = wait_for_any_status()?;
            if !libc::WIFSTOPPED(status) {
                self.running.remove(&tid);
                self.started.remove(&tid);
                // A SIGKILL ends even a thread that is held.
                self.held = self.held.filter(|held| *held != tid);
                if tid == self.pid {
                    return Ok(RunOutcome::Exited(ExitStatus::from_raw(status)));
                }
                continue;
            }
            if !self.started.contains(&tid) && !self.has_thread(tid) {
                // Another process, which clone(2) created with options of a thread.
                ptrace_request(libc::PTRACE_DETACH, tid, 0, 0)?;
                continue;
            }
            let is_new = self.started.insert(tid);
            let signal = match status >> 16 {
                libc::PTRACE_EVENT_EXIT => {
                    self.running.remove(&tid);
                    // The message is the thread's wait status: not that of an exit if a signal ends the thread.
                    let message = read_event_message(tid)?;
                    let has_exited = message.is_some_and(|end| libc::WIFEXITED(end as c_int));
                    let (call, thread) = read_exit_call_and_registers(tid);
                    // Any other thread may be ended by an execve(2), which waits for it, so it must not be held.
                    let ends_all = call == Some(libc::SYS_exit_group) || self.running.is_empty();
                    if self.held.is_none() && has_exited && ends_all {
                        self.held = Some(tid);
                        continue;
                    }
                    // A thread that ends by its own call no longer uses what its registers hold.
                    let is_killed = call != Some(libc::SYS_exit);
                    self.killed.extend(thread.filter(|_| is_killed));
                    0
                }
                libc::PTRACE_EVENT_EXEC => {
                    // The thread has the pid now, and no other thread is left.
                    self.running = HashSet::from([self.pid]);
                    self.killed.clear();
                    0
                }
                libc::PTRACE_EVENT_CLONE => {
                    let new = read_event_message(tid)?.map(|new| new as pid_t);
                    // The new thread may have started already, and ended.
                    let new =
                        new.filter(|new| !self.started.contains(new) && self.has_thread(*new));
                    self.running.extend(new);
                    0
                }
                // With this stop, a new thread starts.
                libc::PTRACE_EVENT_STOP if is_new => {
                    self.running.insert(tid);
                    0
                }
                0 => libc::WSTOPSIG(status),
                // A stop signal (`PTRACE_EVENT_STOP`): the thread continues.
                _ => 0,
            };
            resume_thread(tid, signal)?;
        }
    }

    /// Returns whether a thread belongs to the program. False if /proc no longer shows the thread.
    fn has_thread(&self, tid: pid_t) -> bool {
        let status = ProcStatus::read_thread(tid.cast_unsigned());
        status.is_ok_and(|status| status.thread_group == self.pid.cast_unsigned())
    }

    /// Converts this value to an exiting program. All threads have begun to exit, and thread `last` is stopped in its
    /// exit.
    fn into_exiting(mut self, last: pid_t) -> ExitingProgram {
        // `ExitingProgram::end` detaches `last`, and waits for the main thread after all others.
        self.started.remove(&last);
        self.started.remove(&self.pid);
        ExitingProgram {
            stopped: StoppedThread::from_event(last),
            pid: self.pid,
            last,
            killed: self.killed,
            unreaped: self.started,
        }
    }
}

/// Reads the registers of a thread that is stopped in exit, and the number of the system call that it was in (-1 for
/// none). Both are `None` if the registers cannot be read, as after a SIGKILL.
fn read_exit_call_and_registers(tid: pid_t) -> (Option<c_long>, Option<KilledThread>) {
    let stopped = StoppedThread::from_event(tid);
    let (registers, xstate) = (stopped.registers(), stopped.xstate());
    // Its drop would detach the thread.
    mem::forget(stopped);
    let thread = registers.ok().zip(xstate.ok());
    let thread = thread.map(|(registers, xstate)| KilledThread {
        tid: tid.cast_unsigned(),
        registers,
        xstate,
    });
    let call = thread.as_ref();
    (
        call.map(|thread| thread.registers.orig_rax.cast_signed()),
        thread,
    )
}

/// Resumes a stopped thread, and delivers a signal to it unless `signal` is 0. Does nothing if the thread was killed
/// (`ESRCH`): the next wait reports its end.
fn resume_thread(tid: pid_t, signal: c_int) -> io::Result<()> {
    match ptrace_request(libc::PTRACE_CONT, tid, 0, signal as usize) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

/// Returns the message of the ptrace event at which a thread is stopped: the thread's wait status at its exit, or the
/// id of the new thread at a clone(2). `None` if the thread was killed.
fn read_event_message(tid: pid_t) -> io::Result<Option<libc::c_ulong>> {
    let mut message: libc::c_ulong = 0;
    let address = &raw mut message;
    match ptrace_request(libc::PTRACE_GETEVENTMSG, tid, 0, address as usize) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        other => other.map(|()| Some(message)),
    }
}

/// Waits for the next stop or end of a child, or of a thread that this thread traces. Returns its wait status
/// (waitpid(2)).
fn wait_for_status(pid: pid_t) -> io::Result<c_int> {
    wait_pid(pid, libc::__WALL).map(|(_, status)| status)
}

/// Waits for the next stop or end of any child of this thread, or of a thread that it traces. Returns its id and wait
/// status.
fn wait_for_any_status() -> io::Result<(pid_t, c_int)> {
    wait_pid(-1, libc::__WALL | libc::__WNOTHREAD)
}

/// Waits for a child or traced thread, or for any if `pid` is -1 (waitpid(2)). Returns its id and wait status. A signal
/// does not end the wait.
fn wait_pid(pid: pid_t, options: c_int) -> io::Result<(pid_t, c_int)> {
    loop {
        let mut status = 0;
        // SAFETY: waitpid(2) writes an integer to `status`.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, options) };
        match io::Error::last_os_error() {
            _ if waited > 0 => return Ok((waited, status)),
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
}

impl ExitingProgram {
    /// Returns the pid in this process's pid namespace.
    pub fn pid(&self) -> u32 {
        self.pid.cast_unsigned()
    }

    /// Returns the id of the program's last thread. /proc shows the program's memory under this id, but not under the
    /// pid if the main thread has ended before.
    pub fn last_tid(&self) -> u32 {
        self.last.cast_unsigned()
    }

    /// Returns the program's last thread, which is stopped in exit and still has its registers.
    pub fn stopped_thread(&self) -> &StoppedThread {
        &self.stopped
    }

    /// Returns the threads that the program's exit has ended, with their last registers. Omits threads that ended by
    /// their own exit(2).
    pub fn killed_threads(&self) -> &[KilledThread] {
        &self.killed
    }

    /// Lets the program end, and waits for its exit status.
    ///
    /// # Errors
    /// Another thread of this process has waited for the program.
    pub fn end(self) -> io::Result<ExitStatus> {
        drop(self.stopped);
        // The kernel reports the program's end only after that of each traced thread. The wait fails for a thread that
        // is no longer traced.
        for tid in self.unreaped {
            let _ = wait_for_status(tid);
        }
        wait_for_status(self.pid).map(ExitStatus::from_raw)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn run_script(script: &str) -> RunOutcome {
        run_until_exit(Command::new("sh").args(["-c", script]), |_| ()).unwrap()
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
        assert!(ending.stopped_thread().registers().unwrap().rsp > 0x1000);
        assert_eq!(ending.end().unwrap().code(), Some(7));
    }

    /// Runs a program in Python, whose threads are those of the C library.
    fn run_python(script: &str) -> RunOutcome {
        run_until_exit(Command::new("python3").args(["-c", script]), |_| ()).unwrap()
    }

    #[test]
    fn last_thread_is_stopped_whichever_it_is() {
        let start = "import ctypes, os, threading, time\nlibc = ctypes.CDLL(None)\n\
            def await_first():\n  stat = f'/proc/self/task/{os.getpid()}/stat'\n\
            \x20 while open(stat).read().split()[2] != 'Z': pass\n";
        let check = |script: &str, code| {
            let RunOutcome::AtExit(exiting) = run_python(&format!("{start}{script}")) else {
                panic!("it has ended: {script}");
            };
            let maps = fs::read_to_string(format!("/proc/{}/maps", exiting.last_tid())).unwrap();
            assert!(maps.contains("libc.so.6"), "{script}: {maps}");
            let killed = exiting.killed_threads().len();
            assert_eq!(exiting.end().unwrap().code(), Some(code), "{script}");
            killed
        };
        let thread = "threading.Thread(target=TARGET, daemon=True).start()\n";
        let with = |target: &str, then: &str| format!("{}{then}", thread.replace("TARGET", target));
        // The first thread calls _exit(2), as pthread_exit(3) does, before the last one ends the program.
        let pause = "lambda: (await_first(), libc._exit(5))";
        assert_eq!(check(&with(pause, "libc.syscall(60, 0)"), 5), 0);
        // A thread that waits is ended with the program.
        assert_eq!(
            check(&with("lambda: time.sleep(99)", "libc._exit(6)"), 6),
            1
        );
        // Threads that have ended are not counted. Python joins a thread that is about to end.
        let ended = "for _ in range(20):\n  t = threading.Thread(target=int)\n  t.start()\n  t.join()\n\
            while len(os.listdir('/proc/self/task')) > 1: pass\nos._exit(7)";
        assert_eq!(check(ended, 7), 0);
        // A thread executes another program, which exits.
        let exec = "lambda: os.execvp('sh', ['sh', '-c', 'exit 8; :'])";
        let RunOutcome::AtExit(exiting) =
            run_python(&format!("{start}{}", with(exec, "time.sleep(99)")))
        else {
            panic!("it has ended");
        };
        assert_eq!(exiting.killed_threads().len(), 0);
        assert_eq!(exiting.end().unwrap().code(), Some(8));
    }

    #[test]
    fn children_of_program_are_not_traced() {
        let script = "import os\nif os.fork() == 0: os._exit(3)\nos._exit(os.waitstatus_to_exitcode(os.wait()[1]) + 1)";
        let RunOutcome::AtExit(exiting) = run_python(script) else {
            panic!("it has ended");
        };
        assert_eq!(exiting.end().unwrap().code(), Some(4));
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
    fn thread_that_was_killed_has_no_exit_status() {
        // A thread that is not traced, for which ptrace(2) fails like for one that was killed.
        let parent = std::os::unix::process::parent_id();
        assert_eq!(read_event_message(parent.cast_signed()).unwrap(), None);
    }

    #[test]
    fn missing_program_is_an_error() {
        let error = run_until_exit(&mut Command::new("/no/such/program"), |_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
