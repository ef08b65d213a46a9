//! Memory that is asked for before it is needed: where an allocation fails, Rust ends the process.
#![expect(unsafe_code, reason = "mmap(2)")]

use std::cell::Cell;
use std::hint::black_box;
use std::io;
use std::ptr;

use crate::reserve::is_scarce;

/// Into how many mappings it is split for the test: a thread's stack and its heap are two each, and
/// what the work itself maps comes besides.
const MAPPINGS: usize = 16;
const PAGE: usize = 4096;
/// More than the thread-local variables of a plugin.
const THREAD_LOCAL_BYTES: usize = 1024;

/// Fails where the kernel does not map that many bytes, or allows too few mappings besides
/// (`vm.max_map_count`), and while much of the reserve of [`ReservedAllocator`](crate::ReservedAllocator) is in use.
/// What another thread takes between this and their use is not there any more: `bytes` should leave room for it.
///
/// The allocator is not asked what it still has: jemalloc 5.3 reads through a null pointer where
/// it can map nothing for a thread's first sample.
///
/// # Errors
/// ENOMEM, or what else mmap(2) gives.
pub fn require_memory(bytes: usize) -> io::Result<()> {
    if is_scarce() {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: mmap(2): a new mapping, at an address that the kernel chooses.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // Every second page gets another access, so that each is a mapping.
    let mut odd = (1..MAPPINGS.min(bytes / PAGE)).step_by(2);
    let refused = odd.find(|page| {
        let page = mapped.wrapping_byte_add(page * PAGE);
        // SAFETY: mprotect(2): a page of the mapping just made, which nothing refers to.
        unsafe { libc::mprotect(page, PAGE, libc::PROT_READ) != 0 }
    });
    let error = refused.map(|_| io::Error::last_os_error());
    // SAFETY: as above.
    unsafe { libc::munmap(mapped, bytes) };
    error.map_or(Ok(()), Err)
}

thread_local! {
    static ANY: Cell<u8> = const { Cell::new(0) };
}

/// Has the loader allocate this library's thread-local variables for the calling thread, if the program's allocator has
/// a block for them: the loader does so when the first of them is used, and ends the process where it gets none.
///
/// To the compiler the address of such a variable is a constant that it may ask for earlier than it is needed. What
/// uses one after this call is a function that is not inlined beside it.
#[must_use]
pub fn allocate_thread_locals() -> bool {
    // SAFETY: malloc(3) has no conditions.
    let block = black_box(unsafe { libc::malloc(THREAD_LOCAL_BYTES) });
    // SAFETY: free(3): null, or the block just allocated.
    unsafe { libc::free(block) };
    if !block.is_null() {
        use_thread_local();
    }
    !block.is_null()
}

/// A variable that is only written is none in an optimized library.
#[inline(never)]
fn use_thread_local() {
    ANY.with(|any| {
        black_box(any);
    });
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

    /// Takes mappings until only that many are left, then asks.
    fn refused_with(left: usize) -> bool {
        let count = || {
            std::fs::read_to_string("/proc/self/maps")
                .unwrap()
                .lines()
                .count()
        };
        let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
        let most: usize = most.trim().parse().unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: mmap(2): a new mapping, at an address that the kernel chooses.
        let area = unsafe { libc::mmap(ptr::null_mut(), 2 * most * PAGE, access, flags, -1, 0) };
        // The kernel's own page is no mapping of the process.
        let pairs = (most - left - (count() - 1)) / 2;
        for pair in 0..pairs {
            let page = area.wrapping_byte_add((2 * pair + 1) * PAGE);
            // SAFETY: mprotect(2): a page of the area, which nothing refers to.
            let split = unsafe { libc::mprotect(page, PAGE, libc::PROT_READ) };
            assert_eq!(split, 0, "{pair} of {pairs}");
        }
        require_memory(1 << 20).is_err()
    }

    #[test]
    fn too_few_mappings_are_refused() {
        let in_child = |left| {
            // SAFETY: fork(2): the other threads of this test hold no lock but the allocator's, which
            // glibc makes ready for the child.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: _exit(2) takes a number.
                unsafe { libc::_exit(i32::from(refused_with(left))) };
            }
            let mut status = 0;
            // SAFETY: waitpid(2): a child of this process, and room for a number.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status));
            libc::WEXITSTATUS(status) == 1
        };
        assert!(in_child(4));
        assert!(!in_child(40));
    }
}
