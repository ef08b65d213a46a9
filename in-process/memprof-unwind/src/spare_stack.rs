//! A stack for deep calls of a walk, because the stack of its thread may be nearly used up.
#![expect(unsafe_code, reason = "a call on another stack")]

use core::arch::naked_asm;
use core::mem::MaybeUninit;

use crate::rule::PackedRule;
use crate::signals::BlockedSignals;

/// Size of [`SpareStack`] in bytes: twice what reading a rule needs.
const STACK_SIZE: usize = 8192;

/// A stack for the only deep call of a walk, which reads a rule.
#[repr(align(16))]
pub(crate) struct SpareStack([MaybeUninit<u8>; STACK_SIZE]);

impl SpareStack {
    pub(crate) const fn new() -> Self {
        Self([const { MaybeUninit::zeroed() }; STACK_SIZE])
    }

    /// Calls `read` on this stack, with `address` as its argument, and returns the rule whose bits `read` returns.
    /// Blocks signals during the call, because their handlers may need more stack. Moreover, the thread may be running
    /// on its alternate signal stack: from another stack, the kernel would start a handler at the top of the alternate
    /// one, and overwrite frames there. If signals cannot be blocked, the call runs on the current stack.
    pub(crate) fn call(&mut self, read: extern "C" fn(usize) -> u32, address: usize) -> PackedRule {
        let Some(_blocked) = BlockedSignals::block_all() else {
            return PackedRule::from_bits(read(address));
        };
        let end = self.0.as_mut_ptr_range().end;
        // SAFETY: `repr(align)` ensures the ABI's alignment, and only this workspace uses the stack.
        PackedRule::from_bits(unsafe { call_on_stack(address, read, end.cast()) })
    }
}

/// Calls `read(address)` on the stack that ends at `end`.
///
/// # Safety
/// `end` is aligned to 16 bytes, and is the end of a stack that is large enough for the function.
#[unsafe(naked)]
unsafe extern "C" fn call_on_stack(
    address: usize,
    read: extern "C" fn(usize) -> u32,
    end: *mut u8,
) -> u32 {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdx",
        "call rsi",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::sync::Mutex;

    use super::*;

    #[test]
    fn call_on_other_stack_restores_signal_mask() {
        extern "C" fn read(address: usize) -> u32 {
            let local = 0_u8;
            ((&raw const local) as usize).wrapping_sub(address) as u32
        }
        static STACK: Mutex<SpareStack> = Mutex::new(SpareStack::new());
        let mut stack = STACK.lock().unwrap();
        let start = stack.0.as_ptr() as usize;
        let offset = stack.call(read, start).bits() as usize;
        assert!((STACK_SIZE - 256..STACK_SIZE).contains(&offset), "{offset}");
        assert!(BlockedSignals::block_all().is_some_and(|blocked| !blocked.were_all_blocked()));
    }
}
