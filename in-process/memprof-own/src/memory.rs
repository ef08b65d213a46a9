//! Checks for memory before it is needed, because Rust ends the process when an allocation fails.
#![expect(unsafe_code, reason = "mmap(2)")]

use std::cell::Cell;
use std::hint::black_box;
use std::io;
use std::ptr;

use crate::reserve::is_reserve_scarce;

/// Number of mappings that must be available: a thread's stack and heap take two each, and its work maps more.
const MAPPINGS: usize = 16;
const PAGE_BYTES: usize = 4096;
/// Upper bound of the size of a plugin's thread-local variables.
const THREAD_LOCAL_BYTES: usize = 1024;

/// Fails unless the kernel can map `bytes` in total and allows 16 more mappings (`vm.max_map_count`), or if half of the
/// reserve of [`ReservedAllocator`](crate::ReservedAllocator) is in use. Reserves nothing: other threads may use the
/// memory before the caller does, so `bytes` should include a margin.
///
/// Does not call the allocator, because jemalloc 5.3 reads through a null pointer if it cannot map memory for a
/// thread's first sample.
///
/// # Errors
/// ENOMEM if the reserve is scarce. Otherwise those of mmap(2) and mprotect(2).
pub fn require_memory(bytes: usize) -> io::Result<()> {
    require_mappings(bytes, MAPPINGS)
}

/// Fails unless the kernel can map `bytes` in total and allows `mappings` more mappings, or if the reserve is scarce.
/// Tries it with one mapping, which is split into pieces and then unmapped. Checks at most one mapping per 4 KiB of
/// `bytes`.
pub(crate) fn require_mappings(bytes: usize, mappings: usize) -> io::Result<()> {
    if is_reserve_scarce() {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: mmap(2) creates a mapping at an address that the kernel chooses.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // Every second page gets other access rights, so that the kernel splits the mapping at each page.
    let mut odd = (1..mappings.min(bytes / PAGE_BYTES)).step_by(2);
    let failed_page = odd.find(|page| {
        let page = mapped.wrapping_byte_add(page * PAGE_BYTES);
        // SAFETY: mprotect(2): a page of the new mapping, to which nothing refers.
        unsafe { libc::mprotect(page, PAGE_BYTES, libc::PROT_READ) != 0 }
    });
    let error = failed_page.map(|_| io::Error::last_os_error());
    // SAFETY: munmap(2): the new mapping, to which nothing refers.
    unsafe { libc::munmap(mapped, bytes) };
    error.map_or(Ok(()), Err)
}

thread_local! {
    static USED: Cell<u8> = const { Cell::new(0) };
}

/// Makes the loader allocate this library's thread-local variables for the calling thread, if the program's allocator
/// has a block for them. The loader would do so at their first use, and end the process if it got no memory. Returns
/// false if there is no memory.
///
/// Code that uses such a variable after this call must be in a function that is not inlined: the compiler treats the
/// variable's address as a constant, and may compute it early.
#[must_use]
pub fn allocate_thread_locals() -> bool {
    // SAFETY: malloc(3) has no preconditions.
    let block = black_box(unsafe { libc::malloc(THREAD_LOCAL_BYTES) });
    // SAFETY: free(3) accepts null, or the block just allocated.
    unsafe { libc::free(block) };
    if !block.is_null() {
        touch_thread_local();
    }
    !block.is_null()
}

/// Touches a thread-local variable, so that the loader allocates this library's block of them for the thread now.
/// `black_box` keeps the optimizer from removing the access.
#[inline(never)]
fn touch_thread_local() {
    USED.with(|variable| {
        black_box(variable);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_size_is_refused() {
        let error = require_memory(1 << 60).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
        require_memory(1 << 20).unwrap();
    }

    /// Adds mappings until the kernel allows only `remaining` more, then requires memory. Returns whether it was
    /// refused.
    fn is_refused_with(remaining: usize) -> bool {
        let count = || {
            std::fs::read_to_string("/proc/self/maps")
                .unwrap()
                .lines()
                .count()
        };
        let max = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
        let max: usize = max.trim().parse().unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: mmap(2) creates a mapping at an address that the kernel chooses.
        let area =
            unsafe { libc::mmap(ptr::null_mut(), 2 * max * PAGE_BYTES, access, flags, -1, 0) };
        // The kernel's page (vsyscall) is listed but is no mapping of the process.
        let pairs = (max - remaining - (count() - 1)) / 2;
        for pair in 0..pairs {
            let page = area.wrapping_byte_add((2 * pair + 1) * PAGE_BYTES);
            // SAFETY: mprotect(2): a page of the area, to which nothing refers.
            let split = unsafe { libc::mprotect(page, PAGE_BYTES, libc::PROT_READ) };
            assert_eq!(split, 0, "{pair} of {pairs}");
        }
        require_memory(1 << 20).is_err()
    }

    #[test]
    fn too_few_mappings_are_refused() {
        let is_refused_in_child = |remaining| {
            // SAFETY: fork(2): the other threads of this test hold no lock but the allocator's, which glibc resets in
            // the child.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: _exit(2) takes a number.
                unsafe { libc::_exit(i32::from(is_refused_with(remaining))) };
            }
            let mut status = 0;
            // SAFETY: waitpid(2) fills the status of a child of this process.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status));
            libc::WEXITSTATUS(status) == 1
        };
        assert!(is_refused_in_child(4));
        assert!(!is_refused_in_child(40));
    }
}
