//! Check whether a thread has registered restartable sequences (rseq(2)).
#![expect(unsafe_code, reason = "PTRACE_GET_RSEQ_CONFIGURATION of ptrace(2)")]

use nix::errno::Errno;

/// linux/ptrace.h, since Linux 5.13.
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;

/// `struct ptrace_rseq_configuration`.
#[repr(C)]
#[derive(Debug, Default)]
struct RseqConfig {
    /// Address of `struct rseq`; 0 if none is registered.
    address: u64,
    size: u32,
    signature: u32,
    flags: u32,
    padding: u32,
}

/// Use of rseq(2) by a new glibc thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rseq {
    /// It calls rseq(2), because its creator has done so, and ends the process if the call fails.
    Required,
    /// It does not call rseq(2).
    Unused,
}

/// Returns whether new threads call rseq(2) if `thread` creates them. Returns `Required` also if that is unknown. The
/// caller must have stopped `thread` by ptrace(2).
pub(super) fn rseq_use_of_new_threads(thread: u32) -> Rseq {
    match rseq_area(thread) {
        Ok(None) => Rseq::Unused,
        // Before Linux 5.13 the kernel does not report whether the thread has registered one.
        _ => Rseq::Required,
    }
}

/// Returns the address of a stopped thread's `struct rseq` (linux/rseq.h); `None` if it has registered none.
///
/// # Errors
/// The kernel does not report it (before Linux 5.13), or the thread was killed.
pub fn rseq_area(thread: u32) -> Result<Option<u64>, Errno> {
    let mut config = RseqConfig::default();
    let size = size_of_val(&config);
    // SAFETY: ptrace(2) writes at most `size` bytes to `config`.
    let written =
        unsafe { libc::ptrace(PTRACE_GET_RSEQ_CONFIGURATION, thread, size, &raw mut config) };
    Errno::result(written)?;
    Ok(Some(config.address).filter(|address| *address != 0))
}
