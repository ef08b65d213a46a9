//! Heap of this program, which glibc does not shrink after a report was written.

#![expect(
    unsafe_code,
    reason = "mallopt(3) and malloc_trim(3) exist as C functions only"
)]

/// Least size of blocks that malloc maps, and unmaps when they are freed. Unless it is set, glibc raises it up to 32
/// MiB, so that a report's tables stay in the heap. At its initial 128 KiB, a report of 100 ms spent 8 of them in page
/// faults of tables that grew.
const MMAP_THRESHOLD: i32 = 4 << 20;

/// Makes malloc map all blocks from [`MMAP_THRESHOLD`] bytes, so that it unmaps them when they are freed.
pub(crate) fn make_malloc_map_large_blocks() {
    // SAFETY: any thread may call mallopt(3); if it fails, nothing changes.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD) };
}

/// Releases free pages of this program's heap to the kernel.
pub(crate) fn release_free_pages() {
    // SAFETY: any thread may call malloc_trim(3).
    unsafe { libc::malloc_trim(0) };
}
