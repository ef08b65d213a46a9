//! Gate at which a forked child waits until it is traced.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use libc::pid_t;

/// Gate at which a forked child waits, before it executes its program, until it is traced.
pub(super) struct StartGate {
    /// The child writes its pid. Once `spawn` has returned, this process writes 0, which ends the wait for a pid.
    pids: (PipeReader, PipeWriter),
    /// One byte for the child: whether it is traced. The pipe ends if this process is killed.
    opened: PipeWriter,
}

impl StartGate {
    /// Creates a gate, and adds a hook to `command`: its child, once forked, reports its pid, and waits at the gate
    /// before it executes the program. Fails if no pipe can be created.
    pub(super) fn new(command: &mut Command) -> io::Result<Self> {
        let pids = io::pipe()?;
        let (reader, opened) = io::pipe()?;
        let [own_end, report] = [opened.as_raw_fd(), pids.1.as_raw_fd()];
        let pass = move || {
            // SAFETY: close(2) closes only the child's copy of the writer. The pipe then ends with this process.
            unsafe { libc::close(own_end) };
            // SAFETY: getpid(2) only returns a number.
            let pid = unsafe { libc::getpid() }.to_ne_bytes();
            // SAFETY: write(2) reads the bytes of a variable. A pipe accepts so few bytes in one call.
            unsafe { libc::write(report, pid.as_ptr().cast(), pid.len()) };
            let mut is_traced = [1];
            match (&reader).read(&mut is_traced) {
                // This process was killed: the program continues.
                Ok(0) => Ok(()),
                Ok(_) if is_traced == [0] => Err(io::Error::from_raw_os_error(libc::EPERM)),
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            }
        };
        // SAFETY: the closure calls functions only that are async-signal-safe, as code between fork(2) and execve(2)
        // must be, and allocates nothing.
        unsafe { command.pre_exec(pass) };
        Ok(Self { pids, opened })
    }

    /// Reports a pid to [`Self::wait_for_pid`]; 0 means that no child has started.
    pub(super) fn report_pid(&self, pid: pid_t) {
        // Cannot fail: this value keeps the reader open, and the pipe has room for two pids.
        let _ = (&self.pids.1).write(&pid.to_ne_bytes());
    }

    /// Blocks until the child, or the thread that starts it, has reported a pid. `None` if that is 0: no child has
    /// started.
    pub(super) fn wait_for_pid(&self) -> io::Result<Option<pid_t>> {
        let mut pid = [0; size_of::<pid_t>()];
        (&self.pids.0).read_exact(&mut pid)?;
        Ok(Some(pid_t::from_ne_bytes(pid)).filter(|pid| *pid != 0))
    }

    /// Lets the child execute its program if it is traced, or else fail with EPERM.
    pub(super) fn open(&self, is_traced: bool) -> io::Result<()> {
        (&self.opened).write_all(&[is_traced.into()])
    }
}
