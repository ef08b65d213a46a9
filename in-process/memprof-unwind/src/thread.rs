//! Identifies the threads of this process.
#![expect(unsafe_code, reason = "the thread pointer")]

use core::arch::asm;

/// A thread, identified by the address of its control block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) control_block: usize,
}

/// Control blocks are aligned to 64 bytes.
const ALIGNMENT_BITS: u32 = 6;

impl Thread {
    /// Number of bits in an id: a user address with four-level paging, without the alignment bits.
    pub(crate) const ID_BITS: u32 = 48 - ALIGNMENT_BITS;

    /// Returns the calling thread, by the address of its control block.
    #[inline(always)]
    pub(crate) fn current() -> Self {
        let control_block;
        // SAFETY: ELF TLS for x86-64: every thread has a control block from its first instruction on. Its first word is
        // its own address.
        unsafe {
            asm!("mov {}, fs:0", out(reg) control_block, options(nostack, readonly, pure, preserves_flags));
        }
        Self { control_block }
    }

    /// Returns a number that is unique among running threads; never 0.
    #[inline(always)]
    pub(crate) fn id(self) -> u64 {
        (self.control_block >> ALIGNMENT_BITS) as u64
    }

    /// Returns the thread's index into a table of 2^`bits` elements. Several threads may have the same index.
    #[inline(always)]
    pub(crate) fn index(self, bits: u32) -> usize {
        let id = self.id();
        // Control blocks are often a power of two apart.
        let mixed = id ^ id >> 8 ^ id >> 17;
        mixed as usize & ((1 << bits) - 1)
    }
}
