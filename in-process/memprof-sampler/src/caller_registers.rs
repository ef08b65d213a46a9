//! Registers with which the walk of this thread's stack starts.
#![expect(unsafe_code, reason = "instructions that copy registers")]

use core::arch::asm;

use memprof_unwind::{Registers, SavedRegisters};

/// Returns the registers with which a stack walk starts: those of the caller, into which this function is inlined.
#[inline(always)]
pub(crate) fn caller_registers() -> (Registers, SavedRegisters) {
    let (pc, sp, bp);
    let mut saved: SavedRegisters = [0; 5];
    // SAFETY: the instructions copy registers to this function's variables.
    unsafe {
        asm!(
            "mov [{saved}], rbx",
            "mov [{saved} + 8], r12",
            "mov [{saved} + 16], r13",
            "mov [{saved} + 24], r14",
            "mov [{saved} + 32], r15",
            "lea {pc}, [rip]",
            "mov {sp}, rsp",
            "mov {bp}, rbp",
            saved = in(reg) saved.as_mut_ptr(),
            pc = out(reg) pc,
            sp = out(reg) sp,
            bp = out(reg) bp,
            options(nostack, preserves_flags),
        );
    }
    (Registers { pc, sp, bp }, saved)
}
