//! A thread of another process, stopped. Nothing is written before all was looked at, so that it goes
//! on as if nothing had been, should this program be killed.
#![expect(unsafe_code, reason = "ptrace(2), whose arguments are bare numbers")]

use std::io;
use std::mem;
use std::ptr;
use std::time::{Duration, Instant};

use libc::{c_void, iovec, pid_t, user_regs_struct};

pub use crate::ptrace_request::StopError;

use crate::process_copy::ProcessCopy;
use crate::ptrace_request::{request, wait};
use crate::remote_call::SavedContext;
use crate::xstate::XState;

/// Longer than any wait that a thread can be woken from.
const PATIENCE: Duration = Duration::from_secs(1);

const NT_X86_XSTATE: usize = 0x202;
/// What a kernel may write: AMX's tiles are 8 KiB of it.
const STATE_LIMIT: usize = 64 << 10;

/// What stops a thread at a system call (ptrace(2), `PTRACE_O_TRACESYSGOOD`).
const SYSTEM_CALL_STOP: i32 = libc::SIGTRAP | 0x80;

/// The kernel's signals, of 64 bits.
const SIGNALS: usize = 8;

/// A thread that stands still until it is let go, or this thread of ours ends.
#[derive(Debug)]
pub struct StoppedThread {
    tid: pid_t,
    since: Instant,
    /// The signal that was about to be delivered to it.
    signal: i32,
    is_held: bool,
}

/// A thread that was asked to stop, which others may be asked meanwhile.
#[derive(Debug)]
pub struct PendingStop {
    tid: pid_t,
    since: Instant,
}

impl PendingStop {
    /// Asks a thread to stop, wherever it is.
    ///
    /// # Errors
    /// `Ended`, `Refused`.
    pub fn request_stop(tid: u32) -> Result<Self, StopError> {
        let tid = tid as pid_t;
        let refused = |error: io::Error| match error.raw_os_error() {
            Some(libc::ESRCH) => StopError::Ended,
            code => StopError::Refused(code.unwrap_or_default()),
        };
        request(libc::PTRACE_SEIZE, tid, 0, 0).map_err(refused)?;
        let since = Instant::now();
        request(libc::PTRACE_INTERRUPT, tid, 0, 0).map_err(refused)?;
        Ok(Self { tid, since })
    }

    /// Waits until it stands still.
    ///
    /// # Errors
    /// `Ended`; `Uninterruptible` where it does not stop until then.
    pub fn wait(self, until: Instant) -> Result<StoppedThread, StopError> {
        let status = wait(self.tid, until)?;
        // An event is in the upper half: then it is our own stop, or one of the whole process.
        let is_signal = status >> 16 == 0;
        Ok(StoppedThread {
            tid: self.tid,
            since: self.since,
            signal: if is_signal { libc::WSTOPSIG(status) } else { 0 },
            is_held: true,
        })
    }
}

impl StoppedThread {
    /// A thread that this thread of ours traces, and which stands still at an event.
    pub(crate) fn from_event(tid: pid_t) -> Self {
        Self {
            tid,
            since: Instant::now(),
            signal: 0,
            is_held: true,
        }
    }

    /// Stops a thread, wherever it is.
    ///
    /// # Errors
    /// Why it does not stop.
    pub fn interrupt(tid: u32) -> Result<Self, StopError> {
        let stopping = PendingStop::request_stop(tid)?;
        let until = stopping.since + PATIENCE;
        stopping.wait(until)
    }

    /// The signal that it is about to take. It can only be let go then.
    pub fn signal(&self) -> Option<i32> {
        (self.signal != 0).then_some(self.signal)
    }

    /// Since when it stands still.
    pub fn stopped_since(&self) -> Instant {
        self.since
    }

    /// The general registers (ptrace(2), `PTRACE_GETREGSET`).
    ///
    /// # Errors
    /// It was killed meanwhile.
    pub fn registers(&self) -> io::Result<user_regs_struct> {
        // SAFETY: a struct of numbers.
        let mut registers: user_regs_struct = unsafe { mem::zeroed() };
        let place = &raw mut registers;
        request(libc::PTRACE_GETREGS, self.tid, 0, place as usize)?;
        Ok(registers)
    }

    /// Its floating-point and vector registers.
    ///
    /// # Errors
    /// It was killed meanwhile.
    pub fn state(&self) -> io::Result<XState> {
        let mut bytes = vec![0_u8; STATE_LIMIT];
        let mut place = iovec {
            iov_base: bytes.as_mut_ptr().cast::<c_void>(),
            iov_len: bytes.len(),
        };
        let place = &raw mut place;
        request(
            libc::PTRACE_GETREGSET,
            self.tid,
            NT_X86_XSTATE,
            place as usize,
        )?;
        // SAFETY: ours; the kernel has set the length.
        bytes.truncate(unsafe { (*place).iov_len });
        bytes.shrink_to_fit();
        XState::new(bytes)
    }

    /// The signals that it blocks; where its call blocks others for a while, those that it blocks
    /// afterwards.
    ///
    /// # Errors
    /// It was killed meanwhile.
    pub fn signal_mask(&self) -> io::Result<u64> {
        let mut mask = 0_u64;
        let place = &raw mut mask;
        request(libc::PTRACE_GETSIGMASK, self.tid, SIGNALS, place as usize)?;
        Ok(mask)
    }

    /// Gives it other registers, with which it goes on when it is let go.
    ///
    /// # Errors
    /// It was killed meanwhile.
    pub fn set_registers(&self, registers: &user_regs_struct) -> io::Result<()> {
        let place = ptr::from_ref(registers) as usize;
        request(libc::PTRACE_SETREGS, self.tid, 0, place).map(drop)
    }

    /// Lets it go with other registers and every signal blocked. Nothing is left to be done by
    /// anybody: the registers must lead it into `rt_sigreturn(2)`, which says what it blocks from then on.
    ///
    /// # Errors
    /// It was killed meanwhile.
    pub fn detach_into(mut self, registers: &user_regs_struct) -> io::Result<()> {
        let place = ptr::from_ref(registers) as usize;
        request(libc::PTRACE_SETREGS, self.tid, 0, place)?;
        // Behind the registers: killed in between, we leave a thread that unblocks what it should.
        self.block(u64::MAX)?;
        self.is_held = false;
        request(libc::PTRACE_DETACH, self.tid, 0, 0)
    }

    fn block(&self, signals: u64) -> io::Result<()> {
        let place = &raw const signals;
        request(libc::PTRACE_SETSIGMASK, self.tid, SIGNALS, place as usize)
    }

    /// Has it clone its process by a remote call ([`crate::remote_call::build_clone_frames`]). Both stand still
    /// then: it behind the call until it is dropped, and its child from the first instruction on.
    ///
    /// # Errors
    /// The errno of clone(2): it goes home by itself. `TimedOut`: it did not reach the call before `until`, and is at
    /// `home` again. `ESRCH`: it was killed.
    pub fn run_clone(
        mut self,
        registers: &user_regs_struct,
        home: &SavedContext<'_>,
        until: Instant,
    ) -> io::Result<(ProcessCopy, Self)> {
        let options = (libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACESYSGOOD) as usize;
        request(libc::PTRACE_SETOPTIONS, self.tid, 0, options)?;
        self.set_registers(registers)?;
        self.block(u64::MAX)?;
        let mut signal = 0;
        loop {
            let is_late = Instant::now() > until;
            if is_late {
                // It stops where it can be led home, unless it is in the midst of the call.
                request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)?;
            }
            request(libc::PTRACE_SYSCALL, self.tid, 0, signal as usize)?;
            let deadline = match is_late {
                true => Instant::now() + PATIENCE,
                false => until,
            };
            let status = match wait(self.tid, deadline) {
                Err(StopError::Uninterruptible) if !is_late => {
                    request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)?;
                    wait(self.tid, Instant::now() + PATIENCE)
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
            if Instant::now() > until {
                self.signal = signal;
                // Killed in between, this program leaves a thread that goes home by way of clone(2).
                self.block(home.blocked)?;
                self.set_registers(&home.registers)?;
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        let mut child: libc::c_ulong = 0;
        let place = &raw mut child;
        request(libc::PTRACE_GETEVENTMSG, self.tid, 0, place as usize)?;
        Ok((ProcessCopy::adopt(child as pid_t)?, self))
    }

    /// Lets it go with these registers, and with the signal that it was about to take.
    ///
    /// # Errors
    /// It was killed meanwhile.
    pub fn resume_with(self, registers: &user_regs_struct) -> io::Result<()> {
        self.set_registers(registers)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        if self.is_held {
            // It fails for a thread that was killed, which is nothing to us.
            let _ = request(libc::PTRACE_DETACH, self.tid, 0, self.signal as usize);
        }
    }
}

/// A stop of a thread on its way to clone(2).
#[derive(Debug, PartialEq, Eq)]
enum CloneStep {
    /// It has a child.
    Cloned,
    /// It enters a system call, or leaves one.
    SystemCall,
    /// It is about to take this signal: SIGSTOP, because nothing blocks it. It must be passed on at once, as only the
    /// kernel knows whether a SIGCONT has come meanwhile (kernel/signal.c, `JOBCTL_STOP_DEQUEUED`).
    Signal(i32),
    /// Its process was stopped or continued by a signal. It runs nevertheless, and stops when it is let go.
    GroupStop,
}

impl CloneStep {
    fn from_status(status: i32) -> Self {
        match (status >> 16, libc::WSTOPSIG(status)) {
            (libc::PTRACE_EVENT_CLONE, _) => Self::Cloned,
            (0, SYSTEM_CALL_STOP) => Self::SystemCall,
            (0, signal) => Self::Signal(signal),
            _ => Self::GroupStop,
        }
    }
}

/// The error with which a thread leaves clone(2); `None` if it is not there yet, or the kernel repeats the call.
fn clone_error(registers: &user_regs_struct) -> Option<io::Error> {
    /// In the result's place while the call has not begun (arch/x86/entry), and for a call that is repeated after a
    /// signal (include/linux/errno.h).
    const NOT_ERRORS: [i32; 2] = [libc::ENOSYS, 513];
    let is_clone = registers.orig_rax == libc::SYS_clone as u64;
    let errno = i32::try_from(registers.rax.wrapping_neg()).ok()?;
    let is_error = is_clone && (1..4096).contains(&errno) && !NOT_ERRORS.contains(&errno);
    is_error.then(|| io::Error::from_raw_os_error(errno))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_thread_stops_and_goes_on() {
        let mut cat = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let stopped = StoppedThread::interrupt(cat.id()).unwrap();
        assert_eq!(stopped.signal(), None);
        let registers = stopped.registers().unwrap();
        assert!(registers.rsp > 0x1000, "{:x}", registers.rsp);
        assert_eq!(stopped.signal_mask().unwrap(), 0);
        assert!(stopped.state().unwrap().for_frame().len() > 576);
        let traced = StoppedThread::interrupt(cat.id()).unwrap_err();
        assert_eq!(traced, StopError::Refused(libc::EPERM));
        drop(stopped);
        drop(cat.stdin.take());
        assert!(cat.wait().unwrap().success());
        let ended = StoppedThread::interrupt(cat.id()).unwrap_err();
        assert_eq!(ended, StopError::Ended);
    }

    #[test]
    fn stops_on_the_way_to_clone() {
        let check = |event: i32, signal: i32, expected| {
            let status = event << 16 | signal << 8 | 0x7f;
            assert_eq!(CloneStep::from_status(status), expected);
        };
        check(libc::PTRACE_EVENT_CLONE, libc::SIGTRAP, CloneStep::Cloned);
        check(0, libc::SIGTRAP | 0x80, CloneStep::SystemCall);
        check(0, libc::SIGSTOP, CloneStep::Signal(libc::SIGSTOP));
        for signal in [libc::SIGSTOP, libc::SIGTRAP] {
            check(libc::PTRACE_EVENT_STOP, signal, CloneStep::GroupStop);
        }
    }

    #[test]
    fn only_an_errno_of_clone_is_its_error() {
        let check = |call: i64, result: i64, expected: Option<i32>| {
            // SAFETY: a struct of numbers.
            let mut registers: user_regs_struct = unsafe { mem::zeroed() };
            registers.orig_rax = call.cast_unsigned();
            registers.rax = result.cast_unsigned();
            let error = clone_error(&registers).and_then(|error| error.raw_os_error());
            assert_eq!(error, expected, "{call} {result}");
        };
        let eagain = -i64::from(libc::EAGAIN);
        check(libc::SYS_clone, eagain, Some(libc::EAGAIN));
        check(libc::SYS_clone, -i64::from(libc::ENOSYS), None);
        check(libc::SYS_clone, -513, None);
        check(libc::SYS_clone, 4711, None);
        check(libc::SYS_clone, 0, None);
        check(libc::SYS_rt_sigreturn, eagain, None);
    }
}
