//! Evaluates DWARF expressions (DWARF 5, 2.5) in call frame information.

use gimli::{EndianSlice, NativeEndian, Reader, Register, constants as op};

use crate::register_file::RegisterFile;
use crate::walk::StackReader;

/// Maximum depth of an expression's stack. Compilers and hand-written code need four values.
const MAX_DEPTH: usize = 16;
/// Maximum number of operations to run, because an expression may contain loops.
const MAX_OPERATIONS: usize = 128;

struct ValueStack {
    words: [usize; MAX_DEPTH],
    len: usize,
}

impl ValueStack {
    /// Pushes a value. `None` if the stack is full.
    fn push(&mut self, value: usize) -> Option<()> {
        *self.words.get_mut(self.len)? = value;
        self.len += 1;
        Some(())
    }

    /// Pops the top value. `None` if the stack is empty.
    fn pop(&mut self) -> Option<usize> {
        self.len = self.len.checked_sub(1)?;
        self.words.get(self.len).copied()
    }

    /// Returns the value that is `depth` values below the top. `None` if there are too few values.
    fn peek(&self, depth: usize) -> Option<usize> {
        let index = self.len.checked_sub(depth)?.checked_sub(1)?;
        self.words.get(index).copied()
    }
}

/// Returns the value of an expression: the top of the stack after its last operation. Pushes `initial` first, if given.
/// `None` if the expression is invalid, has an unsupported operation, needs an unknown register or unreadable memory,
/// or exceeds a limit ([`MAX_DEPTH`] or [`MAX_OPERATIONS`]).
pub(crate) fn evaluate_expression(
    bytes: &[u8],
    initial: Option<usize>,
    registers: &RegisterFile,
    memory: &mut impl StackReader,
) -> Option<usize> {
    let mut values = ValueStack {
        words: [0; MAX_DEPTH],
        len: 0,
    };
    if let Some(initial) = initial {
        values.push(initial)?;
    }
    let whole = EndianSlice::new(bytes, NativeEndian);
    let mut rest = whole;
    for _ in 0..MAX_OPERATIONS {
        let Ok(code) = rest.read_u8() else {
            return values.pop();
        };
        match gimli::DwOp(code) {
            op::DW_OP_bra | op::DW_OP_skip => {
                let distance = isize::from(rest.read_i16().ok()?);
                let is_taken = code == op::DW_OP_skip.0 || values.pop()? != 0;
                if is_taken {
                    let position = rest.offset_from(whole).checked_add_signed(distance)?;
                    rest = whole;
                    rest.skip(position).ok()?;
                }
            }
            operation => run_operation(operation, &mut rest, &mut values, registers, memory)?,
        }
    }
    None
}

/// Runs one operation other than a jump, and takes its operands from `rest`. `None` if the operation is invalid or
/// unsupported, needs an unknown register or unreadable memory, or if the stack of values is full or too short.
fn run_operation(
    operation: gimli::DwOp,
    rest: &mut EndianSlice<'_, NativeEndian>,
    values: &mut ValueStack,
    registers: &RegisterFile,
    memory: &mut impl StackReader,
) -> Option<()> {
    let value = match operation {
        op::DW_OP_nop => return Some(()),
        op::DW_OP_drop => return values.pop().map(drop),
        op::DW_OP_swap => {
            let (top, second) = (values.pop()?, values.pop()?);
            values.push(top)?;
            second
        }
        op::DW_OP_dup => values.peek(0)?,
        op::DW_OP_over => values.peek(1)?,
        op::DW_OP_pick => values.peek(rest.read_u8().ok()?.into())?,
        op::DW_OP_deref => memory.read_word(values.pop()?)?,
        op::DW_OP_addr | op::DW_OP_const8u | op::DW_OP_const8s => rest.read_u64().ok()? as usize,
        op::DW_OP_const1u => rest.read_u8().ok()?.into(),
        op::DW_OP_const1s => rest.read_i8().ok()? as usize,
        op::DW_OP_const2u => rest.read_u16().ok()?.into(),
        op::DW_OP_const2s => rest.read_i16().ok()? as usize,
        op::DW_OP_const4u => rest.read_u32().ok()? as usize,
        op::DW_OP_const4s => rest.read_i32().ok()? as usize,
        op::DW_OP_constu => rest.read_uleb128().ok()? as usize,
        op::DW_OP_consts => rest.read_sleb128().ok()? as usize,
        op::DW_OP_plus_uconst => {
            let value = rest.read_uleb128().ok()? as usize;
            values.pop()?.wrapping_add(value)
        }
        op::DW_OP_neg => values.pop()?.wrapping_neg(),
        op::DW_OP_not => !values.pop()?,
        op::DW_OP_bregx => {
            let register = Register(rest.read_uleb128().ok()?.try_into().ok()?);
            let offset = rest.read_sleb128().ok()? as usize;
            registers.get(register)?.wrapping_add(offset)
        }
        // DW_OP_lit0 to DW_OP_lit31.
        gimli::DwOp(code @ 0x30..=0x4f) => usize::from(code - op::DW_OP_lit0.0),
        // DW_OP_breg0 to DW_OP_breg31.
        gimli::DwOp(code @ 0x70..=0x8f) => {
            let register = Register((code - op::DW_OP_breg0.0).into());
            let offset = rest.read_sleb128().ok()? as usize;
            registers.get(register)?.wrapping_add(offset)
        }
        operation => {
            let (right, left) = (values.pop()?, values.pop()?);
            calculate_binary_operation(operation, left, right)?
        }
    };
    values.push(value)
}

/// Returns the result of an operation with two operands. Comparisons are signed. `None` if the operation is
/// unsupported.
fn calculate_binary_operation(operation: gimli::DwOp, left: usize, right: usize) -> Option<usize> {
    let (signed_left, signed_right) = (left as isize, right as isize);
    let bits = u32::try_from(right).unwrap_or(u32::MAX);
    Some(match operation {
        op::DW_OP_plus => left.wrapping_add(right),
        op::DW_OP_minus => left.wrapping_sub(right),
        op::DW_OP_mul => left.wrapping_mul(right),
        op::DW_OP_and => left & right,
        op::DW_OP_or => left | right,
        op::DW_OP_xor => left ^ right,
        op::DW_OP_shl => left.checked_shl(bits).unwrap_or(0),
        op::DW_OP_shr => left.checked_shr(bits).unwrap_or(0),
        op::DW_OP_shra => (signed_left >> bits.min(usize::BITS - 1)) as usize,
        op::DW_OP_eq => usize::from(left == right),
        op::DW_OP_ne => usize::from(left != right),
        op::DW_OP_ge => usize::from(signed_left >= signed_right),
        op::DW_OP_gt => usize::from(signed_left > signed_right),
        op::DW_OP_le => usize::from(signed_left <= signed_right),
        op::DW_OP_lt => usize::from(signed_left < signed_right),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::Registers;

    /// The word at an address is twice the address.
    struct Doubles;

    impl StackReader for Doubles {
        fn read_word(&mut self, address: usize) -> Option<usize> {
            address.checked_mul(2)
        }
    }

    #[test]
    fn expressions_are_evaluated_as_dwarf_defines_them() {
        let registers = RegisterFile::from_all_registers(
            Registers {
                pc: 0x1000,
                sp: 0x8000,
                bp: 0x9000,
            },
            [0xB0, 12, 13, 14, 15],
        );
        let check = |bytes: &[u8], initial, expected: Option<usize>| {
            let found = evaluate_expression(bytes, initial, &registers, &mut Doubles);
            assert_eq!(found, expected, "{bytes:02x?}");
        };
        // OpenSSL's functions: breg7 (rsp) 40, deref, plus_uconst 8.
        check(
            &[0x77, 40, 0x06, 0x23, 8],
            None,
            Some(2 * (0x8000 + 40) + 8),
        );
        // breg3 (rbx) -16; breg6 (rbp) 0; breg0 (rax), which is unknown.
        check(&[0x73, 0x70], None, Some(0xA0));
        check(&[0x76, 0], None, Some(0x9000));
        check(&[0x70, 0], None, None);
        // bregx 12, 1.
        check(&[0x92, 12, 1], None, Some(13));
        // A procedure linkage table: rsp + 8 + ((rip & 15 >= 11) << 3).
        let plt = [0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22];
        check(&plt, None, Some(0x8008));
        // lit5, initial value below: minus, dup, mul, const1s -1, and.
        check(
            &[0x35, 0x1c, 0x12, 0x1e, 0x09, 0xff, 0x1a],
            Some(9),
            Some(16),
        );
        // A jump over lit1: lit7, skip 1, lit1.
        check(&[0x37, 0x2f, 1, 0, 0x31], None, Some(7));
        // bra not taken, then taken.
        check(&[0x30, 0x28, 1, 0, 0x31], None, Some(1));
        check(&[0x37, 0x31, 0x28, 1, 0, 0x31], None, Some(7));
        // An endless loop, an empty stack, a full one, bytes that are missing.
        check(&[0x2f, 0xfd, 0xff], None, None);
        check(&[0x06], None, None);
        check(&[0x31; 17], None, None);
        check(&[0x0a, 1], None, None);
        check(&[], None, None);
        check(&[], Some(3), Some(3));
        // Shifts by more bits than there are.
        check(&[0x31, 0x08, 64, 0x24], None, Some(0));
    }
}
