//! The stack walk: rules and memory in, program counters out.
#![expect(unsafe_code, reason = "buffers that are not initialized")]

use core::mem::MaybeUninit;

use crate::rule::{Cfa, PackedRule, Rule, SavedBp};

/// The registers that a walk follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The program counter.
    pub pc: usize,
    /// The stack pointer.
    pub sp: usize,
    /// The frame pointer. Code that keeps none may use the register for anything.
    pub bp: usize,
}

/// Reason why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkEnd {
    /// The walk reached the outermost frame.
    Outermost,
    /// The buffer for frames is full.
    Full,
    /// The next stack word is in unreadable memory.
    Unreadable,
    /// No rule leads from the last frame to its caller.
    Unsupported,
}

/// Cell for one program counter.
pub type Frame = MaybeUninit<usize>;

/// Reinterprets an initialized buffer as a buffer for a walk.
pub fn as_frames(buffer: &mut [usize]) -> &mut [Frame] {
    let frames = &raw mut *buffer as *mut [Frame];
    // SAFETY: `MaybeUninit<usize>` has the layout of `usize`, and a walk writes only initialized
    // values.
    unsafe { &mut *frames }
}

/// Source of the unwind rules of a walk.
pub trait RuleSource {
    /// Returns the rule for the code at `address`, in the next frame, whose stack pointer is `sp`.
    /// A walk calls it once per frame, the innermost first.
    fn rule_at(&mut self, address: usize, sp: usize) -> PackedRule;
}

/// Source of the stack words of a walk.
pub trait StackReader {
    /// Returns the word at an address. `None` if it cannot be read.
    fn word(&mut self, address: usize) -> Option<usize>;
}

const WORD: usize = size_of::<usize>();

/// Largest distance from the stack pointer to the frame pointer, in bytes. A register beyond it
/// holds a number of the program, not a frame pointer.
const MAX_FRAME_BYTES: usize = 1 << 20;

/// Writes the program counters from `start` outwards into `buffer`. Returns the number of frames
/// and why the walk ended.
#[inline(always)]
pub fn walk(
    start: Registers,
    buffer: &mut [Frame],
    rules: &mut impl RuleSource,
    memory: &mut impl StackReader,
) -> (usize, WalkEnd) {
    // Separate variables instead of a struct, so that the compiler keeps them in registers.
    let Registers {
        mut pc,
        mut sp,
        mut bp,
    } = start;
    // A return address follows the call, so it may lie in the next function: look up the byte
    // before it.
    let mut into_call = 1;
    let mut frames = 0;
    while pc != 0 {
        let Some(frame) = buffer.get_mut(frames) else {
            return (frames, WalkEnd::Full);
        };
        frame.write(pc);
        frames += 1;
        let rule = rules.rule_at(pc.wrapping_sub(into_call), sp);
        if let Some(common) = rule.common_frame() {
            let base = if common.cfa_is_above_bp { bp } else { sp };
            let cfa = base.wrapping_add(common.cfa * WORD);
            let Some(return_address) = memory.word(cfa.wrapping_sub(WORD)) else {
                return (frames, WalkEnd::Unreadable);
            };
            if common.bp_below_cfa != 0 {
                let Some(saved) = memory.word(cfa.wrapping_sub(common.bp_below_cfa * WORD)) else {
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

/// Returns the caller's registers, and whether that frame was interrupted by a signal instead of
/// having called.
#[cold]
#[inline(never)]
fn uncommon_caller(
    callee: Registers,
    rule: Rule,
    memory: &mut impl StackReader,
) -> Result<(Registers, bool), WalkEnd> {
    let caller = match rule {
        Rule::Frame { cfa, bp } => frame_caller(callee, cfa, bp, memory),
        Rule::Signal => registers_before_signal(callee, memory),
        Rule::FramePointer
            if (callee.sp..callee.sp.saturating_add(MAX_FRAME_BYTES)).contains(&callee.bp) =>
        {
            frame_caller(callee, Cfa::Bp(2), SavedBp::BelowCfa(2), memory)
        }
        Rule::Outermost | Rule::Unknown | Rule::FramePointer => return Err(WalkEnd::Outermost),
        Rule::Unsupported => return Err(WalkEnd::Unsupported),
    };
    let caller = caller.ok_or(WalkEnd::Unreadable)?;
    Ok((caller, rule == Rule::Signal))
}

fn frame_caller(
    callee: Registers,
    cfa: Cfa,
    saved_bp: SavedBp,
    memory: &mut impl StackReader,
) -> Option<Registers> {
    let bytes = |words: u16| usize::from(words) * WORD;
    let cfa = match cfa {
        Cfa::Sp(words) => callee.sp.wrapping_add(bytes(words)),
        Cfa::Bp(words) => callee.bp.wrapping_add(bytes(words)),
        Cfa::BelowBp(words) => memory.word(callee.bp.wrapping_sub(bytes(words)))?,
        Cfa::Plt(byte) => {
            let pushed = callee.pc & 15 >= usize::from(byte);
            callee.sp.wrapping_add(bytes(1 + u16::from(pushed)))
        }
    };
    let pc = memory.word(cfa.wrapping_sub(WORD))?;
    let bp = match saved_bp {
        SavedBp::Unchanged => callee.bp,
        SavedBp::BelowCfa(words) => memory.word(cfa.wrapping_sub(bytes(words)))?,
        SavedBp::AtBp => memory.word(callee.bp)?,
    };
    Some(Registers { pc, sp: cfa, bp })
}

/// Offsets in Linux's `rt_sigframe` on x86-64, in bytes from the stack pointer in the signal
/// trampoline: `uc_mcontext.gregs[REG_RBP, REG_RSP, REG_RIP]` of `ucontext_t`.
const SIGNAL_BP: usize = 120;
const SIGNAL_SP: usize = 160;
const SIGNAL_PC: usize = 168;

fn registers_before_signal(callee: Registers, memory: &mut impl StackReader) -> Option<Registers> {
    let mut word = |offset| memory.word(callee.sp.wrapping_add(offset));
    let bp = word(SIGNAL_BP)?;
    let sp = word(SIGNAL_SP)?;
    let pc = word(SIGNAL_PC)?;
    Some(Registers { pc, sp, bp })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Below 0x1000 JIT code that no loader knows, above it one function that pushes nothing.
    struct Code;

    impl RuleSource for Code {
        fn rule_at(&mut self, address: usize, _: usize) -> PackedRule {
            let is_jit = address < 0x1000;
            let frame = Rule::Frame {
                cfa: Cfa::Sp(1),
                bp: SavedBp::Unchanged,
            };
            if is_jit { Rule::FramePointer } else { frame }.into()
        }
    }

    /// Stack words from address 0x8000 on.
    struct Words<'a>(&'a [usize]);

    impl StackReader for Words<'_> {
        fn word(&mut self, address: usize) -> Option<usize> {
            let offset = address.checked_sub(0x8000)?;
            self.0.get(offset / WORD).copied()
        }
    }

    #[test]
    fn jit_frame_with_frame_pointer_above_sp_is_unwound() {
        let check = |bp: usize, expected: &[usize], end: WalkEnd| {
            let start = Registers {
                pc: 0x2000,
                sp: 0x8000,
                bp,
            };
            // The return address into JIT code; its frame: a local, the saved frame pointer, the
            // return address.
            let words = [0x500, 7, 0x8030, 0x3000, 0x4000, 0];
            let mut buffer = [MaybeUninit::uninit(); 8];
            let (count, actual_end) = walk(start, &mut buffer, &mut Code, &mut Words(&words));
            // SAFETY: `walk` initialized the first `count` cells.
            let frames = buffer[..count]
                .iter()
                .map(|frame| unsafe { frame.assume_init() });
            assert!(frames.eq(expected.iter().copied()), "{bp:#x}");
            assert_eq!(actual_end, end, "{bp:#x}");
        };
        let whole = [0x2000, 0x500, 0x3000, 0x4000];
        check(0x8010, &whole, WalkEnd::Outermost);
        // A register that holds a number of the program ends the walk.
        for number in [0, 1, 0x8000, usize::MAX, 0x8008 + MAX_FRAME_BYTES] {
            check(number, &whole[..2], WalkEnd::Outermost);
        }
    }
}
