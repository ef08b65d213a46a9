//! Memory from the kernel, outside of every allocator.
#![expect(unsafe_code, reason = "mappings")]

use core::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Zeros, of which only what is touched becomes resident. None where the kernel refuses.
///
/// `T` must be valid when all its bytes are 0.
pub(crate) fn zeroed<T>(count: usize) -> Option<*mut T> {
    let bytes = count.checked_mul(size_of::<T>())?;
    // SAFETY: mmap(2): a fresh mapping at a place of the kernel's choice.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    mapped.ok().map(<*mut _>::cast)
}

/// Makes a mapping of [`zeroed`] zero again, and gives its pages back to the kernel.
///
/// # Safety
/// `start` and `count` are a mapping of [`zeroed`], and nobody uses it meanwhile.
pub(crate) unsafe fn zero<T>(start: *mut T, count: usize) {
    // SAFETY: promised by the caller, who misses nothing.
    if !unsafe { give_back(start, count) } {
        // SAFETY: the whole mapping, which the caller says is not in use.
        unsafe { start.write_bytes(0, count) };
    }
}

/// Has a mapping of [`zeroed`] read as zeros again, if the kernel has its pages back. None of it is unmapped.
///
/// # Safety
/// `start` and `count` are such a mapping, and nobody misses what it held.
pub(crate) unsafe fn give_back<T>(start: *mut T, count: usize) -> bool {
    let bytes = count * size_of::<T>();
    // SAFETY: madvise(2): a private anonymous mapping reads as zeros afterwards.
    unsafe { rustix::mm::madvise(start.cast(), bytes, Advice::LinuxDontNeed) }.is_ok()
}

/// Unmaps a mapping of [`zeroed`].
///
/// # Safety
/// As [`zero`]; and nobody uses it afterwards.
pub(crate) unsafe fn unmap<T>(start: *mut T, count: usize) {
    // SAFETY: munmap(2): promised by the caller. It fails only for what is no mapping.
    let unmapped = unsafe { rustix::mm::munmap(start.cast(), count * size_of::<T>()) };
    debug_assert!(unmapped.is_ok());
}
