//! Whether a thread has restartable sequences (rseq(2)).
#![expect(unsafe_code, reason = "PTRACE_GET_RSEQ_CONFIGURATION of ptrace(2)")]

use nix::errno::Errno;

/// linux/ptrace.h, since Linux 5.13.
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;

/// `struct ptrace_rseq_configuration`.
#[repr(C)]
#[derive(Debug, Default)]
struct Configuration {
    /// 0 where there is none.
    address: u64,
    size: u32,
    signature: u32,
    flags: u32,
    padding: u32,
}

/// What a new thread of glibc's does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rseq {
    /// It calls rseq(2), because the thread that makes it has done so, and ends the process where that
    /// fails.
    Required,
    /// It does not call it.
    Unused,
}

/// What is to be expected of a thread that this one makes, which the caller has stopped by ptrace(2).
pub(super) fn rseq(thread: u32) -> Rseq {
    match area(thread) {
        Ok(None) => Rseq::Unused,
        // An older kernel does not tell.
        _ => Rseq::Required,
    }
}

/// Where the kernel looks for the restartable sequence that a stopped thread is in (`struct rseq` of linux/rseq.h), if it
/// looks anywhere.
///
/// # Errors
/// The kernel does not tell (before Linux 5.13); the thread was killed.
pub fn area(thread: u32) -> Result<Option<u64>, Errno> {
    let mut configuration = Configuration::default();
    let size = size_of_val(&configuration);
    let place = &raw mut configuration;
    // SAFETY: ptrace(2) writes that many bytes there at the most.
    let written = unsafe { libc::ptrace(PTRACE_GET_RSEQ_CONFIGURATION, thread, size, place) };
    Errno::result(written)?;
    Ok(Some(configuration.address).filter(|address| *address != 0))
}
