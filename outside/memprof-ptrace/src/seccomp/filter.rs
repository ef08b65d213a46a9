//! Reads a thread's seccomp filters from the kernel.
#![expect(unsafe_code, reason = "PTRACE_SECCOMP_GET_FILTER of ptrace(2)")]

use std::ptr;

use nix::errno::Errno;

use super::program::BpfInstruction;

/// linux/ptrace.h.
const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;

/// Reads the programs of all filters of a thread, oldest first. The caller must have stopped the thread by
/// ptrace(2).
///
/// # Errors
/// `EACCES`: the caller lacks `CAP_SYS_ADMIN`, or has a filter itself. `ESRCH`: the thread is not stopped. `EINVAL`:
/// it has no filter. `EIO`: the kernel was built without checkpoint and restore. `EMEDIUMTYPE`: a filter is not
/// classic BPF.
pub fn read_filters(thread: u32) -> Result<Vec<Vec<BpfInstruction>>, Errno> {
    let mut filters = Vec::new();
    loop {
        match read_filter(thread, filters.len()) {
            Ok(filter) => filters.push(filter),
            Err(Errno::ENOENT) => return Ok(filters),
            Err(errno) => return Err(errno),
        }
    }
}

/// Reads the program of one filter; index 0 is the oldest filter. Fails with `ENOENT` if there is no filter of that
/// index.
fn read_filter(thread: u32, index: usize) -> Result<Vec<BpfInstruction>, Errno> {
    // SAFETY: with a null pointer, ptrace(2) only returns the number of instructions.
    let count = unsafe { get_filter(thread, index, ptr::null_mut()) }?;
    let mut filter = vec![BpfInstruction::default(); count];
    // SAFETY: `filter` has room for `count` instructions, and a filter never changes (seccomp(2)).
    let written = unsafe { get_filter(thread, index, filter.as_mut_ptr()) }?;
    filter.truncate(written);
    Ok(filter)
}

/// Calls `PTRACE_SECCOMP_GET_FILTER`: copies the instructions of a filter to `buffer` unless it is null, and returns
/// their number.
///
/// # Safety
/// `buffer` is null, or has room for all instructions of the filter.
unsafe fn get_filter(
    thread: u32,
    index: usize,
    buffer: *mut BpfInstruction,
) -> Result<usize, Errno> {
    // SAFETY: the kernel writes the filter's instructions and nothing else, for which the caller guarantees room.
    let count = unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, thread, index, buffer) };
    let count = Errno::result(count)?;
    usize::try_from(count).map_err(|_| Errno::EIO)
}
