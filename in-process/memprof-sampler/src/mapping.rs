//! Memory mapped from the kernel, outside every allocator.
#![expect(unsafe_code, reason = "mappings")]

use core::ptr;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// Maps `count` values of `T`, all zeros. Only touched pages become resident, even after mlockall(2). `None` if the
/// kernel has no memory, or the size overflows.
///
/// `T` must be valid when all its bytes are 0.
pub(crate) fn map_zeros<T>(count: usize) -> Option<*mut T> {
    let bytes = count.checked_mul(size_of::<T>())?;
    // SAFETY: mmap(2): a new mapping at an address that the kernel chooses. It has no access rights at first, because a
    // program that called mlockall(2) would otherwise make all of it resident.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            bytes,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    let mapped = mapped.ok()?;
    // The kernel refuses MADV_DONTNEED for locked pages, so the call shows whether mlockall(2) is in effect.
    // SAFETY: madvise(2) on a mapping that nothing refers to.
    let is_locked =
        unsafe { rustix::mm::madvise(mapped, bytes, Advice::LinuxDontNeed) } == Err(Errno::INVAL);
    if is_locked {
        // Locked pages cannot be released later, and count towards RLIMIT_MEMLOCK.
        // SAFETY: munlock(2) on a mapping that nothing refers to. If it fails, the mapping works locked.
        let _ = unsafe { rustix::mm::munlock(mapped, bytes) };
    }
    // SAFETY: mprotect(2) on a mapping that nothing refers to.
    let opened =
        unsafe { rustix::mm::mprotect(mapped, bytes, MprotectFlags::READ | MprotectFlags::WRITE) };
    if opened.is_err() {
        // SAFETY: munmap(2) of a mapping that nothing refers to.
        let _ = unsafe { rustix::mm::munmap(mapped, bytes) };
        return None;
    }
    Some(mapped.cast())
}

/// Zeroes a mapping of [`map_zeros`], and gives its pages back to the kernel if the kernel allows it.
///
/// # Safety
/// `start` and `count` are a mapping of [`map_zeros`], and no other thread uses it during the call.
pub(crate) unsafe fn zero_and_release<T>(start: *mut T, count: usize) {
    // SAFETY: the caller passes a mapping of `map_zeros` that is not in use and whose content is no longer needed.
    if !unsafe { release_pages(start, count) } {
        // SAFETY: the caller passes the whole mapping, which is not in use.
        unsafe { start.write_bytes(0, count) };
    }
}

/// Releases the pages of a mapping of [`map_zeros`] to the kernel. The memory stays mapped and reads as zeros. Returns
/// false, with nothing changed, if the kernel refuses, as it does for locked pages.
///
/// # Safety
/// `start` and `count` are a mapping of [`map_zeros`] whose content is no longer needed.
pub(crate) unsafe fn release_pages<T>(start: *mut T, count: usize) -> bool {
    let bytes = count * size_of::<T>();
    // SAFETY: madvise(2): a private anonymous mapping reads as zeros afterwards.
    unsafe { rustix::mm::madvise(start.cast(), bytes, Advice::LinuxDontNeed) }.is_ok()
}

/// Unmaps a mapping of [`map_zeros`]: returns both its memory and its addresses to the kernel.
///
/// # Safety
/// `start` and `count` are a mapping of [`map_zeros`], which no thread uses during the call or afterwards.
pub(crate) unsafe fn unmap<T>(start: *mut T, count: usize) {
    // SAFETY: munmap(2) of a mapping of `map_zeros`, which the caller no longer uses. It fails only for other
    // addresses.
    let unmapped = unsafe { rustix::mm::munmap(start.cast(), count * size_of::<T>()) };
    debug_assert!(unmapped.is_ok());
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    /// Returns the resident and the locked memory of this process (`VmRSS`, `VmLck`), in KiB.
    fn rss_and_locked() -> [u64; 2] {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        ["VmRSS:", "VmLck:"].map(|name| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap();
            line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
        })
    }

    #[test]
    fn mapping_after_mlockall_is_not_resident() {
        // SAFETY: fork(2): the child calls nothing that needs a lock which another thread could hold, except
        // the allocator's, which glibc releases in the child.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: mlockall(2) takes flags.
            let locked = unsafe { libc::mlockall(libc::MCL_FUTURE) };
            let before = rss_and_locked();
            let start: *mut u64 = map_zeros(1 << 20).unwrap();
            let after = rss_and_locked();
            let is_small = (0..2).all(|index| after[index] < before[index] + 1024);
            // SAFETY: `map_zeros` has just mapped it, and nothing uses it.
            let is_released = unsafe { release_pages(start, 1 << 20) };
            // SAFETY: _exit(2) takes a number.
            unsafe { libc::_exit(i32::from(locked != 0 || !is_small || !is_released)) };
        }
        let mut status = 0;
        // SAFETY: waitpid(2): a child of this process, and room for a number.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
