//! Call frame information (`.eh_frame`, LSB and System V ABI for x86-64): finds the unwind rule of one address.

mod register_rules;

use gimli::{
    BaseAddresses, CallFrameInstruction, CallFrameInstructionIter, CfaRule, EhFrame, EhFrameHdr,
    EndianSlice, NativeEndian, Register, RegisterRule, UnwindSection,
};

use crate::register_file::RegisterFile;
use crate::rule::Rule;
use crate::walk::StackReader;
use register_rules::RegisterRules;

/// Bytes of a section with their address, as the object's file or memory has it.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// Address of the first byte.
    pub address: u64,
    /// Bytes of the section. Further bytes may follow, and are ignored.
    pub bytes: &'a [u8],
}

type Bytes<'a> = EndianSlice<'a, NativeEndian>;

const ADDRESS_SIZE: u8 = 8;

/// Returns the rule at `address`. Searches the sorted table of `.eh_frame_hdr`, and reads the `.eh_frame` section,
/// which `section_at` returns for its address. Never fails: returns [`Rule::Unsupported`] if the information cannot be
/// read, [`Rule::Undescribed`] if the address has none, and [`Rule::Complex`] if no other rule can express it.
pub fn rule_at<'a>(
    hdr: Section<'a>,
    section_at: impl FnOnce(u64) -> Option<Section<'a>>,
    address: u64,
) -> Rule {
    let read = with_row_at(hdr, section_at, address, |row, eh_frame| {
        row.to_rule(eh_frame).unwrap_or(Rule::Complex)
    });
    match read {
        Some(CodeUnwinding::Row(rule)) => rule,
        Some(CodeUnwinding::Undescribed) => Rule::Undescribed,
        Some(CodeUnwinding::Signal) => Rule::Signal,
        None => Rule::Unsupported,
    }
}

/// Returns the registers of the caller of a frame at `address`, with full support for DWARF expressions. `hdr` is the
/// section `.eh_frame_hdr`, and `section_at` returns the section `.eh_frame` for its address. `None` if the information
/// cannot be read, or needs an unknown register or unreadable memory. If there is no return address, the frame is the
/// outermost one, and its caller's program counter is 0.
pub(crate) fn caller_at<'a>(
    hdr: Section<'a>,
    section_at: impl FnOnce(u64) -> Option<Section<'a>>,
    address: u64,
    callee: &RegisterFile,
    memory: &mut impl StackReader,
) -> Option<CodeUnwinding<RegisterFile>> {
    let caller = |row: &RegisterRules, eh_frame: &EhFrame<Bytes<'a>>| {
        row.caller_registers(eh_frame, callee, memory)
    };
    Some(match with_row_at(hdr, section_at, address, caller)? {
        CodeUnwinding::Row(caller) => CodeUnwinding::Row(caller?),
        CodeUnwinding::Undescribed => CodeUnwinding::Undescribed,
        CodeUnwinding::Signal => CodeUnwinding::Signal,
    })
}

/// Call frame information of one address.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CodeUnwinding<T> {
    /// A row of the unwinding table, or its result.
    Row(T),
    /// The address has no information.
    Undescribed,
    /// The code is the kernel's return from a signal handler.
    Signal,
}

/// Finds the row of the unwinding table at `address`, passes it to `use_row`, and returns the result. `hdr` is the
/// section `.eh_frame_hdr`, and `section_at` returns the section `.eh_frame` for its address. Code without information
/// and the kernel's return from a signal have no row: then `use_row` is not called. `None` if the information cannot be
/// read.
fn with_row_at<'a, T>(
    hdr: Section<'a>,
    section_at: impl FnOnce(u64) -> Option<Section<'a>>,
    address: u64,
    use_row: impl FnOnce(&RegisterRules, &EhFrame<Bytes<'a>>) -> T,
) -> Option<CodeUnwinding<T>> {
    let bases = BaseAddresses::default().set_eh_frame_hdr(hdr.address);
    let parsed = EhFrameHdr::new(hdr.bytes, NativeEndian);
    let parsed = parsed.parse(&bases, ADDRESS_SIZE).ok()?;
    let section = section_at(parsed.eh_frame_ptr().direct().ok()?)?;
    let bases = bases.set_eh_frame(section.address);
    let mut eh_frame = EhFrame::new(section.bytes, NativeEndian);
    eh_frame.set_address_size(ADDRESS_SIZE);
    let nearest = parsed
        .table()?
        .lookup(address, &bases)
        .ok()?
        .direct()
        .ok()?;
    let offset = usize::try_from(nearest.checked_sub(section.address)?).ok()?;
    let fde = eh_frame.fde_from_offset(&bases, offset.into(), EhFrame::cie_from_offset);
    let fde = match fde {
        Ok(fde) if fde.contains(address) => fde,
        Ok(_) => return Some(CodeUnwinding::Undescribed),
        Err(_) => return None,
    };
    if fde.is_signal_trampoline() {
        return Some(CodeUnwinding::Signal);
    }
    let mut row = CfiRow::new(fde.initial_address(), fde.cie().data_alignment_factor());
    let factor = fde.cie().code_alignment_factor();
    // The CIE's instructions build the first row. They apply to every address, so all of them run.
    let initial = fde.cie().instructions(&eh_frame, &bases);
    row.run_instructions_to(initial, u64::MAX, factor)?;
    row.initial = Some(row.state.clone());
    row.start = fde.initial_address();
    row.run_instructions_to(fde.instructions(&eh_frame, &bases), address, factor)?;
    Some(CodeUnwinding::Row(use_row(&row.state, &eh_frame)))
}

/// Maximum number of states that a function may remember at once. Compilers need one.
const MAX_REMEMBERED_STATES: usize = 4;

/// Row of the unwinding table (DWARF 5, 6.4.1), with the registers of [`RegisterRules`].
struct CfiRow {
    start: u64,
    data_alignment: i64,
    state: RegisterRules,
    /// State after the instructions of the CIE. `Restore` returns to its rules.
    initial: Option<RegisterRules>,
    remembered: [Option<RegisterRules>; MAX_REMEMBERED_STATES],
}

impl CfiRow {
    /// Creates the row at `start`, before any instruction: registers are unchanged, and the return address is
    /// undefined.
    fn new(start: u64, data_alignment: i64) -> Self {
        Self {
            start,
            data_alignment,
            state: RegisterRules::new(),
            initial: None,
            remembered: [const { None }; MAX_REMEMBERED_STATES],
        }
    }

    /// Runs instructions until the row covers `address`: up to the first one that advances beyond it. `code_alignment`
    /// is the unit of advances, in bytes. `None` if an instruction is invalid or unsupported.
    fn run_instructions_to(
        &mut self,
        mut instructions: CallFrameInstructionIter<'_, Bytes<'_>>,
        address: u64,
        code_alignment: u64,
    ) -> Option<()> {
        use CallFrameInstruction::{AdvanceLoc, SetLoc};
        while let Some(instruction) = instructions.next().ok()? {
            let next = match instruction {
                AdvanceLoc { delta } => self
                    .start
                    .checked_add(u64::from(delta).checked_mul(code_alignment)?)?,
                SetLoc { address } => address,
                instruction => {
                    self.apply_instruction(instruction)?;
                    continue;
                }
            };
            if next > address {
                break;
            }
            self.start = next;
        }
        Some(())
    }

    /// Applies one instruction, other than an advance, to the row. `None` if the instruction is unsupported, has too
    /// large an offset, does not suit the present CFA rule, restores a state that was not remembered, or remembers more
    /// than [`MAX_REMEMBERED_STATES`].
    fn apply_instruction(&mut self, instruction: CallFrameInstruction<usize>) -> Option<()> {
        use CallFrameInstruction as I;
        let RegisterRules { cfa, .. } = &mut self.state;
        match instruction {
            I::DefCfa { register, offset } => *cfa = register_plus_offset_rule(register, offset)?,
            I::DefCfaSf {
                register,
                factored_offset,
            } => {
                let offset = factored_offset.checked_mul(self.data_alignment)?;
                *cfa = CfaRule::RegisterAndOffset { register, offset };
            }
            I::DefCfaRegister { register } => match cfa {
                CfaRule::RegisterAndOffset { register: old, .. } => *old = register,
                CfaRule::Expression(_) => return None,
            },
            I::DefCfaOffset { offset } => match cfa {
                CfaRule::RegisterAndOffset { offset: old, .. } => *old = offset.try_into().ok()?,
                CfaRule::Expression(_) => return None,
            },
            I::DefCfaOffsetSf { factored_offset } => match cfa {
                CfaRule::RegisterAndOffset { offset: old, .. } => {
                    *old = factored_offset.checked_mul(self.data_alignment)?;
                }
                CfaRule::Expression(_) => return None,
            },
            I::DefCfaExpression { expression } => *cfa = CfaRule::Expression(expression),
            I::RememberState => {
                let state = self.state.clone();
                *self.remembered.iter_mut().find(|slot| slot.is_none())? = Some(state);
            }
            I::RestoreState => {
                let newest = self.remembered.iter_mut().rev().find_map(Option::take);
                self.state = newest?;
            }
            // `ArgsSize` is the number of bytes that a callee pops, which is irrelevant here.
            I::ArgsSize { .. } | I::Nop => {}
            instruction => return self.apply_to_register(instruction),
        }
        Some(())
    }

    /// Applies an instruction that sets the rule of one register. Ignores a register that is not tracked. `None` if the
    /// instruction is unsupported, or its offset is too large.
    fn apply_to_register(&mut self, instruction: CallFrameInstruction<usize>) -> Option<()> {
        use CallFrameInstruction as I;
        use RegisterRule as R;
        let offset = |factored: i64| factored.checked_mul(self.data_alignment);
        let (register, rule) = match instruction {
            I::Undefined { register } => (register, R::Undefined),
            I::SameValue { register } => (register, R::SameValue),
            I::Offset {
                register,
                factored_offset,
            } => (
                register,
                R::Offset(offset(factored_offset.try_into().ok()?)?),
            ),
            I::OffsetExtendedSf {
                register,
                factored_offset,
            } => (register, R::Offset(offset(factored_offset)?)),
            I::ValOffset {
                register,
                factored_offset,
            } => (
                register,
                R::ValOffset(offset(factored_offset.try_into().ok()?)?),
            ),
            I::ValOffsetSf {
                register,
                factored_offset,
            } => (register, R::ValOffset(offset(factored_offset)?)),
            I::Register {
                dest_register,
                src_register,
            } => (dest_register, R::Register(src_register)),
            I::Expression {
                register,
                expression,
            } => (register, R::Expression(expression)),
            I::ValExpression {
                register,
                expression,
            } => (register, R::ValExpression(expression)),
            I::Restore { register } => {
                let initial = self.initial.as_mut()?.rule_mut(register);
                let Some(rule) = initial.cloned() else {
                    return Some(());
                };
                (register, rule)
            }
            _ => return None,
        };
        if let Some(own) = self.state.rule_mut(register) {
            *own = rule;
        }
        Some(())
    }
}

/// Returns the CFA rule "register plus offset". `None` if the offset does not fit into an `i64`.
fn register_plus_offset_rule(register: Register, offset: u64) -> Option<CfaRule<usize>> {
    let offset = offset.try_into().ok()?;
    Some(CfaRule::RegisterAndOffset { register, offset })
}
