//! This program's own heap, which glibc keeps after a report is made.

#![expect(
    unsafe_code,
    reason = "mallopt(3) and malloc_trim(3) are to be had as C functions alone"
)]

/// Blocks of this size are mapped, and unmapped when they are freed: 128 KiB, with which glibc begins.
/// It raises that to 32 MiB where it is not set, so that a report's tables stay in the heap.
const MAPPED: i32 = 128 << 10;

/// Lets no large block stay in the heap.
pub(crate) fn map_large_blocks() {
    // SAFETY: mallopt(3): any thread may set a parameter; a refusal changes nothing.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED) };
}

/// Gives the kernel the pages that hold nothing.
pub(crate) fn trim() {
    // SAFETY: malloc_trim(3): any thread may ask for it.
    unsafe { libc::malloc_trim(0) };
}
