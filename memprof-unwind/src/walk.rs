//! The walk itself: rules and memory in, program counters out.
#![expect(unsafe_code, reason = "room that is not initialized")]

use core::mem::MaybeUninit;

use crate::rule::{Cfa, Rule, SavedBp};

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
pub enum End {
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

/// Writes the program counters from `start` outwards into `room`, and returns how many, and why
/// no more.
///
/// `rule_at` takes an address inside of the frame's call; `read` yields the word at an address,
/// or None where none may be read.
#[inline(always)]
pub fn walk(
    start: Registers,
    room: &mut [Frame],
    mut rule_at: impl FnMut(usize) -> Rule,
    mut read: impl FnMut(usize) -> Option<usize>,
) -> (usize, End) {
    let mut at = start;
    // A return address lies behind the call, maybe in the next function.
    let mut into_call = 1;
    let mut frames = 0;
    loop {
        if at.pc == 0 {
            return (frames, End::Outermost);
        }
        let Some(frame) = room.get_mut(frames) else {
            return (frames, End::Full);
        };
        frame.write(at.pc);
        frames += 1;
        let caller = match rule_at(at.pc.wrapping_sub(into_call)) {
            Rule::Frame { cfa, bp } => {
                into_call = 1;
                caller(at, cfa, bp, &mut read)
            }
            Rule::Signal => {
                into_call = 0;
                interrupted(at, &mut read)
            }
            Rule::Outermost => return (frames, End::Outermost),
            Rule::Unsupported => return (frames, End::Unsupported),
        };
        let Some(caller) = caller else {
            return (frames, End::Unreadable);
        };
        at = caller;
    }
}

const WORD: usize = size_of::<usize>();

#[inline(always)]
fn caller(
    at: Registers,
    cfa: Cfa,
    saved_bp: SavedBp,
    read: &mut impl FnMut(usize) -> Option<usize>,
) -> Option<Registers> {
    let bytes = |words: u16| usize::from(words) * WORD;
    let cfa = match cfa {
        Cfa::Sp(words) => at.sp.wrapping_add(bytes(words)),
        Cfa::Bp(words) => at.bp.wrapping_add(bytes(words)),
        Cfa::BelowBp(words) => read(at.bp.wrapping_sub(bytes(words)))?,
        Cfa::Plt(byte) => {
            let pushed = at.pc & 15 >= usize::from(byte);
            at.sp.wrapping_add(bytes(1 + u16::from(pushed)))
        }
    };
    let pc = read(cfa.wrapping_sub(WORD))?;
    let bp = match saved_bp {
        SavedBp::Unchanged => at.bp,
        SavedBp::BelowCfa(words) => read(cfa.wrapping_sub(bytes(words)))?,
        SavedBp::AtBp => read(at.bp)?,
    };
    Some(Registers { pc, sp: cfa, bp })
}

/// Where `rt_sigframe` of Linux on x86-64 holds them, from the stack pointer in the trampoline:
/// `uc_mcontext.gregs[REG_RBP, REG_RSP, REG_RIP]` of `ucontext_t`.
const SIGNAL_BP: usize = 120;
const SIGNAL_SP: usize = 160;
const SIGNAL_PC: usize = 168;

#[cold]
fn interrupted(at: Registers, read: &mut impl FnMut(usize) -> Option<usize>) -> Option<Registers> {
    let mut word = |offset| read(at.sp.wrapping_add(offset));
    let bp = word(SIGNAL_BP)?;
    let sp = word(SIGNAL_SP)?;
    let pc = word(SIGNAL_PC)?;
    Some(Registers { pc, sp, bp })
}
