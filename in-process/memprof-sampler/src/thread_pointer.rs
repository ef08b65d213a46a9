//! Thread pointer, by which the tables identify threads.
#![expect(unsafe_code, reason = "the thread pointer")]

use core::arch::asm;

use crate::address_hash::hash_lower_half;

/// Returns the address of this thread's control block (`%fs:0`, x86-64 ABI, "Thread-Local Storage"), which is unique
/// among running threads.
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: every thread of a C library has a control block, which the instruction only reads.
    unsafe { asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

/// Returns the hash of a thread pointer, in `bits` bits.
#[inline(always)]
pub(crate) fn hash_thread_pointer(thread: usize, bits: u32) -> usize {
    // Control blocks are aligned to 64 bytes.
    hash_lower_half(thread as u64 >> 6, bits)
}
