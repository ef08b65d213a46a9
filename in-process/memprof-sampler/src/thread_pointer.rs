//! The pointer by which a thread is known here.
#![expect(unsafe_code, reason = "the thread pointer")]

use core::arch::asm;

use crate::address_hash::mix_fast;

/// What tells this thread from the others: the address of its control block (`%fs:0`, x86-64 ABI,
/// "Thread-Local Storage").
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: every thread of a C library has it, and only reads it here.
    unsafe { asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

/// A hash of a thread pointer, in so many bits.
#[inline(always)]
pub(crate) fn hash_of(thread: usize, bits: u32) -> usize {
    // Control blocks lie at multiples of 64.
    mix_fast(thread as u64 >> 6, bits)
}
