//! Reading the filters of a thread from the kernel.
#![expect(unsafe_code, reason = "PTRACE_SECCOMP_GET_FILTER of ptrace(2)")]

use std::ptr;

use nix::errno::Errno;

use super::program::BpfInstruction;

/// linux/ptrace.h.
const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;

/// The programs of all filters of a thread, oldest first. The thread must be stopped by the caller's
/// ptrace(2).
///
/// # Errors
/// `EACCES`: the caller lacks `CAP_SYS_ADMIN`, or has a filter itself. `ESRCH`: the thread is not
/// stopped. `EINVAL`: it has none. `EIO`: the kernel was built without checkpoint and restore.
/// `EMEDIUMTYPE`: a filter is no classic BPF.
pub fn filters(thread: u32) -> Result<Vec<Vec<BpfInstruction>>, Errno> {
    let mut filters = Vec::new();
    loop {
        match filter(thread, filters.len()) {
            Ok(filter) => filters.push(filter),
            Err(Errno::ENOENT) => return Ok(filters),
            Err(errno) => return Err(errno),
        }
    }
}

fn filter(thread: u32, index: usize) -> Result<Vec<BpfInstruction>, Errno> {
    // SAFETY: without a place for the instructions, ptrace(2) only tells how many there are.
    let count = unsafe { get(thread, index, ptr::null_mut()) }?;
    let mut filter = vec![BpfInstruction::default(); count];
    // SAFETY: ptrace(2) writes `count` instructions of this shape: a filter never changes.
    let written = unsafe { get(thread, index, filter.as_mut_ptr()) }?;
    filter.truncate(written);
    Ok(filter)
}

/// # Safety
/// `place` is null, or has room for all instructions of that filter.
unsafe fn get(thread: u32, index: usize, place: *mut BpfInstruction) -> Result<usize, Errno> {
    // SAFETY: promised by the caller; the kernel writes nothing else.
    let count = unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, thread, index, place) };
    let count = Errno::result(count)?;
    usize::try_from(count).map_err(|_| Errno::EIO)
}
