//! The stack walk: converts rules and memory to program counters.
#![expect(unsafe_code, reason = "buffers that are not initialized")]

use core::mem::MaybeUninit;

use crate::rule::{Cfa, PackedRule, Rule, SavedBp};

/// The registers that a walk tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The program counter.
    pub pc: usize,
    /// The stack pointer.
    pub sp: usize,
    /// The frame pointer. Code without a frame pointer may use the register for anything.
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
    /// The call frame information of the last frame cannot be read, or needs an unknown register.
    Unsupported,
    /// The loader does not know the code of the last frame, which also keeps no frame pointer, for example code from a
    /// just-in-time compiler.
    UnknownCode,
    /// The code of the last frame has no call frame information and keeps no frame pointer.
    Undescribed,
}

/// Cell for one program counter.
pub type Frame = MaybeUninit<usize>;

/// Converts an initialized buffer to a buffer for a walk.
pub fn as_frames(buffer: &mut [usize]) -> &mut [Frame] {
    let frames = &raw mut *buffer as *mut [Frame];
    // SAFETY: `MaybeUninit<usize>` has the layout of `usize`, and a walk writes only initialized values.
    unsafe { &mut *frames }
}

/// Source of the unwind rules of a walk.
pub trait RuleSource {
    /// Returns the rule for the code at `address` in the next frame, which has the stack pointer `sp`. A walk calls it
    /// once per frame, innermost first.
    fn rule_at(&mut self, address: usize, sp: usize) -> PackedRule;

    /// Returns whether a function without call frame information may return to `address`: it follows a call, and the
    /// called function has no call frame information either. A walk checks this before it follows the frame pointer in
    /// [`Rule::Undescribed`] code, which may use that register for anything, or leave its caller's value in it. By
    /// default false: such code then ends the walk.
    fn may_return_to(&mut self, _address: usize) -> bool {
        false
    }

    /// Returns the registers of the caller of `callee`, a frame with the rule [`Rule::Complex`]. `depth` is the frame's
    /// number; the innermost frame has 0. `into_call` is 1 if the frame called another one, and 0 if a signal
    /// interrupted it. `None` if the registers cannot be found.
    fn caller_by_complex_rule(
        &mut self,
        _callee: Registers,
        _into_call: usize,
        _depth: usize,
        _memory: &mut impl StackReader,
    ) -> Option<Registers> {
        None
    }
}

/// Source of the stack words of a walk.
pub trait StackReader {
    /// Returns the word at an address. `None` if it cannot be read.
    fn read_word(&mut self, address: usize) -> Option<usize>;
}

const WORD: usize = size_of::<usize>();

/// Maximum distance from the stack pointer to the frame pointer, in bytes. Beyond it, the register contains some number
/// of the program and not a frame pointer.
const MAX_FRAME_BYTES: usize = 1 << 20;

/// Writes the program counters from `start` outwards into `buffer`. Returns the number of frames and the reason why the
/// walk ended. Readers look up the byte before each program counter, as for a return address. Two kinds of frames have
/// no return address: a function that a signal interrupted, and the trampoline to which its handler returns. The walk
/// adds 1 to the program counters of these.
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
    // A return address follows the call, so it may be in the next function. Look up the byte before it.
    let mut into_call = 1;
    let mut frames = 0;
    while pc != 0 {
        let Some(frame) = buffer.get_mut(frames) else {
            return (frames, WalkEnd::Full);
        };
        frame.write(pc.wrapping_add(1 - into_call));
        frames += 1;
        let rule = rules.rule_at(pc.wrapping_sub(into_call), sp);
        if let Some(common) = rule.common_frame() {
            let base = if common.cfa_is_above_bp { bp } else { sp };
            let cfa = base.wrapping_add(common.cfa * WORD);
            let Some(return_address) = memory.read_word(cfa.wrapping_sub(WORD)) else {
                return (frames, WalkEnd::Unreadable);
            };
            if common.bp_below_cfa != 0 {
                let Some(saved) = memory.read_word(cfa.wrapping_sub(common.bp_below_cfa * WORD))
                else {
                    return (frames, WalkEnd::Unreadable);
                };
                bp = saved;
            }
            (pc, sp, into_call) = (return_address, cfa, 1);
        } else if rule == PackedRule::OUTERMOST {
            break;
        } else {
            let callee = Registers { pc, sp, bp };
            let position = (into_call, frames - 1);
            match caller_by_uncommon_rule(callee, position, rule.into(), rules, memory) {
                Ok((caller, was_interrupted)) => {
                    if was_interrupted && let Some(trampoline) = buffer.get_mut(frames - 1) {
                        trampoline.write(pc.wrapping_add(1));
                    }
                    Registers { pc, sp, bp } = caller;
                    into_call = usize::from(!was_interrupted);
                }
                Err(end) => return (frames, end),
            }
        }
    }
    (frames, WalkEnd::Outermost)
}

/// Returns the registers of the caller of `callee`, a frame with a rule other than the common ones, and whether a
/// signal interrupted the caller. The error is the reason why the walk ends at `callee`. `depth` is the frame's number,
/// from the innermost one, 0. `into_call` is 1 if the frame called another one, and 0 if a signal interrupted it.
#[cold]
#[inline(never)]
fn caller_by_uncommon_rule(
    callee: Registers,
    (into_call, depth): (usize, usize),
    rule: Rule,
    rules: &mut impl RuleSource,
    memory: &mut impl StackReader,
) -> Result<(Registers, bool), WalkEnd> {
    let caller = match rule {
        Rule::Frame { cfa, bp } => caller_by_cfa(callee, cfa, bp, memory),
        Rule::Signal => registers_before_signal(callee, memory),
        Rule::FramePointer | Rule::Undescribed if may_have_frame_pointer(callee) => {
            caller_by_frame_pointer(callee, memory)
        }
        Rule::Complex => {
            let caller = rules.caller_by_complex_rule(callee, into_call, depth, memory);
            Some(caller.ok_or(WalkEnd::Unsupported)?)
        }
        Rule::Outermost => return Err(WalkEnd::Outermost),
        Rule::Unknown | Rule::FramePointer => return Err(WalkEnd::UnknownCode),
        Rule::Undescribed => return Err(WalkEnd::Undescribed),
        Rule::Unsupported => return Err(WalkEnd::Unsupported),
    };
    let caller = caller.ok_or(WalkEnd::Unreadable)?;
    if rule == Rule::Undescribed && !rules.may_return_to(caller.pc) {
        return Err(WalkEnd::Undescribed);
    }
    Ok((caller, rule == Rule::Signal))
}

/// Returns whether the frame pointer can be valid: it must point at most `MAX_FRAME_BYTES` above the stack pointer.
pub(crate) fn may_have_frame_pointer(registers: Registers) -> bool {
    let frame = registers.sp..registers.sp.saturating_add(MAX_FRAME_BYTES);
    frame.contains(&registers.bp)
}

/// Returns the registers of the caller of a frame that has a frame pointer. `None` if the stack cannot be read.
pub(crate) fn caller_by_frame_pointer(
    callee: Registers,
    memory: &mut impl StackReader,
) -> Option<Registers> {
    // The caller's frame pointer is at the address in bp, and the return address one word above it.
    caller_by_cfa(callee, Cfa::Bp(2), SavedBp::BelowCfa(2), memory)
}

/// Computes the caller's registers from the locations of the CFA and of the saved frame pointer. `None` if the stack
/// cannot be read.
fn caller_by_cfa(
    callee: Registers,
    cfa: Cfa,
    saved_bp: SavedBp,
    memory: &mut impl StackReader,
) -> Option<Registers> {
    let bytes = |words: u16| usize::from(words) * WORD;
    let cfa = match cfa {
        Cfa::Sp(words) => callee.sp.wrapping_add(bytes(words)),
        Cfa::Bp(words) => callee.bp.wrapping_add(bytes(words)),
        Cfa::BelowBp(words) => memory.read_word(callee.bp.wrapping_sub(bytes(words)))?,
        Cfa::Plt(byte) => {
            // The entry has pushed a word if its code before this offset has run.
            let pushed = callee.pc & 15 >= usize::from(byte);
            callee.sp.wrapping_add(bytes(1 + u16::from(pushed)))
        }
    };
    let pc = memory.read_word(cfa.wrapping_sub(WORD))?;
    let bp = match saved_bp {
        SavedBp::Unchanged => callee.bp,
        SavedBp::BelowCfa(words) => memory.read_word(cfa.wrapping_sub(bytes(words)))?,
        SavedBp::AtBp => memory.read_word(callee.bp)?,
    };
    Some(Registers { pc, sp: cfa, bp })
}

/// Offsets in Linux's `rt_sigframe` on x86-64, in bytes from the stack pointer in the signal trampoline:
/// `uc_mcontext.gregs[REG_RBP, REG_RSP, REG_RIP]` of `ucontext_t`.
const SIGNAL_BP_OFFSET: usize = 120;
const SIGNAL_SP_OFFSET: usize = 160;
const SIGNAL_PC_OFFSET: usize = 168;

/// Reads the registers of the function that a signal interrupted, from the kernel's signal frame on the stack. `callee`
/// is the signal trampoline. `None` if the stack cannot be read.
fn registers_before_signal(callee: Registers, memory: &mut impl StackReader) -> Option<Registers> {
    let mut word = |offset| memory.read_word(callee.sp.wrapping_add(offset));
    let bp = word(SIGNAL_BP_OFFSET)?;
    let sp = word(SIGNAL_SP_OFFSET)?;
    let pc = word(SIGNAL_PC_OFFSET)?;
    Some(Registers { pc, sp, bp })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Below 0x1000 code with this rule, above it one function that pushes nothing, and whose addresses follow calls.
    struct Code(Rule);

    impl RuleSource for Code {
        fn rule_at(&mut self, address: usize, _: usize) -> PackedRule {
            let frame = Rule::Frame {
                cfa: Cfa::Sp(1),
                bp: SavedBp::Unchanged,
            };
            if address < 0x1000 { self.0 } else { frame }.into()
        }

        fn may_return_to(&mut self, address: usize) -> bool {
            address >= 0x1000
        }
    }

    /// Stack words from address 0x8000 on.
    struct Words<'a>(&'a [usize]);

    impl StackReader for Words<'_> {
        fn read_word(&mut self, address: usize) -> Option<usize> {
            let offset = address.checked_sub(0x8000)?;
            self.0.get(offset / WORD).copied()
        }
    }

    #[test]
    fn frame_with_frame_pointer_above_sp_is_unwound() {
        let check = |rule: Rule, bp: usize, return_address: usize, expected: &[usize]| {
            let start = Registers {
                pc: 0x2000,
                sp: 0x8000,
                bp,
            };
            // The return address into the code with the rule; its frame: a local, the saved frame
            // pointer, the return address.
            let words = [0x500, 7, 0x8030, return_address, 0x4000, 0];
            let mut buffer = [MaybeUninit::uninit(); 8];
            let (count, end) = walk(start, &mut buffer, &mut Code(rule), &mut Words(&words));
            // SAFETY: `walk` initialized the first `count` cells.
            let frames = buffer[..count]
                .iter()
                .map(|frame| unsafe { frame.assume_init() });
            assert!(frames.eq(expected.iter().copied()), "{rule:?} {bp:#x}");
            let is_early = expected.len() < 4;
            let early = match rule {
                Rule::Undescribed => WalkEnd::Undescribed,
                _ => WalkEnd::UnknownCode,
            };
            let expected_end = if is_early { early } else { WalkEnd::Outermost };
            assert_eq!(end, expected_end, "{rule:?} {bp:#x}");
        };
        let whole = [0x2000, 0x500, 0x3000, 0x4000];
        for rule in [Rule::FramePointer, Rule::Undescribed] {
            check(rule, 0x8010, 0x3000, &whole);
            // A register that holds a number of the program ends the walk.
            for number in [0, 1, 0x8000, usize::MAX, 0x8008 + MAX_FRAME_BYTES] {
                check(rule, number, 0x3000, &whole[..2]);
            }
        }
        // So does a register that points to other data of the stack.
        check(Rule::Undescribed, 0x8010, 0x600, &whole[..2]);
    }

    #[test]
    fn interrupted_address_is_written_as_return_address() {
        let mut words = [0; 32];
        words[SIGNAL_SP_OFFSET / WORD] = 0x8000 + 30 * WORD;
        words[SIGNAL_PC_OFFSET / WORD] = 0x2000;
        words[30] = 0x3000;
        let trampoline = Registers {
            pc: 0x10,
            sp: 0x8000,
            bp: 0,
        };
        let mut frames = [0; 8];
        let (mut code, mut stack) = (Code(Rule::Signal), Words(&words));
        let (count, _) = walk(trampoline, as_frames(&mut frames), &mut code, &mut stack);
        // Less one, the first byte of each function; the last frame called.
        assert_eq!(frames[..count], [0x11, 0x2001, 0x3000]);
    }
}
