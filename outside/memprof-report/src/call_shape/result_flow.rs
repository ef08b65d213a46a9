//! Use of a call's result in its function: paths on which it is returned.

use std::collections::HashSet;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpKind, Register,
};

use super::written_registers::written_registers;

/// Most instructions that are followed after a call, on all paths together.
const MAX_STEPS: usize = 400;

/// Most stack slots in which a path may keep the result.
const MAX_SLOTS: usize = 8;

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
    /// Returns whether a general register, or a part of it, holds the result. False for other registers.
    fn has_register(&self, register: Register) -> bool {
        register_bit(register).is_some_and(|bit| self.registers & bit != 0)
    }

    /// Records whether a general register holds the result. Ignores other registers.
    fn set_register(&mut self, register: Register, holds: bool) {
        let Some(bit) = register_bit(register) else {
            return;
        };
        match holds {
            true => self.registers |= bit,
            false => self.registers &= !bit,
        }
    }

    /// Returns the stack slot of a memory operand: its base register and its displacement. For rsp, the displacement
    /// counts from rsp's value at the call. `None` for memory that is not addressed by rsp or rbp alone.
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

/// Bit of a general register in [`Holders::registers`]. A part of a register, such as eax, has the bit of the whole
/// register, rax. `None` for other registers.
fn register_bit(register: Register) -> Option<u16> {
    let full = register.full_register();
    (full.is_gpr64()).then(|| 1 << full.number())
}

/// Code of one function, in which the result of a call is followed.
pub(super) struct ResultFlow<'c> {
    code: &'c [u8],
    start: u64,
    steps: usize,
}

impl<'c> ResultFlow<'c> {
    /// Prepares to follow the result of one call through `code`, the machine code of a function that starts at the
    /// address `start`.
    pub(super) fn new(code: &'c [u8], start: u64) -> Self {
        Self {
            code,
            start,
            steps: 0,
        }
    }

    /// Returns whether, on some path, the function returns the result of the call that ends at `return_address`.
    /// Follows at most [`MAX_STEPS`] instructions, on all paths together: a return beyond them is not found.
    pub(super) fn returns_result_of(mut self, return_address: u64) -> bool {
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

    /// Follows the code at `address` to the next branch or return. `holders` are the places of the result at `address`.
    /// Returns the branches, or whether the function returns the result. The path is lost if no place holds the result
    /// any more, the code cannot be followed, or [`MAX_STEPS`] instructions were followed.
    ///
    /// A called function is assumed to return its first argument, as memset does. So a jump out of the function, with
    /// the result as the first argument, counts as a return of the result. A branch that is taken only if the result is
    /// null is not followed: on that path there is no block to return.
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
                    // memset, memcpy and strcpy return their first argument, and compilers rely on that.
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
                    return match self.is_in_function(target) {
                        true => PathEnd::Branches(vec![(target, holders)]),
                        // A tail call, e.g. of memset, may return its first argument.
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
                    // The branch on which the result is null is not followed.
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
            update_holders(&instruction, &mut holders, info);
        }
        PathEnd::Lost
    }

    /// Returns whether an address is in the code of the function.
    fn is_in_function(&self, address: u64) -> bool {
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

/// Returns whether an instruction compares the result with null. `holders` are the places of the result.
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

/// Updates `holders`, the places of the result, for an instruction without a branch. At most [`MAX_SLOTS`] stack slots
/// are tracked. If the result is stored outside of the stack, all places are forgotten: the function keeps the block,
/// even if the block's address is still in rax at the return.
fn update_holders(
    instruction: &Instruction,
    holders: &mut Holders,
    info: &mut InstructionInfoFactory,
) {
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
                // A function that returns nothing may still have the address in rax after it stored the block.
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
        // `leave` frees the stack frame, with its slots.
        true => holders.slots.clear(),
        false => {
            holders.rsp = holders
                .rsp
                .wrapping_add(i64::from(instruction.stack_pointer_increment()))
                .wrapping_add(rsp_change(instruction));
        }
    }
}

/// Bytes by which an `add` or `sub` of a constant changes rsp; 0 for other instructions, also for pushes and pops,
/// which `stack_pointer_increment` counts.
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
