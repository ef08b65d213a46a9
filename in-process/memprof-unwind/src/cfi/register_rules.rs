//! Row of an unwinding table: the rules of its registers. Converts them to a [`Rule`], or applies them to a frame.

use gimli::{CfaRule, EhFrame, Register, RegisterRule, UnwindExpression, X86_64};

use super::Bytes;
use crate::expression::evaluate_expression;
use crate::register_file::{CALLEE_SAVED, RegisterFile};
use crate::rule::{BP_LIMIT, CFA_LIMIT, Cfa, Rule, SavedBp};
use crate::walk::StackReader;

const WORD: i64 = 8;

/// DWARF rules of the registers that a frame may have to restore for its caller.
#[derive(Clone, Debug)]
pub(super) struct RegisterRules {
    pub(super) cfa: CfaRule<usize>,
    /// Rules of the registers in [`CALLEE_SAVED`], in that order.
    saved: [RegisterRule<usize>; CALLEE_SAVED.len()],
    /// `Undefined` means that the caller's stack pointer is the CFA, as in the psABI.
    sp: RegisterRule<usize>,
    return_address: RegisterRule<usize>,
}

/// Index of the frame pointer in [`CALLEE_SAVED`].
const BP: usize = 1;

impl RegisterRules {
    /// Creates the rules before any instruction: registers are unchanged, and the return address is undefined.
    pub(super) fn new() -> Self {
        Self {
            cfa: CfaRule::default(),
            saved: [const { RegisterRule::SameValue }; CALLEE_SAVED.len()],
            sp: RegisterRule::Undefined,
            return_address: RegisterRule::Undefined,
        }
    }

    /// Returns the rule of a register, to change it. `None` for a register that is not tracked.
    pub(super) fn rule_mut(&mut self, register: Register) -> Option<&mut RegisterRule<usize>> {
        match register {
            X86_64::RA => Some(&mut self.return_address),
            X86_64::RSP => Some(&mut self.sp),
            _ => {
                let index = CALLEE_SAVED.iter().position(|saved| *saved == register)?;
                self.saved.get_mut(index)
            }
        }
    }

    /// Returns the caller's registers. `None` if its stack pointer or program counter cannot be found. Other registers
    /// that cannot be found become unknown. An undefined return address means the outermost frame: the program counter
    /// is then 0.
    pub(super) fn caller_registers(
        &self,
        eh_frame: &EhFrame<Bytes<'_>>,
        callee: &RegisterFile,
        memory: &mut impl StackReader,
    ) -> Option<RegisterFile> {
        let mut caller = RegisterFile::UNKNOWN;
        if self.return_address == RegisterRule::Undefined {
            caller.set(X86_64::RA, Some(0));
            caller.set(X86_64::RSP, callee.get(X86_64::RSP));
            return Some(caller);
        }
        let cfa = match &self.cfa {
            &CfaRule::RegisterAndOffset { register, offset } => {
                callee.get(register)?.wrapping_add(offset as usize)
            }
            CfaRule::Expression(expression) => {
                let bytes = expression_bytes(expression, eh_frame)?;
                evaluate_expression(bytes, None, callee, memory)?
            }
        };
        let mut find = |rule: &RegisterRule<usize>, register| match rule {
            RegisterRule::Undefined => None,
            RegisterRule::SameValue => callee.get(register),
            RegisterRule::Offset(offset) => memory.read_word(cfa.wrapping_add(*offset as usize)),
            RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add(*offset as usize)),
            RegisterRule::Register(other) => callee.get(*other),
            RegisterRule::Expression(expression) => {
                let bytes = expression_bytes(expression, eh_frame)?;
                let address = evaluate_expression(bytes, Some(cfa), callee, memory)?;
                memory.read_word(address)
            }
            RegisterRule::ValExpression(expression) => {
                let bytes = expression_bytes(expression, eh_frame)?;
                evaluate_expression(bytes, Some(cfa), callee, memory)
            }
            _ => None,
        };
        for (register, rule) in CALLEE_SAVED.into_iter().zip(&self.saved) {
            caller.set(register, find(rule, register));
        }
        let sp = match self.sp {
            RegisterRule::Undefined => Some(cfa),
            _ => find(&self.sp, X86_64::RSP),
        };
        caller.set(X86_64::RSP, Some(sp?));
        caller.set(X86_64::RA, Some(find(&self.return_address, X86_64::RA)?));
        Some(caller)
    }

    /// Converts the row to a [`Rule`], which keeps only the CFA, the frame pointer and the return address. `None` if no
    /// variant expresses the row, or if a distance is too large.
    pub(super) fn to_rule(&self, eh_frame: &EhFrame<Bytes<'_>>) -> Option<Rule> {
        match self.return_address {
            RegisterRule::Offset(offset) if offset == -WORD => {}
            RegisterRule::Undefined => return Some(Rule::Outermost),
            _ => return None,
        }
        if !matches!(
            self.sp,
            RegisterRule::Undefined | RegisterRule::ValOffset(0)
        ) {
            return None;
        }
        let cfa = match &self.cfa {
            &CfaRule::RegisterAndOffset { register, offset } => {
                let distance = bytes_to_words(offset, CFA_LIMIT)?;
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
        let bp = match &self.saved[BP] {
            RegisterRule::SameValue | RegisterRule::Undefined => SavedBp::Unchanged,
            &RegisterRule::Offset(offset) => match bytes_to_words(offset.checked_neg()?, BP_LIMIT)?
            {
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

/// Converts bytes to words of 8 bytes. `None` if `bytes` is negative or not a multiple of 8, or if the result is not
/// below `limit`.
fn bytes_to_words(bytes: i64, limit: u16) -> Option<u16> {
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

/// Decodes the two kinds of expressions that linkers and compilers emit for a CFA. `None` for other expressions.
fn cfa_from_expression(expression: &[u8]) -> Option<Cfa> {
    match *expression {
        // A function that realigns its stack stores the CFA below its frame pointer. The offset is a negative SLEB128
        // byte.
        [BREG_BP, offset @ 0x40..0x80, DEREF] => {
            let below = 0x80 - i64::from(offset);
            Some(Cfa::BelowBp(bytes_to_words(below, CFA_LIMIT)?))
        }
        // .plt of GNU ld, gold, lld and mold: rsp + 8 + ((rip & 15 >= byte) << 3), as breg7 8, breg16 0, lit15, and,
        // lit(byte), ge, lit3, shl, plus.
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
