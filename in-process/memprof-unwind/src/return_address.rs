//! Tests whether a word of the stack can be a return address.
#![expect(unsafe_code, reason = "code bytes of this process")]

use crate::stack_memory::{is_readable, page_of};

/// Length in bytes of the longest call without a prefix: opcode, `ModRM`, SIB, 32 bits of displacement.
const MAX_CALL: usize = 7;

/// Number of bits in a user address.
const ADDRESS_BITS: u32 = 47;

/// Returns whether the bytes before `address` are readable and end in a call.
pub(crate) fn is_after_call(address: usize) -> bool {
    let Some(start) = address.checked_sub(MAX_CALL) else {
        return false;
    };
    let last = address.wrapping_sub(1);
    if address >> ADDRESS_BITS != 0
        || !is_readable(start)
        || page_of(last) != page_of(start) && !is_readable(last)
    {
        return false;
    }
    // SAFETY: `is_readable`: the kernel has just read both pages. Code that is on this thread's stack stays mapped.
    ends_in_call(unsafe { &*(start as *const [u8; MAX_CALL]) })
}

/// Returns the function that the call before `address` names. `None` if the call is indirect. `address` must follow a
/// call.
pub(crate) fn called_function(address: usize) -> Option<usize> {
    const LENGTH: usize = 5;
    let start = address.checked_sub(LENGTH)?;
    // SAFETY: `is_after_call` read seven bytes before `address`.
    let [0xE8, distance @ ..] = (unsafe { *(start as *const [u8; LENGTH]) }) else {
        return None;
    };
    let distance = i32::from_le_bytes(distance) as isize;
    Some(address.wrapping_add_signed(distance))
}

/// Returns whether a function begins with a jump through a slot, like an entry of a procedure linkage table. False if
/// its code cannot be read.
pub(crate) fn is_jump_through_slot(function: usize) -> bool {
    const LENGTH: usize = 8;
    const ENDBR64: &[u8] = &[0xF3, 0x0F, 0x1E, 0xFA];
    const BND: &[u8] = &[0xF2];
    const JMP_THROUGH_SLOT: &[u8] = &[0xFF, 0x25];
    let last = function.wrapping_add(LENGTH - 1);
    if function >> ADDRESS_BITS != 0 || !is_readable(function) || !is_readable(last) {
        return false;
    }
    // SAFETY: `is_readable`: the kernel has just read both pages. The code stays mapped, because a call on this
    // thread's stack names it.
    let mut code: &[u8] = unsafe { &*(function as *const [u8; LENGTH]) };
    for prefix in [ENDBR64, BND] {
        code = code.strip_prefix(prefix).unwrap_or(code);
    }
    code.starts_with(JMP_THROUGH_SLOT)
}

/// Returns whether the bytes end in a call instruction (Intel SDM, volume 2, CALL): `E8` with 32 bits, or `FF /2` with
/// a register or memory operand.
fn ends_in_call(code: &[u8; MAX_CALL]) -> bool {
    let mut ends = (2..=MAX_CALL).filter_map(|len| code.get(MAX_CALL - len..));
    ends.any(|call| match call {
        [0xE8, rest @ ..] => rest.len() == 4,
        [0xFF, operand @ ..] => call_operand_len(operand) == Some(operand.len()),
        _ => false,
    })
}

/// Returns the length of the operand of an indirect call in bytes, including its `ModRM` byte. `None` if the bytes
/// belong to another instruction or end too early.
fn call_operand_len(operand: &[u8]) -> Option<usize> {
    /// Opcode extension of an indirect near call, in the middle bits of the `ModRM` byte.
    const CALL: u8 = 2;
    let modrm = *operand.first()?;
    if modrm >> 3 & 7 != CALL {
        return None;
    }
    let (mode, base) = (modrm >> 6, modrm & 7);
    // Base 4 means that a SIB byte follows, which contains the base.
    let has_sib = mode != 3 && base == 4;
    let base = if has_sib { operand.get(1)? & 7 } else { base };
    let displacement = match (mode, base) {
        (1, _) => 1,
        // Mode 0 with base 5 means a 32-bit displacement without a base register.
        (2, _) | (0, 5) => 4,
        _ => 0,
    };
    Some(1 + usize::from(has_sib) + displacement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_of_each_form_is_recognised() {
        let check = |call: &[u8], expected: bool| {
            // No operation.
            let mut code = [0x90; MAX_CALL];
            code[MAX_CALL - call.len()..].copy_from_slice(call);
            assert_eq!(ends_in_call(&code), expected, "{call:02x?}");
        };
        let calls: [(&str, &[u8]); 12] = [
            ("call rel32", &[0xE8, 1, 2, 3, 4]),
            ("call rax", &[0xFF, 0xD0]),
            ("call r11", &[0x41, 0xFF, 0xD3]),
            ("call [rax]", &[0xFF, 0x10]),
            ("call [rax+rcx*8]", &[0xFF, 0x14, 0xC8]),
            ("call [rax+24]", &[0xFF, 0x50, 0x18]),
            ("call [rsp+8]", &[0xFF, 0x54, 0x24, 8]),
            ("call [rip+disp32]", &[0xFF, 0x15, 1, 2, 3, 4]),
            ("call [r13+256]", &[0x41, 0xFF, 0x95, 0, 1, 0, 0]),
            ("call [rsp+256]", &[0xFF, 0x94, 0x24, 0, 1, 0, 0]),
            ("call [rax*8+disp32]", &[0xFF, 0x14, 0xC5, 1, 2, 3, 4]),
            ("call [rbp]", &[0xFF, 0x55, 0]),
        ];
        for (_, call) in calls {
            check(call, true);
        }
        let others: [(&str, &[u8]); 5] = [
            ("ret", &[0xC3]),
            ("jmp rel32", &[0xE9, 1, 2, 3, 4]),
            ("jmp rax", &[0xFF, 0xE0]),
            ("push [rax]", &[0xFF, 0x30]),
            (
                "three bytes of a displacement of four",
                &[0xFF, 0x15, 1, 2, 3],
            ),
        ];
        for (_, other) in others {
            check(other, false);
        }
    }

    #[test]
    fn called_function_is_that_of_a_direct_call() {
        // call +16; call rax; endbr64; bnd jmp *[rip]; jmp *[rip]; push rbp
        static CODE: [u8; 32] = [
            0xE8, 16, 0, 0, 0, 0x41, 0x41, 0x41, 0xFF, 0xD0, 0xF3, 0x0F, 0x1E, 0xFA, 0xF2, 0xFF,
            0x25, 0, 0, 0, 0, 0xFF, 0x25, 0, 0, 0, 0, 0x55, 0, 0, 0, 0,
        ];
        let start = CODE.as_ptr() as usize;
        assert_eq!(called_function(start + 5), Some(start + 21));
        assert_eq!(called_function(start + 10), None);
        assert!(is_jump_through_slot(start + 10));
        assert!(is_jump_through_slot(start + 21));
        assert!(!is_jump_through_slot(start));
        assert!(!is_jump_through_slot(0));
    }

    #[test]
    fn address_without_readable_code_is_rejected() {
        for address in [0, 1, 6, 7, 1 << ADDRESS_BITS, usize::MAX] {
            assert!(!is_after_call(address), "{address:#x}");
        }
    }
}
