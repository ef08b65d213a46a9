//! Registers that an instruction writes, read from its encoding.

use iced_x86::{Instruction, InstructionInfoFactory, OpAccess, OpKind, Register};

/// Returns whether an instruction may write rdi or rsi, the registers of the first two arguments: it names one of them,
/// if only to read it, or is a string instruction, which changes both. Far cheaper than [`written_registers`].
pub(super) fn may_write_argument(instruction: &Instruction) -> bool {
    let is_argument = |register: Register| {
        let full = register.full_register();
        full == Register::RDI || full == Register::RSI
    };
    instruction.is_string_instruction()
        || (0..instruction.op_count()).any(|operand| {
            instruction.op_kind(operand) == OpKind::Register
                && is_argument(instruction.op_register(operand))
        })
}

/// Registers that an instruction writes, also those that it writes only under a condition. For a part of a register,
/// such as eax, yields the whole register, rax. `info` is scratch memory.
pub(super) fn written_registers<'i>(
    info: &'i mut InstructionInfoFactory,
    instruction: &Instruction,
) -> impl Iterator<Item = Register> + 'i {
    let used = info.info(instruction).used_registers().iter();
    let written = used.filter(|used| {
        matches!(
            used.access(),
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        )
    });
    written.map(|used| used.register().full_register())
}
