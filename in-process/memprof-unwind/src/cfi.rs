//! Call frame information (`.eh_frame`, LSB and System V ABI for x86-64): finds the unwind rule of
//! one address.

use gimli::{
    BaseAddresses, CallFrameInstruction, CallFrameInstructionIter, CfaRule, EhFrame, EhFrameHdr,
    EndianSlice, NativeEndian, Register, RegisterRule, UnwindExpression, UnwindSection, X86_64,
};

use crate::rule::{BP_LIMIT, CFA_LIMIT, Cfa, Rule, SavedBp};

/// Bytes of an object with their address, in the object or in memory.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// Address of the first byte.
    pub address: u64,
    /// The section's bytes; bytes that follow it are ignored.
    pub bytes: &'a [u8],
}

type Bytes<'a> = EndianSlice<'a, NativeEndian>;

const WORD: i64 = 8;
const ADDRESS_SIZE: u8 = 8;

/// Returns the rule at `address`: searches the sorted table of `.eh_frame_hdr` and reads the
/// `.eh_frame` that `section_at` returns for its address.
///
/// Never fails: information that cannot be read yields [`Rule::Unsupported`], an address without
/// information yields [`Rule::Undescribed`].
pub fn rule_at<'a>(
    hdr: Section<'a>,
    section_at: impl FnOnce(u64) -> Option<Section<'a>>,
    address: u64,
) -> Rule {
    try_rule_at(hdr, section_at, address).unwrap_or(Rule::Unsupported)
}

/// Like [`rule_at`], but `None` for information that cannot be read or that no rule can express.
fn try_rule_at<'a>(
    hdr: Section<'a>,
    section_at: impl FnOnce(u64) -> Option<Section<'a>>,
    address: u64,
) -> Option<Rule> {
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
        Ok(_) => return Some(Rule::Undescribed),
        Err(_) => return None,
    };
    if fde.is_signal_trampoline() {
        return Some(Rule::Signal);
    }
    let mut row = CfiRow::new(fde.initial_address(), fde.cie().data_alignment_factor());
    let factor = fde.cie().code_alignment_factor();
    let initial = fde.cie().instructions(&eh_frame, &bases);
    row.run_to(initial, u64::MAX, factor)?;
    row.initial = Some(row.state.clone());
    row.start = fde.initial_address();
    row.run_to(fde.instructions(&eh_frame, &bases), address, factor)?;
    row.state.rule(&eh_frame)
}

/// DWARF rules of the three registers that a walk follows.
#[derive(Clone, Debug)]
struct RegisterRules {
    cfa: CfaRule<usize>,
    bp: RegisterRule<usize>,
    return_address: RegisterRule<usize>,
}

/// Most states that a function may remember at once; compilers need one.
const MAX_REMEMBERED_STATES: usize = 4;

/// Row of the unwinding table (DWARF 5, 6.4.1) for the registers of [`RegisterRules`].
struct CfiRow {
    start: u64,
    data_alignment: i64,
    state: RegisterRules,
    /// State after the instructions of the CIE.
    initial: Option<RegisterRules>,
    remembered: [Option<RegisterRules>; MAX_REMEMBERED_STATES],
}

impl CfiRow {
    /// Creates the row at `start`, before any instruction: the frame pointer is unchanged and the return address
    /// undefined.
    fn new(start: u64, data_alignment: i64) -> Self {
        Self {
            start,
            data_alignment,
            state: RegisterRules {
                cfa: CfaRule::default(),
                bp: RegisterRule::SameValue,
                return_address: RegisterRule::Undefined,
            },
            initial: None,
            remembered: [const { None }; MAX_REMEMBERED_STATES],
        }
    }

    /// Runs instructions until the row covers `address`. `None` if an instruction is invalid or not supported.
    fn run_to(
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

    /// Applies one instruction to the row. `None` if it is not supported.
    fn apply_instruction(&mut self, instruction: CallFrameInstruction<usize>) -> Option<()> {
        use CallFrameInstruction as I;
        let RegisterRules { cfa, .. } = &mut self.state;
        match instruction {
            I::DefCfa { register, offset } => *cfa = register_and_offset(register, offset)?,
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
            // `ArgsSize`: bytes that a callee pops, irrelevant here.
            I::ArgsSize { .. } | I::Nop => {}
            instruction => return self.apply_to_register(instruction),
        }
        Some(())
    }

    /// Applies an instruction that sets the rule of one register. `None` if it is not supported.
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
                let initial = self.initial.clone()?;
                let rule = match register {
                    X86_64::RBP => initial.bp,
                    X86_64::RA => initial.return_address,
                    _ => return Some(()),
                };
                (register, rule)
            }
            _ => return None,
        };
        match register {
            X86_64::RBP => self.state.bp = rule,
            X86_64::RA => self.state.return_address = rule,
            // A caller's stack pointer other than the CFA is not supported.
            X86_64::RSP if rule != R::ValOffset(0) => return None,
            _ => {}
        }
        Some(())
    }
}

/// Returns the CFA rule "register plus offset". `None` if the offset does not fit an `i64`.
fn register_and_offset(register: Register, offset: u64) -> Option<CfaRule<usize>> {
    let offset = offset.try_into().ok()?;
    Some(CfaRule::RegisterAndOffset { register, offset })
}

impl RegisterRules {
    /// Converts the row to a rule. `None` if [`Rule`] has no variant for it, or a distance is too large for one.
    fn rule(&self, eh_frame: &EhFrame<Bytes<'_>>) -> Option<Rule> {
        match self.return_address {
            RegisterRule::Offset(offset) if offset == -WORD => {}
            RegisterRule::Undefined => return Some(Rule::Outermost),
            _ => return None,
        }
        let cfa = match &self.cfa {
            &CfaRule::RegisterAndOffset { register, offset } => {
                let distance = words(offset, CFA_LIMIT)?;
                match register {
                    X86_64::RSP if distance > 0 => Cfa::Sp(distance),
                    X86_64::RBP => Cfa::Bp(distance),
                    _ => return None,
                }
            }
            CfaRule::Expression(expression) => {
                cfa_from_expression(expression_bytes(expression, eh_frame)?)?
            }
        };
        let bp = match &self.bp {
            RegisterRule::SameValue | RegisterRule::Undefined => SavedBp::Unchanged,
            &RegisterRule::Offset(offset) => match words(offset.checked_neg()?, BP_LIMIT)? {
                0 => return None,
                distance => SavedBp::BelowCfa(distance),
            },
            RegisterRule::Expression(expression) => match expression_bytes(expression, eh_frame)? {
                [BREG_BP, 0] => SavedBp::AtBp,
                _ => return None,
            },
            _ => return None,
        };
        Some(Rule::Frame { cfa, bp })
    }
}

/// Converts bytes to words of 8 bytes. `None` if `bytes` is negative or no multiple of 8, or if the result is not below
/// `limit`.
fn words(bytes: i64, limit: u16) -> Option<u16> {
    if bytes % WORD != 0 {
        return None;
    }
    let words = u16::try_from(bytes / WORD).ok()?;
    (words < limit).then_some(words)
}

/// Returns the bytes of a DWARF expression. `None` if they are not within `eh_frame`.
fn expression_bytes<'a>(
    expression: &UnwindExpression<usize>,
    eh_frame: &EhFrame<Bytes<'a>>,
) -> Option<&'a [u8]> {
    Some(expression.get(eh_frame).ok()?.0.slice())
}

/// `DW_OP_breg6`: the frame pointer plus an offset in SLEB128.
const BREG_BP: u8 = 0x76;
/// `DW_OP_deref`.
const DEREF: u8 = 0x06;
/// `DW_OP_lit0`.
const LIT: u8 = 0x30;

/// Decodes the two kinds of expression that linkers and compilers emit for a CFA. `None` if it is neither.
fn cfa_from_expression(expression: &[u8]) -> Option<Cfa> {
    match *expression {
        // A function that realigns its stack stores the CFA below its frame pointer.
        [BREG_BP, offset @ 0x40..0x80, DEREF] => {
            let below = 0x80 - i64::from(offset);
            Some(Cfa::BelowBp(words(below, CFA_LIMIT)?))
        }
        // .plt of GNU ld, gold, lld and mold: rsp + 8 + ((rip & 15 >= byte) << 3).
        [
            0x77,
            8,
            0x80,
            0,
            0x3F,
            0x1A,
            byte @ LIT..=0x3F,
            0x2A,
            0x33,
            0x24,
            0x22,
        ] => Some(Cfa::Plt(u16::from(byte - LIT))),
        _ => None,
    }
}
