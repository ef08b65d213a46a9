//! Memory that is asked for before it is needed: where an allocation fails, Rust ends the process.
#![expect(unsafe_code, reason = "mmap(2)")]

use std::io;
use std::ptr;

/// Fails where the kernel does not map that many bytes. What another thread takes between this and
/// their use is not there any more: `bytes` should leave room for it.
///
/// The allocator is not asked what it still has: jemalloc 5.3 reads through a null pointer where
/// it can map nothing for a thread's first sample.
///
/// # Errors
/// ENOMEM, or what else mmap(2) gives.
pub fn require_memory(bytes: usize) -> io::Result<()> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: mmap(2): a new mapping, at an address that the kernel chooses.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping just made, which nothing refers to.
    unsafe { libc::munmap(mapped, bytes) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_has_is_refused() {
        let error = require_memory(1 << 60).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
        require_memory(1 << 20).unwrap();
    }
}
