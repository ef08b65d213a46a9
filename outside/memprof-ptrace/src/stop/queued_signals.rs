//! Signals that wait for delivery to a stopped thread.

use std::io;

use super::StoppedThread;
use crate::ptrace_request::request_value;

/// Words of `siginfo_t`, and records that one request reads.
const SIGINFO_WORDS: usize = 16;
const SIGNALS_PER_REQUEST: usize = 32;
/// Most queued signals that [`StoppedThread::queued_signals`] reads: a process may queue tens of thousands
/// (`RLIMIT_SIGPENDING`), and is stopped meanwhile.
pub const MAX_QUEUED_SIGNALS: usize = 4096;

/// Signals of faults, which the kernel forces upon the thread that has caused one.
pub const FAULT_SIGNALS: [i32; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGTRAP,
    libc::SIGILL,
    libc::SIGFPE,
];

impl StoppedThread {
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
            let count = request_value(libc::PTRACE_PEEKSIGINFO, self.tid, address, data)?;
            let count = count.unsigned_abs() as usize;
            words.extend(records[..count].iter().flatten());
            if count < SIGNALS_PER_REQUEST {
                break;
            }
        }
        Ok(words)
    }

    /// Returns whether a signal of a fault is queued for the thread or its process: ptrace(2) stops a thread before it
    /// delivers one. Its handler would take what the thread is made to run for the place of the fault; and if the
    /// program blocks the signal, it may end the process once it is not blocked.
    ///
    /// # Errors
    /// The thread was killed.
    pub fn has_queued_fault(&self) -> io::Result<bool> {
        for of_process in [false, true] {
            let words = self.queued_signals(of_process)?;
            // `si_signo` is the first `int` of a record.
            let mut signals = words.chunks(SIGINFO_WORDS).map(|record| record[0] as i32);
            if signals.any(|signal| FAULT_SIGNALS.contains(&signal)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
