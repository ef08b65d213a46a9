//! Use of a call's result in its function, and origins of the call's arguments, read from x86-64 code. A wrapper of
//! malloc returns the block that malloc gave, and gets the size from its caller.

use std::collections::HashSet;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};

/// Most instructions that are followed after a call, on all paths together.
const MAX_STEPS: usize = 400;

/// Most stack slots in which a path may keep the result.
const MAX_SLOTS: usize = 8;

/// Shape of a call in a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallShape {
    /// Address of the function in its file, as linked.
    pub(crate) function: u64,
    /// Whether the function is little more than the call.
    pub(crate) is_short: bool,
    /// Whether the function returns the call's result, on some path on which the result is not null and not stored.
    pub(crate) returns_result: bool,
    /// Origins of the first two arguments.
    pub(crate) arguments: [Argument; 2],
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

    /// Reads the shape of the call that ends at `return_address`, in a function whose code starts at `start`. A
    /// function whose code is empty, or not decoded, counts as returning another value.
    pub(crate) fn read(code: &[u8], start: u64, return_address: u64) -> Self {
        let unread = Self {
            function: start,
            is_short: code.len() <= Self::SHORT_BYTES
                || (code.len() <= Self::POOL_BYTES && count_called_functions(code, start) <= 2),
            returns_result: false,
            arguments: [Argument::Computed; 2],
        };
        let Some(arguments) = argument_origins(code, start, return_address) else {
            return unread;
        };
        Self {
            arguments,
            returns_result: ResultFlow::new(code, start).reaches_return(return_address),
            ..unread
        }
    }
}

/// Number of different functions that code calls. An indirect call counts by the address of the pointer.
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
/// before it, in the order of addresses. `None` if no call ends there.
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
            arguments = [Argument::Computed; 2];
        }
        let is_constant = instruction.mnemonic() == Mnemonic::Mov
            && matches!(
                instruction.op1_kind(),
                OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64
            );
        if !may_write_argument(&instruction) {
            continue;
        }
        for register in written_registers(&mut info, &instruction) {
            let index = match register {
                Register::RDI => 0,
                Register::RSI => 1,
                _ => continue,
            };
            arguments[index] = match is_constant {
                true => Argument::Constant,
                false => Argument::Computed,
            };
        }
    }
    None
}

/// Whether an instruction can write the register of one of the first two arguments: it names one, or is a string
/// instruction, which moves both. To ask that is far cheaper than to list all that it writes.
fn may_write_argument(instruction: &Instruction) -> bool {
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

/// Full registers that an instruction writes.
fn written_registers<'i>(
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

/// Registers that a call may change.
const CLOBBERED: [Register; 9] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
];

/// Places that hold the result of the call, on one path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Holders {
    /// A bit for each general register, by its number.
    registers: u16,
    /// Stack slots by base register and displacement, which for rsp counts from its value at the call.
    slots: Vec<(Register, i64)>,
    /// Change of rsp since the call.
    rsp: i64,
}

impl Holders {
    fn has_register(&self, register: Register) -> bool {
        bit_of(register).is_some_and(|bit| self.registers & bit != 0)
    }

    fn set_register(&mut self, register: Register, holds: bool) {
        let Some(bit) = bit_of(register) else { return };
        match holds {
            true => self.registers |= bit,
            false => self.registers &= !bit,
        }
    }

    /// Returns the stack slot of a memory operand. `None` for other memory.
    fn stack_slot(&self, instruction: &Instruction) -> Option<(Register, i64)> {
        let displacement = instruction.memory_displacement64() as i64;
        match (instruction.memory_base(), instruction.memory_index()) {
            (Register::RSP, Register::None) => {
                Some((Register::RSP, displacement.wrapping_add(self.rsp)))
            }
            (Register::RBP, Register::None) => Some((Register::RBP, displacement)),
            _ => None,
        }
    }
}

/// Bit of a 64-bit general register in a set. `None` for other registers.
fn bit_of(register: Register) -> Option<u16> {
    let full = register.full_register();
    (full.is_gpr64()).then(|| 1 << full.number())
}

/// Code of one function, in which the result of a call is followed.
struct ResultFlow<'c> {
    code: &'c [u8],
    start: u64,
    steps: usize,
}

impl<'c> ResultFlow<'c> {
    fn new(code: &'c [u8], start: u64) -> Self {
        Self {
            code,
            start,
            steps: 0,
        }
    }

    /// Returns whether some path from the call to the function's end returns the result.
    fn reaches_return(mut self, return_address: u64) -> bool {
        let mut first = Holders::default();
        first.set_register(Register::RAX, true);
        let mut pending = vec![(return_address, first)];
        let mut visited = HashSet::new();
        let mut info = InstructionInfoFactory::new();
        while let Some((address, holders)) = pending.pop() {
            if !visited.insert((address, holders.clone())) {
                continue;
            }
            match self.follow_to_branch(address, holders, &mut info) {
                PathEnd::Returned => return true,
                PathEnd::Lost => {}
                PathEnd::Branches(branches) => pending.extend(branches),
            }
        }
        false
    }

    /// Follows the code at `address` to the next branch or return.
    fn follow_to_branch(
        &mut self,
        address: u64,
        mut holders: Holders,
        info: &mut InstructionInfoFactory,
    ) -> PathEnd {
        let Some(code) = address
            .checked_sub(self.start)
            .and_then(|offset| self.code.get(offset as usize..))
        else {
            return PathEnd::Lost;
        };
        let mut tests_result = false;
        for instruction in Decoder::with_ip(64, code, address, DecoderOptions::NONE).into_iter() {
            self.steps += 1;
            let has_holder = holders.registers != 0 || !holders.slots.is_empty();
            if self.steps > MAX_STEPS || instruction.is_invalid() || !has_holder {
                return PathEnd::Lost;
            }
            match instruction.flow_control() {
                FlowControl::Next => {}
                FlowControl::Return => {
                    return match holders.has_register(Register::RAX) {
                        true => PathEnd::Returned,
                        false => PathEnd::Lost,
                    };
                }
                FlowControl::Call | FlowControl::IndirectCall => {
                    // memset, memcpy and strcpy return their first argument, which compilers know.
                    let first = holders.has_register(Register::RDI);
                    CLOBBERED
                        .iter()
                        .for_each(|&register| holders.set_register(register, false));
                    holders.set_register(Register::RAX, first);
                    tests_result = false;
                    continue;
                }
                FlowControl::UnconditionalBranch => {
                    let target = instruction.near_branch_target();
                    return match self.contains(target) {
                        true => PathEnd::Branches(vec![(target, holders)]),
                        // A tail call, as of memset.
                        false if holders.has_register(Register::RDI) => PathEnd::Returned,
                        false => PathEnd::Lost,
                    };
                }
                FlowControl::ConditionalBranch => {
                    let mut branches = Vec::new();
                    let is_null_taken = instruction.code() == Code::Je_rel8_64
                        || instruction.code() == Code::Je_rel32_64;
                    let is_null_next = instruction.code() == Code::Jne_rel8_64
                        || instruction.code() == Code::Jne_rel32_64;
                    if !(tests_result && is_null_taken) {
                        branches.push((instruction.near_branch_target(), holders.clone()));
                    }
                    if !(tests_result && is_null_next) {
                        branches.push((instruction.next_ip(), holders));
                    }
                    return PathEnd::Branches(branches);
                }
                _ => return PathEnd::Lost,
            }
            tests_result = is_null_test(&instruction, &holders);
            track_move(&instruction, &mut holders, info);
        }
        PathEnd::Lost
    }

    fn contains(&self, address: u64) -> bool {
        address >= self.start && address - self.start < self.code.len() as u64
    }
}

/// End of a path without branches.
enum PathEnd {
    Returned,
    /// The path returns another value, or is not followed.
    Lost,
    Branches(Vec<(u64, Holders)>),
}

/// Returns whether an instruction compares the result with null.
fn is_null_test(instruction: &Instruction, holders: &Holders) -> bool {
    let tests = match instruction.mnemonic() {
        Mnemonic::Test => instruction.op0_register() == instruction.op1_register(),
        Mnemonic::Cmp => instruction.try_immediate(1).is_ok_and(|value| value == 0),
        _ => false,
    };
    match instruction.op0_kind() {
        OpKind::Register => tests && holders.has_register(instruction.op0_register()),
        OpKind::Memory => {
            tests
                && holders
                    .stack_slot(instruction)
                    .is_some_and(|slot| holders.slots.contains(&slot))
        }
        _ => false,
    }
}

/// Updates `holders`, the places of the result, for an instruction without a branch.
fn track_move(instruction: &Instruction, holders: &mut Holders, info: &mut InstructionInfoFactory) {
    let is_move = instruction.mnemonic() == Mnemonic::Mov && instruction.op_count() == 2;
    let moved = is_move.then(|| (instruction.op0_kind(), instruction.op1_kind()));
    let target = instruction.op0_register();
    match moved {
        Some((OpKind::Register, OpKind::Register)) if target.is_gpr64() => {
            let holds = holders.has_register(instruction.op1_register());
            holders.set_register(target, holds);
            return;
        }
        Some((OpKind::Register, OpKind::Memory)) if target.is_gpr64() => {
            let slot = holders.stack_slot(instruction);
            holders.set_register(
                target,
                slot.is_some_and(|slot| holders.slots.contains(&slot)),
            );
            return;
        }
        Some((OpKind::Memory, _)) => {
            let is_result = instruction.op1_kind() == OpKind::Register
                && holders.has_register(instruction.op1_register());
            let Some(slot) = holders.stack_slot(instruction) else {
                // Functions without a result leave the block in rax too, after they stored it.
                if is_result {
                    *holders = Holders::default();
                }
                return;
            };
            holders.slots.retain(|known| *known != slot);
            if is_result && holders.slots.len() < MAX_SLOTS {
                holders.slots.push(slot);
            }
            return;
        }
        _ => {}
    }
    let is_reset = instruction.mnemonic() == Mnemonic::Leave;
    for register in written_registers(info, instruction) {
        if register == Register::RSP {
            continue;
        }
        holders.set_register(register, false);
    }
    match is_reset {
        true => holders.slots.clear(),
        false => {
            holders.rsp = holders
                .rsp
                .wrapping_add(i64::from(instruction.stack_pointer_increment()))
                .wrapping_add(rsp_change(instruction));
        }
    }
}

/// Change of rsp by `add` and `sub`; 0 for others.
fn rsp_change(instruction: &Instruction) -> i64 {
    let change = match instruction.try_immediate(1) {
        Ok(change) if instruction.op0_register() == Register::RSP => change as i64,
        _ => return 0,
    };
    match instruction.mnemonic() {
        Mnemonic::Add => change,
        Mnemonic::Sub => change.wrapping_neg(),
        _ => 0,
    }
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
    }

    #[test]
    fn arguments_are_constant_or_not() {
        let check = |before: &[u8], expected| {
            assert_eq!(shape(&code(before, &[0xc3])).1, expected, "{before:x?}");
        };
        use Argument::{Computed, Constant, Unwritten};
        // mov edi, 1024
        check(&[0xbf, 0, 4, 0, 0], [Constant, Unwritten]);
        // mov esi, edi; mov edi, 1
        check(&[0x89, 0xfe, 0xbf, 1, 0, 0, 0], [Constant, Computed]);
        // lea rdi, [rdi+1]
        check(&[0x48, 0x8d, 0x7f, 1], [Computed, Unwritten]);
    }
}
