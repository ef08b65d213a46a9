//! The walk itself: rules and memory in, program counters out.
#![expect(unsafe_code, reason = "room that is not initialized")]

use core::mem::MaybeUninit;

use crate::rule::{Cfa, PackedRule, Rule, SavedBp};

/// The registers that a walk follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The program counter.
    pub pc: usize,
    /// The stack pointer.
    pub sp: usize,
    /// The frame pointer, which a function may use for anything.
    pub bp: usize,
}

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkEnd {
    /// At the outermost frame.
    Outermost,
    /// There was no room for more frames.
    Full,
    /// The next word lies where nothing may be read.
    Unreadable,
    /// No rule leads from the last frame to its caller.
    Unsupported,
}

/// Room for a program counter.
pub type Frame = MaybeUninit<usize>;

/// Room where something else was before.
pub fn as_frames(room: &mut [usize]) -> &mut [Frame] {
    let frames = &raw mut *room as *mut [Frame];
    // SAFETY: of the same layout, and only written with what is valid for both.
    unsafe { &mut *frames }
}

/// Where a walk gets its rules from.
pub trait RuleSource {
    /// The rule at an address of the next frame, whose stack pointer is `sp`: asked once for each, the innermost first.
    fn rule_at(&mut self, address: usize, sp: usize) -> PackedRule;
}

/// Where a walk reads the stack.
pub trait StackReader {
    /// The word at an address, or None where none may be read.
    fn word(&mut self, address: usize) -> Option<usize>;
}

const WORD: usize = size_of::<usize>();

/// What lies farther above the stack pointer is no frame pointer but a number of the program's.
const LARGEST_FRAME: usize = 1 << 20;

/// Writes the program counters from `start` outwards into `room`, and returns how many, and why
/// no more.
#[inline(always)]
pub fn walk(
    start: Registers,
    room: &mut [Frame],
    rules: &mut impl RuleSource,
    memory: &mut impl StackReader,
) -> (usize, WalkEnd) {
    // Apart, so that they stay in registers.
    let Registers {
        mut pc,
        mut sp,
        mut bp,
    } = start;
    // A return address lies behind the call, maybe in the next function.
    let mut into_call = 1;
    let mut frames = 0;
    while pc != 0 {
        let Some(frame) = room.get_mut(frames) else {
            return (frames, WalkEnd::Full);
        };
        frame.write(pc);
        frames += 1;
        let rule = rules.rule_at(pc.wrapping_sub(into_call), sp);
        if let Some(usual) = rule.usual() {
            let base = if usual.cfa_is_above_bp { bp } else { sp };
            let cfa = base.wrapping_add(usual.cfa * WORD);
            let Some(return_address) = memory.word(cfa.wrapping_sub(WORD)) else {
                return (frames, WalkEnd::Unreadable);
            };
            if usual.bp_below_cfa != 0 {
                let Some(saved) = memory.word(cfa.wrapping_sub(usual.bp_below_cfa * WORD)) else {
                    return (frames, WalkEnd::Unreadable);
                };
                bp = saved;
            }
            (pc, sp, into_call) = (return_address, cfa, 1);
        } else if rule == PackedRule::OUTERMOST {
            break;
        } else {
            match uncommon_caller(Registers { pc, sp, bp }, rule.into(), memory) {
                Ok((caller, was_interrupted)) => {
                    Registers { pc, sp, bp } = caller;
                    into_call = usize::from(!was_interrupted);
                }
                Err(end) => return (frames, end),
            }
        }
    }
    (frames, WalkEnd::Outermost)
}

/// The caller's registers, and whether it did not call but was interrupted by a signal.
#[cold]
#[inline(never)]
fn uncommon_caller(
    at: Registers,
    rule: Rule,
    memory: &mut impl StackReader,
) -> Result<(Registers, bool), WalkEnd> {
    let caller = match rule {
        Rule::Frame { cfa, bp } => frame_caller(at, cfa, bp, memory),
        Rule::Signal => registers_before_signal(at, memory),
        Rule::FramePointer if (at.sp..at.sp.saturating_add(LARGEST_FRAME)).contains(&at.bp) => {
            frame_caller(at, Cfa::Bp(2), SavedBp::BelowCfa(2), memory)
        }
        Rule::Outermost | Rule::Unknown | Rule::FramePointer => return Err(WalkEnd::Outermost),
        Rule::Unsupported => return Err(WalkEnd::Unsupported),
    };
    let caller = caller.ok_or(WalkEnd::Unreadable)?;
    Ok((caller, rule == Rule::Signal))
}

fn frame_caller(
    at: Registers,
    cfa: Cfa,
    saved_bp: SavedBp,
    memory: &mut impl StackReader,
) -> Option<Registers> {
    let bytes = |words: u16| usize::from(words) * WORD;
    let cfa = match cfa {
        Cfa::Sp(words) => at.sp.wrapping_add(bytes(words)),
        Cfa::Bp(words) => at.bp.wrapping_add(bytes(words)),
        Cfa::BelowBp(words) => memory.word(at.bp.wrapping_sub(bytes(words)))?,
        Cfa::Plt(byte) => {
            let pushed = at.pc & 15 >= usize::from(byte);
            at.sp.wrapping_add(bytes(1 + u16::from(pushed)))
        }
    };
    let pc = memory.word(cfa.wrapping_sub(WORD))?;
    let bp = match saved_bp {
        SavedBp::Unchanged => at.bp,
        SavedBp::BelowCfa(words) => memory.word(cfa.wrapping_sub(bytes(words)))?,
        SavedBp::AtBp => memory.word(at.bp)?,
    };
    Some(Registers { pc, sp: cfa, bp })
}

/// Where `rt_sigframe` of Linux on x86-64 holds them, from the stack pointer in the trampoline:
/// `uc_mcontext.gregs[REG_RBP, REG_RSP, REG_RIP]` of `ucontext_t`.
const SIGNAL_BP: usize = 120;
const SIGNAL_SP: usize = 160;
const SIGNAL_PC: usize = 168;

fn registers_before_signal(at: Registers, memory: &mut impl StackReader) -> Option<Registers> {
    let mut word = |offset| memory.word(at.sp.wrapping_add(offset));
    let bp = word(SIGNAL_BP)?;
    let sp = word(SIGNAL_SP)?;
    let pc = word(SIGNAL_PC)?;
    Some(Registers { pc, sp, bp })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code that no loader knows below 0x1000, and a function that pushed nothing above it.
    struct Code;

    impl RuleSource for Code {
        fn rule_at(&mut self, address: usize, _: usize) -> PackedRule {
            let made = address < 0x1000;
            let frame = Rule::Frame {
                cfa: Cfa::Sp(1),
                bp: SavedBp::Unchanged,
            };
            if made { Rule::FramePointer } else { frame }.into()
        }
    }

    /// Words from 0x8000 on.
    struct Words<'a>(&'a [usize]);

    impl StackReader for Words<'_> {
        fn word(&mut self, address: usize) -> Option<usize> {
            let offset = address.checked_sub(0x8000)?;
            self.0.get(offset / WORD).copied()
        }
    }

    #[test]
    fn code_that_was_made_is_left_by_a_frame_pointer_above_the_stack_pointer() {
        let check = |bp: usize, expected: &[usize], end: WalkEnd| {
            let start = Registers {
                pc: 0x2000,
                sp: 0x8000,
                bp,
            };
            // Below its frame, of made code: a word of its own, the frame pointer before, where it returns to.
            let words = [0x500, 7, 0x8030, 0x3000, 0x4000, 0];
            let mut room = [MaybeUninit::uninit(); 8];
            let (count, ended) = walk(start, &mut room, &mut Code, &mut Words(&words));
            // SAFETY: the walk wrote so many.
            let frames = room[..count]
                .iter()
                .map(|frame| unsafe { frame.assume_init() });
            assert!(frames.eq(expected.iter().copied()), "{bp:#x}");
            assert_eq!(ended, end, "{bp:#x}");
        };
        let whole = [0x2000, 0x500, 0x3000, 0x4000];
        check(0x8010, &whole, WalkEnd::Outermost);
        // What the program keeps in that register instead is no way out.
        for number in [0, 1, 0x8000, usize::MAX, 0x8008 + LARGEST_FRAME] {
            check(number, &whole[..2], WalkEnd::Outermost);
        }
    }
}
