//! Decides from a function's bytes alone whether its first instructions can be relocated and replaced by a jump.

use std::fmt;
use std::ops::Range;

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, FlowControl, Instruction,
    InstructionBlock, Register,
};
use memprof_sampler::EntryRow;

/// Page size: a write by the kernel is not atomic across pages.
const PAGE_SIZE: u64 = 4096;
/// Bytes of an `endbr64`, which stays in its place: an indirect call must arrive at one (Intel CET).
const ENDBR_SIZE: u64 = 4;

/// The instructions at a function's start that a jump replaces.
#[derive(Clone, Debug)]
pub(crate) struct Prologue {
    instructions: Vec<Instruction>,
    /// Address range of these instructions, behind an `endbr64`.
    pub(crate) range: Range<u64>,
}

/// A prologue's instructions, encoded for another address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RelocatedPrologue {
    pub(crate) bytes: Vec<u8>,
    /// Original and relocated address of each instruction.
    pub(crate) addresses: Vec<(u64, u64)>,
}

/// Reason why a function's prologue cannot be relocated. The text is a predicate whose subject is the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotRelocatable {
    Short(u64),
    TwoPages,
    NoCode(u64),
    Calls(u64),
    Entered(u64),
    Computed(u64),
    Far,
}

impl fmt::Display for NotRelocatable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(length) => write!(f, "has {length} bytes, and a jump takes 5"),
            Self::TwoPages => f.write_str("begins at the end of a page"),
            Self::NoCode(address) => write!(f, "has bytes at {address:#x} that are no instruction"),
            Self::Calls(address) => {
                write!(
                    f,
                    "calls or returns within its first bytes, at {address:#x}"
                )
            }
            Self::Entered(address) => {
                write!(
                    f,
                    "is entered behind its first byte by a jump at {address:#x}"
                )
            }
            Self::Computed(address) => write!(f, "has a computed jump at {address:#x}"),
            Self::Far => f.write_str("uses memory that a jump cannot reach"),
        }
    }
}

/// Decodes the 64-bit instructions in `code`, the bytes of a function at `address`. Bytes that are no instruction give
/// an invalid one.
pub(crate) fn decode_instructions(code: &[u8], address: u64) -> impl Iterator<Item = Instruction> {
    Decoder::with_ip(64, code, address, DecoderOptions::NONE).into_iter()
}

/// Returns the target of a direct jump or call; `None` for other instructions.
pub(crate) fn branch_target(instruction: &Instruction) -> Option<u64> {
    let is_near = matches!(
        instruction.op0_kind(),
        iced_x86::OpKind::NearBranch16
            | iced_x86::OpKind::NearBranch32
            | iced_x86::OpKind::NearBranch64
    );
    (instruction.op_count() > 0 && is_near).then(|| instruction.near_branch_target())
}

impl Prologue {
    /// Returns the prologue of a function, whose bytes are `code` at `address`. Checks the whole function: no jump
    /// may lead into the prologue.
    ///
    /// # Errors
    /// The reason why the prologue cannot be relocated.
    pub(crate) fn new(code: &[u8], address: u64) -> Result<Self, NotRelocatable> {
        let all: Vec<Instruction> = decode_instructions(code, address).collect();
        if let Some(invalid) = all.iter().find(|each| each.is_invalid()) {
            return Err(NotRelocatable::NoCode(invalid.ip()));
        }
        let mut all = all.as_slice();
        let mut address = address;
        if let [first, rest @ ..] = all
            && first.code() == Code::Endbr64
        {
            (all, address) = (rest, address + ENDBR_SIZE);
        }
        if address % PAGE_SIZE > PAGE_SIZE - EntryRow::JUMP_SIZE as u64 {
            return Err(NotRelocatable::TwoPages);
        }
        let needed = address + EntryRow::JUMP_SIZE as u64;
        let count = all.iter().position(|each| each.next_ip() >= needed);
        let count = count.ok_or(NotRelocatable::Short(code.len() as u64))? + 1;
        let (first, rest) = all.split_at(count);
        let range = address..first[count - 1].next_ip();
        for (index, each) in first.iter().enumerate() {
            let is_last = index + 1 == count;
            match each.flow_control() {
                FlowControl::Next | FlowControl::ConditionalBranch => {}
                FlowControl::UnconditionalBranch if is_last => {}
                _ => return Err(NotRelocatable::Calls(each.ip())),
            }
            // `loop` and `jrcxz` reach 127 bytes only, and have no longer form.
            let is_jump = branch_target(each).is_some();
            if is_jump && !each.is_jcc_short_or_near() && !each.is_jmp_short_or_near() {
                return Err(NotRelocatable::Calls(each.ip()));
            }
        }
        for each in first.iter().chain(rest) {
            if each.flow_control() == FlowControl::IndirectBranch && !has_fixed_operand(each) {
                return Err(NotRelocatable::Computed(each.ip()));
            }
            // A jump to the first byte is rejected too: it would be sampled as another call.
            let is_inside = branch_target(each).is_some_and(|target| range.contains(&target));
            let is_call_of_itself = each.is_call_near() && branch_target(each) == Some(range.start);
            if is_inside && !is_call_of_itself {
                return Err(NotRelocatable::Entered(each.ip()));
            }
        }
        Ok(Self {
            instructions: first.to_vec(),
            range,
        })
    }

    /// Encodes the instructions for `address`, followed by a jump to the rest of the function.
    ///
    /// # Errors
    /// `Far`: an operand cannot be reached from `address`.
    pub(crate) fn relocate_to(&self, address: u64) -> Result<RelocatedPrologue, NotRelocatable> {
        let mut instructions = self.instructions.clone();
        // The address of the jump itself stays 0. If it were `range.end`, which is also the jump's target, the encoder
        // would take the jump for its own target.
        let back = Instruction::with_branch(Code::Jmp_rel32_64, self.range.end);
        let back = back.map_err(|_| NotRelocatable::Far)?;
        instructions.push(back);
        let block = InstructionBlock::new(&instructions, address);
        let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let encoded = BlockEncoder::encode(64, block, options).map_err(|_| NotRelocatable::Far)?;
        let offsets = encoded.new_instruction_offsets.iter();
        let addresses = self.instructions.iter().zip(offsets);
        let addresses = addresses.map(|(each, offset)| match *offset {
            // An instruction that was rewritten as several has no single offset.
            u32::MAX => None,
            offset => Some((each.ip(), address + u64::from(offset))),
        });
        Ok(RelocatedPrologue {
            addresses: addresses
                .collect::<Option<_>>()
                .ok_or(NotRelocatable::Far)?,
            bytes: encoded.code_buffer,
        })
    }
}

/// Returns the unconditional jump, direct or through a slot, with which a function begins after its `endbr64`. `None`
/// if it begins with another instruction.
pub(crate) fn initial_jump(code: &[u8], address: u64) -> Option<Instruction> {
    let first = decode_instructions(code, address).find(|each| each.code() != Code::Endbr64)?;
    let is_fixed = first.is_jmp_near_indirect() && has_fixed_operand(&first);
    (first.is_jmp_short_or_near() || is_fixed).then_some(first)
}

/// Returns whether a jump reads its target from a fixed address, as through a GOT slot, and not from a jump table.
pub(crate) fn has_fixed_operand(jump: &Instruction) -> bool {
    jump.is_ip_rel_memory_operand() && jump.memory_index() == Register::None
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x40_1000;

    /// Checks the size of the prologue, or the reason why it cannot be relocated.
    fn check(code: &[u8], address: u64, expected: Result<u64, NotRelocatable>) {
        let size = Prologue::new(code, address).map(|each| each.range.end - each.range.start);
        assert_eq!(size, expected, "{code:02x?}");
    }

    /// Several `ret`, as the rest of a function.
    const REST: [u8; 8] = [0xc3; 8];

    #[test]
    fn relocatable_prologues_are_accepted() {
        let with_rest = |first: &[u8]| [first, &REST].concat();
        // push %r15; push %r14; push %r13
        check(&with_rest(&[0x41, 0x57, 0x41, 0x56, 0x41, 0x55]), AT, Ok(6));
        // mov 0x9bd9(%rip),%rax; test %rax,%rax
        check(
            &with_rest(&[0x48, 0x8b, 5, 0xd9, 0x9b, 0, 0, 0x48, 0x85, 0xc0]),
            AT,
            Ok(7),
        );
        // endbr64, which stays; mov %fs:0,%rax
        let tls = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x64, 0x48, 0x8b, 4, 0x25, 0, 0, 0, 0,
        ];
        check(&with_rest(&tls), AT, Ok(9));
        let prologue = Prologue::new(&with_rest(&tls), AT).unwrap();
        assert_eq!(prologue.range, AT + 4..AT + 13);
        // cmp $16,%rdi; ja +0x10
        check(&with_rest(&[0x48, 0x83, 0xff, 16, 0x77, 0x10]), AT, Ok(6));
        // jmp +0x100, and nothing else
        check(&[0xe9, 0, 1, 0, 0], AT, Ok(5));
        // xor %ecx,%ecx; jmp +0x100
        check(&[0x31, 0xc9, 0xe9, 0, 1, 0, 0], AT, Ok(7));
        // push %rbx ×5; call itself
        check(
            &[0x53, 0x53, 0x53, 0x53, 0x53, 0xe8, 0xf6, 0xff, 0xff, 0xff],
            AT,
            Ok(5),
        );
        // push ×5; jmp *0x100(%rip): a call through a slot
        check(
            &[0x53, 0x53, 0x53, 0x53, 0x53, 0xff, 0x25, 0, 1, 0, 0],
            AT,
            Ok(5),
        );
    }

    #[test]
    fn other_prologues_are_rejected() {
        // push %rbx; pop %rbx; ret
        check(&[0x53, 0x5b, 0xc3], AT, Err(NotRelocatable::Short(3)));
        check(&[], AT, Err(NotRelocatable::Short(0)));
        // push ×5, whose second part lies on the next page
        check(&[0x53; 8], AT + 0xffc, Err(NotRelocatable::TwoPages));
        check(&[0x53; 8], AT + 0xffb, Ok(5));
        // push ×5; an invalid byte of 64-bit code
        check(
            &[0x53, 0x53, 0x53, 0x53, 0x53, 0x06, 0xc3],
            AT,
            Err(NotRelocatable::NoCode(AT + 5)),
        );
        // call +0; ret
        check(
            &[0xe8, 0, 0, 0, 0, 0xc3],
            AT,
            Err(NotRelocatable::Calls(AT)),
        );
        // ret within
        check(
            &[0x53, 0xc3, 0x53, 0x53, 0x53, 0x53],
            AT,
            Err(NotRelocatable::Calls(AT + 1)),
        );
        // syscall
        check(
            &[0x0f, 0x05, 0x53, 0x53, 0x53, 0xc3],
            AT,
            Err(NotRelocatable::Calls(AT)),
        );
        // jmp +1 first, and something behind it
        check(
            &[0xeb, 1, 0x53, 0x53, 0x53, 0x53, 0xc3],
            AT,
            Err(NotRelocatable::Calls(AT)),
        );
        // jrcxz +2; push ×3; ret
        check(
            &[0xe3, 2, 0x53, 0x53, 0x53, 0xc3],
            AT,
            Err(NotRelocatable::Calls(AT)),
        );
        // push ×6; jmp back to the third, and to the first
        let pushes = [0x53; 6];
        check(
            &[&pushes[..], &[0xeb, 0xfa]].concat(),
            AT,
            Err(NotRelocatable::Entered(AT + 6)),
        );
        check(
            &[&pushes[..], &[0xeb, 0xf8]].concat(),
            AT,
            Err(NotRelocatable::Entered(AT + 6)),
        );
        // push ×6; jne behind what is moved: allowed
        check(&[&pushes[..], &[0x75, 0xfd, 0xc3]].concat(), AT, Ok(5));
        // push ×5; notrack jmp *%rax: a switch
        check(
            &[0x53, 0x53, 0x53, 0x53, 0x53, 0x3e, 0xff, 0xe0],
            AT,
            Err(NotRelocatable::Computed(AT + 5)),
        );
        // push ×5; jmp *0x10(,%rax,8)
        let table = [
            0x53, 0x53, 0x53, 0x53, 0x53, 0xff, 0x24, 0xc5, 0x10, 0, 0, 0,
        ];
        check(&table, AT, Err(NotRelocatable::Computed(AT + 5)));
    }

    #[test]
    fn relocated_instructions_have_the_same_targets() {
        let relocate =
            |code: &[u8], address: u64| Prologue::new(code, AT).unwrap().relocate_to(address);
        // mov 0x100(%rip),%rax; ret
        let code = [0x48, 0x8b, 5, 0, 1, 0, 0, 0xc3];
        let address = AT - 0x1000;
        let relocated = relocate(&code, address).unwrap();
        let back = [0xe9, 0xfb, 0x0f, 0, 0];
        assert_eq!(
            relocated.bytes,
            [&[0x48, 0x8b, 5, 0, 0x11, 0, 0][..], &back].concat()
        );
        assert_eq!(relocated.addresses, [(AT, address)]);
        let high = Prologue::new(&code, 0x5555_5555_5000).unwrap();
        assert_eq!(
            high.relocate_to(0x5555_5555_5000 - (4 << 30)),
            Err(NotRelocatable::Far)
        );
        // cmp $16,%rdi; ja +0x10; ret: the short jump becomes a long one
        let code = [0x48, 0x83, 0xff, 16, 0x77, 0x10, 0xc3];
        let relocated = relocate(&code, address).unwrap();
        let jump = [0x0f, 0x87, 0x0c, 0x10, 0, 0];
        let back = [0xe9, 0xf7, 0x0f, 0, 0];
        assert_eq!(relocated.bytes, [&code[..4], &jump, &back].concat());
        assert_eq!(relocated.addresses, [(AT, address), (AT + 4, address + 4)]);
        let to_other = initial_jump(&[0xe9, 0xfb, 0, 0, 0], AT).unwrap();
        assert_eq!(branch_target(&to_other), Some(AT + 0x100));
        assert_eq!(initial_jump(&[0x53, 0xe9, 0xfb, 0, 0, 0], AT), None);
    }
}
