//! The threads of this process.
#![expect(unsafe_code, reason = "the thread pointer")]

use core::arch::asm;

/// A thread, by its control block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) control_block: usize,
}

/// Control blocks lie at multiples of 64.
const ALIGNMENT_BITS: u32 = 6;

impl Thread {
    /// How many bits an id has: user addresses with four-level paging, without those that are 0.
    pub(crate) const ID_BITS: u32 = 48 - ALIGNMENT_BITS;

    /// The calling one.
    #[inline(always)]
    pub(crate) fn this() -> Self {
        let control_block;
        // SAFETY: ELF TLS for x86-64: every thread has one from its first instruction on, whose first word is its own
        // address.
        unsafe {
            asm!("mov {}, fs:0", out(reg) control_block, options(nostack, readonly, pure, preserves_flags));
        }
        Self { control_block }
    }

    /// What tells it from the threads that live at the same time; never 0.
    #[inline(always)]
    pub(crate) fn id(self) -> u64 {
        (self.control_block >> ALIGNMENT_BITS) as u64
    }

    /// A place for it, by so many bits.
    #[inline(always)]
    pub(crate) fn index(self, bits: u32) -> usize {
        let id = self.id();
        // Control blocks are often a power of two apart.
        let mixed = id ^ id >> 8 ^ id >> 17;
        mixed as usize & ((1 << bits) - 1)
    }
}
