//! Memory from the kernel, outside of every allocator.
#![expect(unsafe_code, reason = "mappings")]

use core::ptr;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// Zeros, of which only what is touched becomes resident, also after mlockall(2). None where the kernel refuses.
///
/// `T` must be valid when all its bytes are 0.
pub(crate) fn zeroed<T>(count: usize) -> Option<*mut T> {
    let bytes = count.checked_mul(size_of::<T>())?;
    // SAFETY: mmap(2): a fresh mapping at a place of the kernel's choice. Without access, none of it becomes
    // resident, even where the program has all of its memory locked.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            bytes,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    let mapped = mapped.ok()?;
    // SAFETY: madvise(2): a mapping that nothing refers to.
    let is_locked =
        unsafe { rustix::mm::madvise(mapped, bytes, Advice::LinuxDontNeed) } == Err(Errno::INVAL);
    if is_locked {
        // The pages could not be given back later, and count towards RLIMIT_MEMLOCK.
        // SAFETY: munlock(2): as above. Locked, it works as well.
        let _ = unsafe { rustix::mm::munlock(mapped, bytes) };
    }
    // SAFETY: mprotect(2): as above.
    let opened =
        unsafe { rustix::mm::mprotect(mapped, bytes, MprotectFlags::READ | MprotectFlags::WRITE) };
    if opened.is_err() {
        // SAFETY: munmap(2): as above.
        let _ = unsafe { rustix::mm::munmap(mapped, bytes) };
        return None;
    }
    Some(mapped.cast())
}

/// Makes a mapping of [`zeroed`] zero again, and gives its pages back to the kernel.
///
/// # Safety
/// `start` and `count` are a mapping of [`zeroed`], and nobody uses it meanwhile.
pub(crate) unsafe fn reset<T>(start: *mut T, count: usize) {
    // SAFETY: promised by the caller, who misses nothing.
    if !unsafe { release_pages(start, count) } {
        // SAFETY: the whole mapping, which the caller says is not in use.
        unsafe { start.write_bytes(0, count) };
    }
}

/// Has a mapping of [`zeroed`] read as zeros again, if the kernel has its pages back. None of it is unmapped.
///
/// # Safety
/// `start` and `count` are such a mapping, and nobody misses what it held.
pub(crate) unsafe fn release_pages<T>(start: *mut T, count: usize) -> bool {
    let bytes = count * size_of::<T>();
    // SAFETY: madvise(2): a private anonymous mapping reads as zeros afterwards.
    unsafe { rustix::mm::madvise(start.cast(), bytes, Advice::LinuxDontNeed) }.is_ok()
}

/// Unmaps a mapping of [`zeroed`].
///
/// # Safety
/// As [`reset`]; and nobody uses it afterwards.
pub(crate) unsafe fn unmap<T>(start: *mut T, count: usize) {
    // SAFETY: munmap(2): promised by the caller. It fails only for what is no mapping.
    let unmapped = unsafe { rustix::mm::munmap(start.cast(), count * size_of::<T>()) };
    debug_assert!(unmapped.is_ok());
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    /// `VmRSS` and `VmLck` of this process, in KiB.
    fn figures() -> [u64; 2] {
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
    fn mlockall_makes_nothing_resident_that_is_not_touched() {
        // SAFETY: fork(2): what the child calls needs no lock that another thread could hold, but the allocator's,
        // which glibc makes ready.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: mlockall(2) takes flags.
            let locked = unsafe { libc::mlockall(libc::MCL_FUTURE) };
            let before = figures();
            let start: *mut u64 = zeroed(1 << 20).unwrap();
            let after = figures();
            let is_small = (0..2).all(|at| after[at] < before[at] + 1024);
            // SAFETY: the mapping just made.
            let is_given_back = unsafe { release_pages(start, 1 << 20) };
            // SAFETY: _exit(2) takes a number.
            unsafe { libc::_exit(i32::from(locked != 0 || !is_small || !is_given_back)) };
        }
        let mut status = 0;
        // SAFETY: waitpid(2): a child of this process, and room for a number.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
