//! The programs of seccomp filters: classic BPF as far as seccomp(2) takes it (the kernel's
//! `seccomp_check_filter`).

use libc::{
    BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_DIV, BPF_IMM, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT,
    BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX, BPF_LEN, BPF_LSH, BPF_MEM, BPF_MISC, BPF_MUL,
    BPF_NEG, BPF_OR, BPF_RET, BPF_RSH, BPF_ST, BPF_STX, BPF_SUB, BPF_TAX, BPF_TXA, BPF_W, BPF_X,
    BPF_XOR,
};

/// `AUDIT_ARCH_X86_64` of linux/audit.h.
const ARCHITECTURE: u32 = 0xC000_003E;

/// The size of `struct seccomp_data`.
const LENGTH: u32 = 64;

/// Loads a word of it.
const DATA: u32 = BPF_LD | BPF_W | BPF_ABS;

/// Where in it the address of the call is.
const PLACE: u32 = 8;

/// One instruction: `struct sock_filter` of linux/filter.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BpfInstruction {
    /// What to do.
    pub code: u16,
    /// How many instructions a jump leaves out where its condition holds.
    pub if_true: u8,
    /// How many where it does not.
    pub if_false: u8,
    /// A constant, an offset, a length.
    pub operand: u32,
}

/// A system call, as a filter sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeccompData {
    /// Its number on x86-64.
    pub number: u32,
    /// Its arguments. A filter cannot look behind a pointer.
    pub arguments: [u64; 6],
}

/// What becomes of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterAction {
    /// The thread or its process ends.
    Killed,
    /// The thread gets a SIGSYS, which ends the process where it is blocked or not handled.
    Signal,
    /// The call fails, or with 0 pretends to have succeeded.
    Error(u16),
    /// Another process answers it.
    Supervised,
    /// It is made.
    Allowed,
}

/// Why it is not known what a filter answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UndecidedFilter {
    /// The kernel takes no such instruction.
    #[error("instruction {at} ({code:#x}) is none that seccomp takes")]
    Instruction {
        /// Its number, from 0.
        at: usize,
        /// `BPF_*` as `linux/bpf_common.h` has them, combined.
        code: u16,
    },
    /// It asks where a call is made from, which is not known before.
    #[error("instruction {at} looks at where a call is made from")]
    Place {
        /// Its number, from 0.
        at: usize,
    },
}

impl FilterAction {
    /// Of `SECCOMP_RET_*` and its data.
    fn of(value: u32) -> Self {
        const MAX_ERRNO: u32 = 4095;
        match value & libc::SECCOMP_RET_ACTION_FULL {
            libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG => Self::Allowed,
            libc::SECCOMP_RET_ERRNO => {
                Self::Error((value & libc::SECCOMP_RET_DATA).min(MAX_ERRNO) as u16)
            }
            // Nobody traces with PTRACE_O_TRACESECCOMP: else it could not be attached to.
            libc::SECCOMP_RET_TRACE => Self::Error(libc::ENOSYS as u16),
            libc::SECCOMP_RET_USER_NOTIF => Self::Supervised,
            libc::SECCOMP_RET_TRAP => Self::Signal,
            _ => Self::Killed,
        }
    }

    /// Whether the process may not live on.
    pub fn kills_process(self) -> bool {
        matches!(self, Self::Killed | Self::Signal)
    }
}

/// What all filters together answer: the most severe one decides, and among equals the newest. The
/// oldest comes first.
///
/// # Errors
/// An instruction is none of seccomp's.
pub fn evaluate(
    filters: &[Vec<BpfInstruction>],
    call: &SeccompData,
) -> Result<FilterAction, UndecidedFilter> {
    let severity = |value: u32| (value & libc::SECCOMP_RET_ACTION_FULL).cast_signed();
    let mut decided = libc::SECCOMP_RET_ALLOW;
    for filter in filters.iter().rev() {
        let value = run(filter, call)?;
        if severity(value) < severity(decided) {
            decided = value;
        }
    }
    Ok(FilterAction::of(decided))
}

/// What one filter returns.
fn run(filter: &[BpfInstruction], call: &SeccompData) -> Result<u32, UndecidedFilter> {
    let mut machine = BpfMachine::default();
    let mut at = 0;
    // Jumps lead forward only, so this ends.
    while let Some(instruction) = filter.get(at) {
        if (instruction.code, instruction.operand & !4) == (DATA as u16, PLACE) {
            return Err(UndecidedFilter::Place { at });
        }
        let done = machine.step(instruction, call);
        match done.ok_or(UndecidedFilter::Instruction {
            at,
            code: instruction.code,
        })? {
            BpfStep::Return(value) => return Ok(value),
            BpfStep::Skip(count) => at += 1 + count as usize,
        }
    }
    // The kernel takes no filter that does not end in a return.
    Err(UndecidedFilter::Instruction { at, code: 0 })
}

enum BpfStep {
    Return(u32),
    Skip(u32),
}

/// Two registers and sixteen words.
#[derive(Default)]
struct BpfMachine {
    a: u32,
    x: u32,
    memory: [u32; 16],
}

impl BpfMachine {
    fn step(&mut self, instruction: &BpfInstruction, call: &SeccompData) -> Option<BpfStep> {
        let BpfInstruction { code, operand, .. } = *instruction;
        let code = u32::from(code);
        match code & 7 {
            BPF_LD => self.a = self.load(code, operand, call)?,
            BPF_LDX => self.x = self.load(code, operand, call)?,
            BPF_ST if code == BPF_ST => *self.memory.get_mut(operand as usize)? = self.a,
            BPF_STX if code == BPF_STX => *self.memory.get_mut(operand as usize)? = self.x,
            BPF_ALU => match self.calculate(code, operand)? {
                Some(result) => self.a = result,
                // The kernel answers a division by 0 so.
                None => return Some(BpfStep::Return(0)),
            },
            BPF_JMP => return self.jump(instruction).map(BpfStep::Skip),
            BPF_RET if code == BPF_RET | BPF_K => return Some(BpfStep::Return(operand)),
            BPF_RET if code == BPF_RET | BPF_A => return Some(BpfStep::Return(self.a)),
            BPF_MISC if code == BPF_MISC | BPF_TAX => self.x = self.a,
            BPF_MISC if code == BPF_MISC | BPF_TXA => self.a = self.x,
            _ => return None,
        }
        Some(BpfStep::Skip(0))
    }

    fn load(&self, code: u32, operand: u32, call: &SeccompData) -> Option<u32> {
        match code & !7 {
            _ if code == DATA => call.word(operand),
            mode if mode == BPF_W | BPF_LEN => Some(LENGTH),
            BPF_IMM => Some(operand),
            BPF_MEM => self.memory.get(operand as usize).copied(),
            _ => None,
        }
    }

    /// The inner `None` is a division by 0.
    fn calculate(&self, code: u32, operand: u32) -> Option<Option<u32>> {
        let a = self.a;
        let other = self.source(code, operand);
        Some(match code & 0xF0 {
            BPF_ADD => Some(a.wrapping_add(other)),
            BPF_SUB => Some(a.wrapping_sub(other)),
            BPF_MUL => Some(a.wrapping_mul(other)),
            BPF_DIV => a.checked_div(other),
            BPF_AND => Some(a & other),
            BPF_OR => Some(a | other),
            BPF_XOR => Some(a ^ other),
            // The processor takes the lowest five bits of the count.
            BPF_LSH => Some(a.wrapping_shl(other)),
            BPF_RSH => Some(a.wrapping_shr(other)),
            BPF_NEG if code == BPF_ALU | BPF_NEG => Some(a.wrapping_neg()),
            _ => return None,
        })
    }

    fn jump(&self, instruction: &BpfInstruction) -> Option<u32> {
        let code = u32::from(instruction.code);
        let other = self.source(code, instruction.operand);
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

    fn source(&self, code: u32, operand: u32) -> u32 {
        if code & BPF_X != 0 { self.x } else { operand }
    }
}

impl SeccompData {
    /// The word at an offset of `struct seccomp_data`: number, architecture, the address of the call,
    /// arguments.
    fn word(&self, offset: u32) -> Option<u32> {
        let half = |value: u64| match offset % 8 {
            0 => value as u32,
            _ => (value >> 32) as u32,
        };
        match offset {
            _ if !offset.is_multiple_of(4) || offset >= LENGTH => None,
            0 => Some(self.number),
            4 => Some(ARCHITECTURE),
            PLACE..16 => None,
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
    fn what_becomes_of_a_call() {
        let check = |value, expected| assert_eq!(FilterAction::of(value), expected, "{value:#x}");
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
    fn words_of_a_call() {
        let call = SeccompData {
            number: 42,
            arguments: [1, 0x2222_2222_3333_3333, 3, 4, 5, 0x6666_6666_7777_7777],
        };
        let check = |offset, expected| assert_eq!(call.word(offset), expected, "{offset}");
        check(0, Some(42));
        check(4, Some(ARCHITECTURE));
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
    fn instructions_that_the_kernel_does_not_take() {
        let call = SeccompData {
            number: 0,
            arguments: [0; 6],
        };
        let check = |instruction: BpfInstruction| {
            let filter = vec![instruction, plain(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW)];
            let code = instruction.code;
            let found = evaluate(&[filter], &call);
            assert_eq!(
                found,
                Err(UndecidedFilter::Instruction { at: 0, code }),
                "{instruction:?}"
            );
        };
        // A byte, a word at an index, a packet's header, an address beyond the data, the 17th word.
        check(plain(BPF_LD | libc::BPF_B | BPF_ABS, 0));
        check(plain(BPF_LD | BPF_W | libc::BPF_IND, 0));
        check(plain(BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0));
        check(plain(BPF_LD | BPF_W | BPF_ABS, 64));
        check(plain(BPF_LD | BPF_MEM, 16));
        check(plain(BPF_ALU | libc::BPF_MOD | BPF_K, 3));
        check(plain(BPF_RET | BPF_X, 0));
        check(plain(0xffff, 0));
        let endless = [plain(BPF_LD | BPF_IMM, 0)].to_vec();
        let end = UndecidedFilter::Instruction { at: 1, code: 0 };
        assert_eq!(evaluate(&[endless], &call), Err(end));
        let place = [plain(DATA, 12)].to_vec();
        assert_eq!(
            evaluate(&[place], &call),
            Err(UndecidedFilter::Place { at: 0 })
        );
        assert_eq!(evaluate(&[], &call), Ok(FilterAction::Allowed));
    }
}
