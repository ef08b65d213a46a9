//! A thread of another process, stopped by ptrace(2). Nothing is written to it before everything was read, so that
//! it continues unchanged if this program is killed.
#![expect(unsafe_code, reason = "ptrace(2), whose arguments are bare numbers")]

use std::io;
use std::mem;
use std::ptr;
use std::time::{Duration, Instant};

use libc::{c_void, iovec, pid_t, user_regs_struct};

pub use crate::ptrace_request::StopError;

use crate::clone_step::{CloneStep, clone_error};
use crate::process_copy::ProcessCopy;
use crate::ptrace_request::{has_ended, ptrace_request, ptrace_request_value, wait_for_stop};
use crate::remote_call::SavedContext;
use crate::xstate::XState;

/// Timeout of a stop. A thread that needs longer counts as sleeping uninterruptibly.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

const NT_X86_XSTATE: usize = 0x202;
/// Largest size of the register set that the kernel may return, in bytes: AMX tiles alone take 8 KiB.
const MAX_XSTATE_SIZE: usize = 64 << 10;

/// Words of `siginfo_t`, and records that one request reads.
const SIGINFO_WORDS: usize = 16;
const SIGNALS_PER_REQUEST: usize = 32;
/// Most queued signals that [`StoppedThread::queued_signals`] reads: a process may queue tens of thousands
/// (`RLIMIT_SIGPENDING`), and is stopped meanwhile.
pub const MAX_QUEUED_SIGNALS: usize = 4096;

/// Size of the kernel's signal set, in bytes.
const SIGSET_SIZE: usize = 8;

/// A stopped thread. It stays stopped until it is detached, by dropping this value or when the tracing thread of
/// this process ends.
#[derive(Debug)]
pub struct StoppedThread {
    tid: pid_t,
    since: Instant,
    /// Signal that was about to be delivered; 0 for none.
    signal: i32,
    is_attached: bool,
}

/// A thread that was requested to stop. Several threads can be requested before the first wait.
#[derive(Debug)]
pub struct PendingStop {
    tid: pid_t,
    since: Instant,
}

impl PendingStop {
    /// Begins to trace a thread (`PTRACE_SEIZE`) and requests it to stop. Does not wait.
    ///
    /// # Errors
    /// `Ended`: the thread has ended; `Refused`: it cannot be traced, with the errno of ptrace(2).
    pub fn request_stop(tid: u32) -> Result<Self, StopError> {
        let tid = tid as pid_t;
        let refused = |error: io::Error| match error.raw_os_error() {
            Some(libc::ESRCH) => StopError::Ended,
            // ptrace(2) also fails with EPERM for a thread that has ended and is still in /proc.
            Some(libc::EPERM) if has_ended(tid) => StopError::Ended,
            code => StopError::Refused(code.unwrap_or_default()),
        };
        ptrace_request(libc::PTRACE_SEIZE, tid, 0, 0).map_err(refused)?;
        let since = Instant::now();
        ptrace_request(libc::PTRACE_INTERRUPT, tid, 0, 0).map_err(refused)?;
        Ok(Self { tid, since })
    }

    /// Waits until the thread is stopped.
    ///
    /// # Errors
    /// `Ended`: the thread has ended; `Uninterruptible`: it is not stopped at the deadline.
    pub fn wait(self, deadline: Instant) -> Result<StoppedThread, StopError> {
        let status = wait_for_stop(self.tid, deadline)?;
        // The upper half holds a ptrace event: the stop of PTRACE_INTERRUPT or a group stop, no signal.
        let is_signal = status >> 16 == 0;
        Ok(StoppedThread {
            tid: self.tid,
            since: self.since,
            signal: if is_signal { libc::WSTOPSIG(status) } else { 0 },
            is_attached: true,
        })
    }
}

impl StoppedThread {
    /// Wraps a thread that this thread traces already, and that is stopped at a ptrace event.
    pub(crate) fn from_event(tid: pid_t) -> Self {
        Self {
            tid,
            since: Instant::now(),
            signal: 0,
            is_attached: true,
        }
    }

    /// Stops a thread and waits for it, for 1 s at most.
    ///
    /// # Errors
    /// `Ended`: the thread has ended; `Refused`: it cannot be traced; `Uninterruptible`: it is not stopped after 1
    /// s.
    pub fn stop(tid: u32) -> Result<Self, StopError> {
        let stopping = PendingStop::request_stop(tid)?;
        let deadline = stopping.since + STOP_TIMEOUT;
        stopping.wait(deadline)
    }

    /// Returns the signal that is about to be delivered to the thread; `None` without one. A thread with such a signal
    /// can only be detached.
    pub fn pending_signal(&self) -> Option<i32> {
        (self.signal != 0).then_some(self.signal)
    }

    /// Returns the time at which the thread was requested to stop.
    pub fn stopped_since(&self) -> Instant {
        self.since
    }

    /// Reads the general registers (ptrace(2), `PTRACE_GETREGS`).
    ///
    /// # Errors
    /// The thread was killed.
    pub fn registers(&self) -> io::Result<user_regs_struct> {
        // SAFETY: all-zero is a valid value of a struct of numbers.
        let mut registers: user_regs_struct = unsafe { mem::zeroed() };
        let address = &raw mut registers;
        ptrace_request(libc::PTRACE_GETREGS, self.tid, 0, address as usize)?;
        Ok(registers)
    }

    /// Reads the floating-point and vector registers.
    ///
    /// # Errors
    /// The thread was killed, or the processor has no XSAVE (`Unsupported`).
    pub fn xstate(&self) -> io::Result<XState> {
        let mut bytes = vec![0_u8; MAX_XSTATE_SIZE];
        let mut buffer = iovec {
            iov_base: bytes.as_mut_ptr().cast::<c_void>(),
            iov_len: bytes.len(),
        };
        let address = &raw mut buffer;
        ptrace_request(
            libc::PTRACE_GETREGSET,
            self.tid,
            NT_X86_XSTATE,
            address as usize,
        )?;
        // SAFETY: `address` points to the local iovec, whose length the kernel has set (ptrace(2)).
        bytes.truncate(unsafe { (*address).iov_len });
        XState::new(bytes)
    }

    /// Reads the signals that the thread blocks: signal N is bit N - 1. During a call with a temporary mask (ppoll(2),
    /// sigsuspend(2)), returns the mask that applies afterwards.
    ///
    /// # Errors
    /// The thread was killed.
    pub fn signal_mask(&self) -> io::Result<u64> {
        let mut mask = 0_u64;
        let address = &raw mut mask;
        ptrace_request(
            libc::PTRACE_GETSIGMASK,
            self.tid,
            SIGSET_SIZE,
            address as usize,
        )?;
        Ok(mask)
    }

    /// Reads the records (`siginfo_t`) of the queued signals of the thread, or of its process if `of_process`, as
    /// words; at most [`MAX_QUEUED_SIGNALS`]. A sender's value (`sigval`) is one of the words.
    ///
    /// # Errors
    /// The thread was killed.
    pub fn queued_signals(&self, of_process: bool) -> io::Result<Vec<u64>> {
        let mut words = Vec::new();
        let mut records = [[0_u64; SIGINFO_WORDS]; SIGNALS_PER_REQUEST];
        for offset in (0..MAX_QUEUED_SIGNALS).step_by(SIGNALS_PER_REQUEST) {
            let arguments = libc::ptrace_peeksiginfo_args {
                off: offset as u64,
                flags: if of_process {
                    libc::PTRACE_PEEKSIGINFO_SHARED
                } else {
                    0
                },
                nr: SIGNALS_PER_REQUEST as i32,
            };
            let (address, data) = (&raw const arguments as usize, records.as_mut_ptr() as usize);
            let count = ptrace_request_value(libc::PTRACE_PEEKSIGINFO, self.tid, address, data)?;
            let count = count.unsigned_abs() as usize;
            words.extend(records[..count].iter().flatten());
            if count < SIGNALS_PER_REQUEST {
                break;
            }
        }
        Ok(words)
    }

    /// Sets the registers with which the thread continues when it is detached.
    ///
    /// # Errors
    /// The thread was killed.
    pub fn set_registers(&self, registers: &user_regs_struct) -> io::Result<()> {
        let address = ptr::from_ref(registers) as usize;
        ptrace_request(libc::PTRACE_SETREGS, self.tid, 0, address).map(drop)
    }

    /// Detaches the thread with other registers and every signal blocked. The registers must make it return through
    /// `rt_sigreturn(2)`, which sets its signal mask: afterwards neither this process nor another one needs to act.
    ///
    /// # Errors
    /// The thread was killed.
    pub fn detach_into_remote_call(mut self, registers: &user_regs_struct) -> io::Result<()> {
        let address = ptr::from_ref(registers) as usize;
        ptrace_request(libc::PTRACE_SETREGS, self.tid, 0, address)?;
        // After the registers: if this process is killed in between, the thread's rt_sigreturn(2) still sets the
        // right mask.
        self.set_signal_mask(u64::MAX)?;
        self.is_attached = false;
        ptrace_request(libc::PTRACE_DETACH, self.tid, 0, 0)
    }

    /// Sets the signals that the thread blocks: signal N is bit N - 1.
    fn set_signal_mask(&self, signals: u64) -> io::Result<()> {
        let address = &raw const signals;
        ptrace_request(
            libc::PTRACE_SETSIGMASK,
            self.tid,
            SIGSET_SIZE,
            address as usize,
        )
    }

    /// Makes the thread clone its process by a remote call ([`crate::remote_call::build_clone_frames`]). `registers`
    /// begin that call, and `saved` is the thread's state before it. Returns the copy, stopped before its first
    /// instruction, and the thread, stopped after the call until it is dropped.
    ///
    /// # Errors
    /// The errno of clone(2), and the thread continues with its saved context. `TimedOut`: the thread did not reach the
    /// call before the deadline, and has its `saved` registers again. `ESRCH`: the thread was killed, or does not stop.
    pub fn run_clone(
        mut self,
        registers: &user_regs_struct,
        saved: &SavedContext<'_>,
        deadline: Instant,
    ) -> io::Result<(ProcessCopy, Self)> {
        let options = (libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACESYSGOOD) as usize;
        ptrace_request(libc::PTRACE_SETOPTIONS, self.tid, 0, options)?;
        self.set_registers(registers)?;
        // The last frame of the remote call restores the mask.
        self.set_signal_mask(u64::MAX)?;
        let mut signal = 0;
        loop {
            let is_late = Instant::now() > deadline;
            if is_late {
                // The thread then stops where its registers can be restored, unless it is in the midst of the call.
                ptrace_request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)?;
            }
            ptrace_request(libc::PTRACE_SYSCALL, self.tid, 0, signal as usize)?;
            let wait_deadline = match is_late {
                true => Instant::now() + STOP_TIMEOUT,
                false => deadline,
            };
            let status = match wait_for_stop(self.tid, wait_deadline) {
                Err(StopError::Uninterruptible) if !is_late => {
                    ptrace_request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)?;
                    wait_for_stop(self.tid, Instant::now() + STOP_TIMEOUT)
                }
                waited => waited,
            };
            let status = status.map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
            signal = match CloneStep::from_status(status) {
                CloneStep::Cloned => break,
                CloneStep::SystemCall => {
                    if let Some(error) = clone_error(&self.registers()?) {
                        return Err(error);
                    }
                    signal = 0;
                    continue;
                }
                CloneStep::Signal(signal) => signal,
                CloneStep::GroupStop => 0,
            };
            if Instant::now() > deadline {
                self.signal = signal;
                // If this process is killed in between, the thread still calls clone(2) and then restores its
                // context.
                self.set_signal_mask(saved.blocked)?;
                self.set_registers(&saved.registers)?;
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        let mut child: libc::c_ulong = 0;
        let address = &raw mut child;
        ptrace_request(libc::PTRACE_GETEVENTMSG, self.tid, 0, address as usize)?;
        Ok((ProcessCopy::adopt(child as pid_t)?, self))
    }

    /// Makes the thread run a remote call ([`crate::remote_call::build_frames`]) up to the end of its system call
    /// `number`. `registers` begin the remote call. Returns the thread, stopped after the system call. When it is
    /// dropped, it continues with the remote call's last frame.
    ///
    /// # Errors
    /// `ESRCH`: the thread was killed. `TimedOut`: it did not reach the end of the system call before the deadline; it
    /// then completes the remote call, untraced.
    pub fn run_system_call(
        mut self,
        registers: &user_regs_struct,
        number: i64,
        deadline: Instant,
    ) -> io::Result<Self> {
        let (options, mut signal) = (libc::PTRACE_O_TRACESYSGOOD, 0);
        ptrace_request(libc::PTRACE_SETOPTIONS, self.tid, 0, options as usize)?;
        self.set_registers(registers)?;
        // The last frame of the remote call restores the mask.
        self.set_signal_mask(u64::MAX)?;
        loop {
            ptrace_request(libc::PTRACE_SYSCALL, self.tid, 0, signal as usize)?;
            let status = match wait_for_stop(self.tid, deadline) {
                Err(StopError::Uninterruptible) => {
                    self.stop_again()?;
                    return Err(io::ErrorKind::TimedOut.into());
                }
                waited => waited.map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?,
            };
            signal = match CloneStep::from_status(status) {
                CloneStep::SystemCall => {
                    let registers = self.registers()?;
                    // On entry to a call, `rax` is -ENOSYS (arch/x86/entry).
                    let is_begin = registers.rax.cast_signed() == -i64::from(libc::ENOSYS);
                    if registers.orig_rax.cast_signed() == number && !is_begin {
                        return Ok(self);
                    }
                    0
                }
                CloneStep::Signal(signal) => signal,
                CloneStep::Cloned | CloneStep::GroupStop => 0,
            };
        }
    }

    /// Stops the running thread again, because only a stopped thread can be detached (ptrace(2)). Waits 1 s at most,
    /// and ignores whether it has stopped. Keeps the signal at which it stops for the detach. Fails with the errno of
    /// ptrace(2) if the thread was killed.
    fn stop_again(&mut self) -> io::Result<()> {
        ptrace_request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)?;
        let status = wait_for_stop(self.tid, Instant::now() + STOP_TIMEOUT);
        if let Ok(CloneStep::Signal(signal)) = status.map(CloneStep::from_status) {
            self.signal = signal;
        }
        Ok(())
    }

    /// Sets the thread's registers and detaches it, so that it continues. The kernel delivers the signal that was about
    /// to be delivered when the thread stopped.
    ///
    /// # Errors
    /// The thread was killed.
    pub fn resume_with(self, registers: &user_regs_struct) -> io::Result<()> {
        // Dropping `self` then detaches the thread.
        self.set_registers(registers)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        if self.is_attached {
            // The request fails for a thread that was killed, which needs no detach.
            let _ = ptrace_request(libc::PTRACE_DETACH, self.tid, 0, self.signal as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    use nix::unistd::Pid;

    use super::*;
    use crate::stop_all::stop_all;

    #[test]
    fn thread_that_misses_its_system_call_is_detached() {
        /// No system call has this number.
        const NEVER_CALLED: i64 = -2;
        let mut cat = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let stopped = StoppedThread::stop(cat.id()).unwrap();
        // It reads from its pipe again, which does not end.
        let registers = stopped.registers().unwrap();
        let deadline = Instant::now() + Duration::from_millis(20);
        let error = stopped.run_system_call(&registers, NEVER_CALLED, deadline);
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let status = std::fs::read_to_string(format!("/proc/{}/status", cat.id())).unwrap();
        assert!(status.contains("\nTracerPid:\t0\n"), "{status}");
        drop(cat.stdin.take());
        assert!(cat.wait().unwrap().success());
    }

    #[test]
    fn stopped_thread_continues_when_dropped() {
        let mut cat = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let stopped = StoppedThread::stop(cat.id()).unwrap();
        assert_eq!(stopped.pending_signal(), None);
        let registers = stopped.registers().unwrap();
        assert!(registers.rsp > 0x1000, "{:x}", registers.rsp);
        assert_eq!(stopped.signal_mask().unwrap(), 0);
        assert!(stopped.xstate().unwrap().to_frame_bytes().len() > 576);
        let traced = StoppedThread::stop(cat.id()).unwrap_err();
        assert_eq!(traced, StopError::Refused(libc::EPERM));
        drop(stopped);
        drop(cat.stdin.take());
        assert!(cat.wait().unwrap().success());
        let ended = StoppedThread::stop(cat.id()).unwrap_err();
        assert_eq!(ended, StopError::Ended);
    }

    #[test]
    fn ended_thread_that_is_still_listed_is_not_refused() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Id::Pid(Pid::from_raw(child.id().cast_signed()));
        waitid(pid, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        let ended = StoppedThread::stop(child.id()).unwrap_err();
        assert_eq!(ended, StopError::Ended);
        let mut stopped = Vec::new();
        let deadline = Instant::now() + STOP_TIMEOUT;
        stop_all(child.id(), deadline, &mut stopped).unwrap();
        assert!(stopped.is_empty());
        child.wait().unwrap();
        stop_all(child.id(), deadline, &mut stopped).unwrap_err();
    }
}
