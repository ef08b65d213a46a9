//! An interpreter of seccomp filters: the classic BPF that seccomp(2) accepts (the kernel's `seccomp_check_filter`).

use libc::{
    BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_DIV, BPF_IMM, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT,
    BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX, BPF_LEN, BPF_LSH, BPF_MEM, BPF_MISC, BPF_MUL,
    BPF_NEG, BPF_OR, BPF_RET, BPF_RSH, BPF_ST, BPF_STX, BPF_SUB, BPF_TAX, BPF_TXA, BPF_W, BPF_X,
    BPF_XOR,
};

/// `AUDIT_ARCH_X86_64` of linux/audit.h.
const AUDIT_ARCH_X86_64: u32 = 0xC000_003E;

/// Size of `struct seccomp_data`, in bytes.
const DATA_SIZE: u32 = 64;

/// Opcode that loads a word of `struct seccomp_data`.
const LOAD_DATA: u32 = BPF_LD | BPF_W | BPF_ABS;

/// Offset of the instruction pointer in `struct seccomp_data`.
const INSTRUCTION_POINTER_OFFSET: u32 = 8;

/// One BPF instruction: `struct sock_filter` of linux/filter.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BpfInstruction {
    /// Opcode.
    pub code: u16,
    /// Instructions to skip if the condition of a jump holds.
    pub if_true: u8,
    /// Instructions to skip if it does not hold.
    pub if_false: u8,
    /// Constant, offset or length.
    pub operand: u32,
}

/// A system call, as a filter sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeccompData {
    /// Number of the call on x86-64.
    pub number: u32,
    /// Arguments. A filter cannot follow pointers.
    pub arguments: [u64; 6],
}

/// Result of a filter for a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterAction {
    /// The kernel ends the thread or its process.
    Killed,
    /// The thread gets a SIGSYS, which ends the process if it is blocked or not handled.
    Signal,
    /// The call fails with this errno, or with 0 pretends success.
    Error(u16),
    /// Another process decides (`seccomp_unotify(2)`).
    Supervised,
    /// The call is made.
    Allowed,
}

/// Reason why the result of a filter is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UndecidedFilter {
    /// The kernel accepts no such instruction.
    #[error("instruction {index} ({code:#x}) is none that seccomp takes")]
    Instruction {
        /// Number of the instruction, from 0.
        index: usize,
        /// Opcode: `BPF_*` of `linux/bpf_common.h`, combined.
        code: u16,
    },
    /// The filter checks the address that the call is made from, which is not known in advance.
    #[error("instruction {index} looks at where a call is made from")]
    InstructionPointer {
        /// Number of the instruction, from 0.
        index: usize,
    },
}

impl FilterAction {
    /// Converts the return value of a filter: `SECCOMP_RET_*` with its data.
    fn from_return_value(value: u32) -> Self {
        const MAX_ERRNO: u32 = 4095;
        match value & libc::SECCOMP_RET_ACTION_FULL {
            libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG => Self::Allowed,
            libc::SECCOMP_RET_ERRNO => {
                Self::Error((value & libc::SECCOMP_RET_DATA).min(MAX_ERRNO) as u16)
            }
            // The thread's only tracer is memprof, which does not set PTRACE_O_TRACESECCOMP: then the call fails with
            // ENOSYS.
            libc::SECCOMP_RET_TRACE => Self::Error(libc::ENOSYS as u16),
            libc::SECCOMP_RET_USER_NOTIF => Self::Supervised,
            libc::SECCOMP_RET_TRAP => Self::Signal,
            _ => Self::Killed,
        }
    }

    /// Returns whether the call may not be tried: the process is killed or gets a SIGSYS, or the call waits for a
    /// supervisor, which may never answer.
    pub fn is_harmful(self) -> bool {
        matches!(self, Self::Killed | Self::Signal | Self::Supervised)
    }
}

/// Evaluates all filters of a thread, which are in order, oldest first. The most severe result decides; of equally
/// severe ones, that of the newest filter.
///
/// # Errors
/// A filter has an invalid instruction, or checks the address of the call.
pub fn evaluate_filters(
    filters: &[Vec<BpfInstruction>],
    call: &SeccompData,
) -> Result<FilterAction, UndecidedFilter> {
    // As in the kernel, the lowest action as a signed number is the most severe.
    let severity = |value: u32| (value & libc::SECCOMP_RET_ACTION_FULL).cast_signed();
    let mut decided = libc::SECCOMP_RET_ALLOW;
    for filter in filters.iter().rev() {
        let value = run_filter(filter, call)?;
        if severity(value) < severity(decided) {
            decided = value;
        }
    }
    Ok(FilterAction::from_return_value(decided))
}

/// Runs one filter; returns its return value (`SECCOMP_RET_*` with its data). Fails as [`evaluate_filters`] does.
fn run_filter(filter: &[BpfInstruction], call: &SeccompData) -> Result<u32, UndecidedFilter> {
    let mut machine = BpfMachine::default();
    let mut index = 0;
    // Jumps only go forward, so the loop ends.
    while let Some(instruction) = filter.get(index) {
        // `& !4` matches both halves of the 64-bit pointer.
        if (instruction.code, instruction.operand & !4)
            == (LOAD_DATA as u16, INSTRUCTION_POINTER_OFFSET)
        {
            return Err(UndecidedFilter::InstructionPointer { index });
        }
        let done = machine.execute(instruction, call);
        match done.ok_or(UndecidedFilter::Instruction {
            index,
            code: instruction.code,
        })? {
            BpfStep::Return(value) => return Ok(value),
            BpfStep::Skip(count) => index += 1 + count as usize,
        }
    }
    // The kernel accepts no filter that does not end with a return.
    Err(UndecidedFilter::Instruction { index, code: 0 })
}

/// Effect of an instruction: the filter's return value, or the number of instructions to skip.
enum BpfStep {
    Return(u32),
    Skip(u32),
}

/// State of a running filter: accumulator, index register and sixteen words of memory.
#[derive(Default)]
struct BpfMachine {
    a: u32,
    x: u32,
    memory: [u32; 16],
}

impl BpfMachine {
    /// Executes one instruction; `None` if it is invalid for seccomp.
    fn execute(&mut self, instruction: &BpfInstruction, call: &SeccompData) -> Option<BpfStep> {
        let BpfInstruction { code, operand, .. } = *instruction;
        let code = u32::from(code);
        match code & 7 {
            BPF_LD => self.a = self.load_value(code, operand, call)?,
            BPF_LDX => self.x = self.load_value(code, operand, call)?,
            BPF_ST if code == BPF_ST => *self.memory.get_mut(operand as usize)? = self.a,
            BPF_STX if code == BPF_STX => *self.memory.get_mut(operand as usize)? = self.x,
            BPF_ALU => match self.arithmetic_result(code, operand)? {
                Some(result) => self.a = result,
                // The kernel ends the filter with 0 at a division by 0.
                None => return Some(BpfStep::Return(0)),
            },
            BPF_JMP => return self.skip_count(instruction).map(BpfStep::Skip),
            BPF_RET if code == BPF_RET | BPF_K => return Some(BpfStep::Return(operand)),
            BPF_RET if code == BPF_RET | BPF_A => return Some(BpfStep::Return(self.a)),
            BPF_MISC if code == BPF_MISC | BPF_TAX => self.x = self.a,
            BPF_MISC if code == BPF_MISC | BPF_TXA => self.a = self.x,
            _ => return None,
        }
        Some(BpfStep::Skip(0))
    }

    /// Returns the value that a load instruction reads: a word of the call's data, the data's size, the constant, or a
    /// word of the filter's memory. `None` for an instruction or offset that seccomp does not accept.
    fn load_value(&self, code: u32, operand: u32, call: &SeccompData) -> Option<u32> {
        match code & !7 {
            _ if code == LOAD_DATA => call.data_word(operand),
            mode if mode == BPF_W | BPF_LEN => Some(DATA_SIZE),
            BPF_IMM => Some(operand),
            BPF_MEM => self.memory.get(operand as usize).copied(),
            _ => None,
        }
    }

    /// Returns the result of an arithmetic instruction; the inner `None` is a division by 0, the outer one an invalid
    /// instruction.
    fn arithmetic_result(&self, code: u32, operand: u32) -> Option<Option<u32>> {
        let a = self.a;
        let other = self.second_operand(code, operand);
        Some(match code & 0xF0 {
            BPF_ADD => Some(a.wrapping_add(other)),
            BPF_SUB => Some(a.wrapping_sub(other)),
            BPF_MUL => Some(a.wrapping_mul(other)),
            BPF_DIV => a.checked_div(other),
            BPF_AND => Some(a & other),
            BPF_OR => Some(a | other),
            BPF_XOR => Some(a ^ other),
            // The processor uses the lowest five bits of the shift count.
            BPF_LSH => Some(a.wrapping_shl(other)),
            BPF_RSH => Some(a.wrapping_shr(other)),
            BPF_NEG if code == BPF_ALU | BPF_NEG => Some(a.wrapping_neg()),
            _ => return None,
        })
    }

    /// Returns the number of instructions that a jump skips; `None` for an invalid instruction.
    fn skip_count(&self, instruction: &BpfInstruction) -> Option<u32> {
        let code = u32::from(instruction.code);
        let other = self.second_operand(code, instruction.operand);
        let holds = match code & 0xF0 {
            BPF_JA if code == BPF_JMP | BPF_JA => return Some(instruction.operand),
            BPF_JEQ => self.a == other,
            BPF_JGT => self.a > other,
            BPF_JGE => self.a >= other,
            BPF_JSET => self.a & other != 0,
            _ => return None,
        };
        Some(u32::from(match holds {
            true => instruction.if_true,
            false => instruction.if_false,
        }))
    }

    /// Returns the second operand of an arithmetic or jump instruction: the index register or the constant.
    fn second_operand(&self, code: u32, operand: u32) -> u32 {
        if code & BPF_X != 0 { self.x } else { operand }
    }
}

impl SeccompData {
    /// Returns the word at an offset of `struct seccomp_data`: number, architecture, instruction pointer, arguments.
    /// `None` for the instruction pointer and an invalid offset.
    fn data_word(&self, offset: u32) -> Option<u32> {
        let half = |value: u64| match offset % 8 {
            0 => value as u32,
            _ => (value >> 32) as u32,
        };
        match offset {
            _ if !offset.is_multiple_of(4) || offset >= DATA_SIZE => None,
            0 => Some(self.number),
            4 => Some(AUDIT_ARCH_X86_64),
            INSTRUCTION_POINTER_OFFSET..16 => None,
            _ => Some(half(self.arguments[offset as usize / 8 - 2])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(code: u32, operand: u32) -> BpfInstruction {
        BpfInstruction {
            code: code as u16,
            operand,
            ..BpfInstruction::default()
        }
    }

    #[test]
    fn return_values_become_actions() {
        let check = |value, expected| {
            assert_eq!(
                FilterAction::from_return_value(value),
                expected,
                "{value:#x}"
            )
        };
        check(libc::SECCOMP_RET_ALLOW, FilterAction::Allowed);
        check(libc::SECCOMP_RET_LOG | 7, FilterAction::Allowed);
        check(libc::SECCOMP_RET_ERRNO | 38, FilterAction::Error(38));
        check(libc::SECCOMP_RET_ERRNO | 0xffff, FilterAction::Error(4095));
        check(libc::SECCOMP_RET_TRACE, FilterAction::Error(38));
        check(libc::SECCOMP_RET_USER_NOTIF, FilterAction::Supervised);
        check(libc::SECCOMP_RET_TRAP, FilterAction::Signal);
        check(libc::SECCOMP_RET_KILL_THREAD, FilterAction::Killed);
        check(libc::SECCOMP_RET_KILL_PROCESS, FilterAction::Killed);
        check(0x1234_0000, FilterAction::Killed);
    }

    #[test]
    fn words_of_seccomp_data_are_read() {
        let call = SeccompData {
            number: 42,
            arguments: [1, 0x2222_2222_3333_3333, 3, 4, 5, 0x6666_6666_7777_7777],
        };
        let check = |offset, expected| assert_eq!(call.data_word(offset), expected, "{offset}");
        check(0, Some(42));
        check(4, Some(AUDIT_ARCH_X86_64));
        check(12, None);
        check(16, Some(1));
        check(20, Some(0));
        check(24, Some(0x3333_3333));
        check(28, Some(0x2222_2222));
        check(56, Some(0x7777_7777));
        check(60, Some(0x6666_6666));
        check(64, None);
        check(2, None);
    }

    #[test]
    fn invalid_instructions_are_errors() {
        let call = SeccompData {
            number: 0,
            arguments: [0; 6],
        };
        let check = |instruction: BpfInstruction| {
            let filter = vec![instruction, plain(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW)];
            let code = instruction.code;
            let found = evaluate_filters(&[filter], &call);
            assert_eq!(
                found,
                Err(UndecidedFilter::Instruction { index: 0, code }),
                "{instruction:?}"
            );
        };
        // A byte, a word at an index, a packet's header, an offset beyond the data, the 17th word.
        check(plain(BPF_LD | libc::BPF_B | BPF_ABS, 0));
        check(plain(BPF_LD | BPF_W | libc::BPF_IND, 0));
        check(plain(BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0));
        check(plain(BPF_LD | BPF_W | BPF_ABS, 64));
        check(plain(BPF_LD | BPF_MEM, 16));
        check(plain(BPF_ALU | libc::BPF_MOD | BPF_K, 3));
        check(plain(BPF_RET | BPF_X, 0));
        check(plain(0xffff, 0));
        let endless = [plain(BPF_LD | BPF_IMM, 0)].to_vec();
        let end = UndecidedFilter::Instruction { index: 1, code: 0 };
        assert_eq!(evaluate_filters(&[endless], &call), Err(end));
        let filter = [plain(LOAD_DATA, 12)].to_vec();
        assert_eq!(
            evaluate_filters(&[filter], &call),
            Err(UndecidedFilter::InstructionPointer { index: 0 })
        );
        assert_eq!(evaluate_filters(&[], &call), Ok(FilterAction::Allowed));
    }
}
