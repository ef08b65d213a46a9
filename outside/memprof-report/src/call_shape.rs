//! Use of a call's result in its function, and origins of the call's arguments, read from x86-64 code. A wrapper of
//! malloc returns the block that malloc gave, and gets the size from its caller.

mod result_flow;
mod written_registers;

use std::collections::HashSet;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Mnemonic, OpKind, Register,
};

use result_flow::ResultFlow;
use written_registers::{may_write_argument, written_registers};

/// Shape of a call in a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallShape {
    /// Address of the function in its file, as linked.
    pub(crate) function: u64,
    /// Whether the function is little more than the call. False if its code was not read.
    pub(crate) is_short: bool,
    /// Whether the function returns the call's result, on some path on which the result is not null and not stored.
    pub(crate) returns_result: bool,
    /// Origins of the first two arguments.
    pub(crate) arguments: [Argument; 2],
    /// Whether many places of the file call the function. Counted only for one without a symbol that returns the result
    /// and is not short; else false.
    pub(crate) has_many_calls: bool,
}

/// Origin of an argument of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// Its register is not written before the call: it is passed on from the caller, or not used.
    Unwritten,
    Constant,
    Computed,
}

impl CallShape {
    /// Longest function whose code is worth reading, in bytes. Wrappers are short.
    pub(crate) const MAX_BYTES: u64 = 2048;

    /// Longest function that is little more than a call and the check of its result, in bytes.
    const SHORT_BYTES: usize = 96;

    /// Longest function, in bytes, that calls at most the allocator and an error handler: it has a free list, or takes
    /// blocks from a larger one.
    const POOL_BYTES: usize = 256;

    /// Reads the shape of the call that ends at `return_address`: where its arguments come from, and whether its result
    /// is returned. `code` is the whole x86-64 code of the function that makes the call, which starts at the address
    /// `start`; empty if it was not read. If no call ends at `return_address`, the shape says that the arguments are
    /// computed and the result is not returned.
    pub(crate) fn read(code: &[u8], start: u64, return_address: u64) -> Self {
        let unread = Self {
            function: start,
            is_short: match code.len() {
                0 => false,
                1..=Self::SHORT_BYTES => true,
                len => len <= Self::POOL_BYTES && count_called_functions(code, start) <= 2,
            },
            returns_result: false,
            arguments: [Argument::Computed; 2],
            has_many_calls: false,
        };
        let Some(arguments) = argument_origins(code, start, return_address) else {
            return unread;
        };
        Self {
            arguments,
            returns_result: ResultFlow::new(code, start).returns_result_of(return_address),
            ..unread
        }
    }
}

/// Number of different functions that `code` calls; it starts at the address `start`. Indirect calls through memory are
/// distinguished by the displacement of the operand; all calls through registers count as one.
fn count_called_functions(code: &[u8], start: u64) -> usize {
    let instructions = Decoder::with_ip(64, code, start, DecoderOptions::NONE).into_iter();
    let called = instructions.filter_map(|instruction| match instruction.flow_control() {
        FlowControl::Call => Some(instruction.near_branch_target()),
        FlowControl::IndirectCall => Some(instruction.memory_displacement64()),
        _ => None,
    });
    called.collect::<HashSet<u64>>().len()
}

/// Origins of the first two arguments of the call that ends at `return_address`: the last writes to their registers
/// before it, in the order of addresses. Only a `mov` of an immediate value writes a constant, or an `xor` of a
/// register with itself. An earlier call may overwrite both registers: after it, the first counts as computed, because
/// each allocation function has a first argument, and the second as not written, because the function may have no
/// second. `None` if no call ends there.
fn argument_origins(code: &[u8], start: u64, return_address: u64) -> Option<[Argument; 2]> {
    let mut arguments = [Argument::Unwritten; 2];
    let mut info = InstructionInfoFactory::new();
    for instruction in Decoder::with_ip(64, code, start, DecoderOptions::NONE).into_iter() {
        if instruction.next_ip() == return_address {
            let is_call = matches!(
                instruction.flow_control(),
                FlowControl::Call | FlowControl::IndirectCall
            );
            return is_call.then_some(arguments);
        }
        if instruction.next_ip() > return_address {
            return None;
        }
        if matches!(
            instruction.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        ) {
            arguments = [Argument::Computed, Argument::Unwritten];
        }
        let is_constant = match instruction.mnemonic() {
            Mnemonic::Mov => matches!(
                instruction.op1_kind(),
                OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64
            ),
            Mnemonic::Xor => instruction.op0_register() == instruction.op1_register(),
            _ => false,
        };
        if !may_write_argument(&instruction) {
            continue;
        }
        for register in written_registers(&mut info, &instruction) {
            let index = match register {
                Register::RDI => 0,
                Register::RSI => 1,
                _ => continue,
            };
            // No size is 0: a first argument that is 0 is a null pointer, as of `realloc(NULL, size)`.
            let is_null = index == 0 && instruction.mnemonic() == Mnemonic::Xor;
            arguments[index] = match is_constant && !is_null {
                true => Argument::Constant,
                false => Argument::Computed,
            };
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Argument, CallShape};

    /// Reads the first call in `code`, which starts at 0x1000.
    fn shape(code: &[u8]) -> (bool, [Argument; 2]) {
        let call = code.iter().position(|byte| *byte == 0xe8).expect("a call");
        let shape = CallShape::read(code, 0x1000, 0x1000 + call as u64 + 5);
        (shape.returns_result, shape.arguments)
    }

    const CALL: [u8; 5] = [0xe8, 0, 0x10, 0, 0];

    fn code(before: &[u8], after: &[u8]) -> Vec<u8> {
        [before, &CALL, after].concat()
    }

    #[test]
    fn returned_result_is_followed() {
        let passed_on = [Argument::Unwritten; 2];
        let check = |after: &[u8], expected| {
            assert_eq!(
                shape(&code(&[], after)),
                (expected, passed_on),
                "{after:x?}"
            );
        };
        // add rsp, 8; ret
        check(&[0x48, 0x83, 0xc4, 8, 0xc3], true);
        // mov [rbp-8], rax; mov rax, [rbp-8]; leave; ret
        check(
            &[0x48, 0x89, 0x45, 0xf8, 0x48, 0x8b, 0x45, 0xf8, 0xc9, 0xc3],
            true,
        );
        // mov rbx, rax; call; mov rax, rbx; pop rbx; ret
        check(
            &[
                0x48, 0x89, 0xc3, 0xe8, 0, 0, 0, 0, 0x48, 0x89, 0xd8, 0x5b, 0xc3,
            ],
            true,
        );
        // test rax, rax; je +1; ret; call
        check(&[0x48, 0x85, 0xc0, 0x74, 1, 0xc3, 0xe8, 0, 0, 0, 0], true);
        // mov rdi, rax; jmp to another function
        check(&[0x48, 0x89, 0xc7, 0xe9, 0, 0x10, 0, 0], true);
        // mov [rip], rax; xor eax, eax; ret
        check(&[0x48, 0x89, 0x05, 0, 0, 0, 0, 0x31, 0xc0, 0xc3], false);
        // test rax, rax; je +9; mov [rip], rax; xor eax, eax; ret: null is returned, a block is not.
        check(
            &[
                0x48, 0x85, 0xc0, 0x74, 9, 0x48, 0x89, 0x05, 0, 0, 0, 0, 0x31, 0xc0, 0xc3,
            ],
            false,
        );
        // mov [rip], rax; add rsp, 8; ret: a function without a result leaves it in rax.
        check(
            &[0x48, 0x89, 0x05, 0, 0, 0, 0, 0x48, 0x83, 0xc4, 8, 0xc3],
            false,
        );
        // mov qword [rax], 0; ret: it is written to, not stored.
        check(&[0x48, 0xc7, 0, 0, 0, 0, 0, 0xc3], true);
        // jmp to itself
        check(&[0xeb, 0xfe], false);
        check(&[], false);
        assert!(!CallShape::read(&[], 0x1000, 0x1005).returns_result);
    }

    #[test]
    fn function_that_calls_little_else_is_short() {
        let nops = |count| vec![0x90; count];
        let check = |code: Vec<u8>, expected| {
            let shape = CallShape::read(&code, 0x1000, 0x1005);
            assert_eq!(shape.is_short, expected, "{} bytes", code.len());
        };
        let other = |target: u8| [0xe8, 0, target, 0, 0];
        check(code(&[], &nops(80)), true);
        check(code(&[], &nops(200)), true);
        check(code(&other(1), &nops(200)), true);
        check(code(&[other(1), other(2)].concat(), &nops(60)), true);
        check(code(&[other(1), other(2)].concat(), &nops(200)), false);
        check(code(&[], &nops(300)), false);
        // The code of a longer function is not read.
        check(Vec::new(), false);
    }

    #[test]
    fn arguments_are_constant_or_not() {
        let check = |before: &[u8], expected| {
            assert_eq!(shape(&code(before, &[0xc3])).1, expected, "{before:x?}");
        };
        use Argument::{Computed, Constant, Unwritten};
        // mov edi, 1024
        check(&[0xbf, 0, 4, 0, 0], [Constant, Unwritten]);
        // xor edi, edi; xor esi, esi
        check(&[0x31, 0xff, 0x31, 0xf6], [Computed, Constant]);
        // xor edi, esi
        check(&[0x31, 0xf7], [Computed, Unwritten]);
        // mov esi, edi; mov edi, 1
        check(&[0x89, 0xfe, 0xbf, 1, 0, 0, 0], [Constant, Computed]);
        // lea rdi, [rdi+1]
        check(&[0x48, 0x8d, 0x7f, 1], [Computed, Unwritten]);
    }

    #[test]
    fn arguments_of_earlier_call_are_not_those_of_later() {
        let check = |between: &[u8], expected| {
            // mov esi, edi; call
            let code = [&[0x89, 0xfe], &CALL[..], between, &CALL, &[0xc3]].concat();
            let end = 0x1000 + code.len() as u64 - 1;
            let shape = CallShape::read(&code, 0x1000, end);
            assert_eq!(shape.arguments, expected, "{between:x?}");
        };
        use Argument::{Computed, Constant, Unwritten};
        check(&[], [Computed, Unwritten]);
        // mov edi, 48
        check(&[0xbf, 48, 0, 0, 0], [Constant, Unwritten]);
        // mov esi, ebx; mov edi, 1
        check(&[0x89, 0xde, 0xbf, 1, 0, 0, 0], [Constant, Computed]);
    }
}
