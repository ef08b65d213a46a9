//! Finds the caller of a frame whose code has no call frame information, such as hand-written assembly.
//!
//! Such a function may keep a frame pointer, or leave its caller's in the register. In the second case, the frame
//! pointer leads to the caller's caller, and following it would skip a frame. So the stack is first searched for the
//! function's own return address: it follows a call of a function that has no call frame information either, and whose
//! first instructions push as many words as lie below that address.
#![expect(unsafe_code, reason = "code bytes of this process")]

use core::slice;

use crate::return_address::{called_function, is_after_call};
use crate::rule::{Cfa, Rule};
use crate::stack_memory::{PAGE, is_readable};
use crate::walk::{Registers, StackReader, frame_pointer_caller, has_frame_pointer};

const WORD: usize = size_of::<usize>();
/// Most words of a frame that are searched for its return address.
const MAX_FRAME_WORDS: usize = 512;
/// Longest distance from a function's start to the address that it executes, in bytes.
const MAX_FUNCTION_SIZE: usize = 64 << 10;
/// Most bytes of the instructions that prepare a frame: pushes of six registers, a subtraction, and moves.
const MAX_PROLOGUE_SIZE: usize = 64;

/// Code that is loaded in this process.
pub(crate) trait LoadedCode {
    /// Reads the rule of an address.
    fn read_rule(&mut self, address: usize) -> Rule;

    /// Whether the loader knows an object at an address.
    fn is_loaded(&self, address: usize) -> bool;
}

/// Returns the registers of the caller of `callee`, a frame in undescribed code. `None` if neither its return address
/// nor a frame pointer of its own is found.
pub(crate) fn undescribed_caller(
    callee: Registers,
    code: &mut impl LoadedCode,
    memory: &mut impl StackReader,
) -> Option<Registers> {
    let has_frame_pointer = has_frame_pointer(callee);
    let words = match has_frame_pointer {
        true => (callee.bp - callee.sp) / WORD,
        false => MAX_FRAME_WORDS,
    };
    // Whether the frame pointer may be that of a caller, whose address lies below the one in it.
    let mut may_be_callers = words > MAX_FRAME_WORDS;
    for words in 0..words.min(MAX_FRAME_WORDS) {
        let Some(address) = memory.read_word(callee.sp + words * WORD) else {
            break;
        };
        if !code.is_loaded(address) || !is_after_call(address) {
            continue;
        }
        if let Some(caller) = caller_at(callee, words, address, code, memory) {
            return Some(caller);
        }
        may_be_callers |= may_keep_frame_pointer(code.read_rule(address - 1));
    }
    if !has_frame_pointer {
        return None;
    }
    let caller = frame_pointer_caller(callee, memory)?;
    if !is_after_call(caller.pc) {
        return None;
    }
    let is_own = called_function(caller.pc).map_or(!may_be_callers, |function| {
        // The frame pointer cannot be the right one if it leads to a call of a function with call frame information:
        // that function called the undescribed one. Code in no file may lead to it: V8 calls its builtins, which are
        // not described, through jumps that it generates.
        matches!(code.read_rule(function), Rule::Undescribed | Rule::Unknown)
            && (may_contain(function, callee.pc) || !may_be_callers)
    });
    is_own.then_some(caller)
}

/// Whether code with a rule may keep a frame pointer.
fn may_keep_frame_pointer(rule: Rule) -> bool {
    let is_described = matches!(
        rule,
        Rule::Frame {
            cfa: Cfa::Bp(_) | Cfa::BelowBp(_),
            ..
        }
    );
    is_described || rule == Rule::Undescribed
}

/// Whether a function may contain an address.
fn may_contain(function: usize, address: usize) -> bool {
    address
        .checked_sub(function)
        .is_some_and(|executed| executed <= MAX_FUNCTION_SIZE)
}

/// Returns the registers of the caller if `address`, which lies `words` above the stack pointer of `callee`, is the
/// return address of `callee`.
fn caller_at(
    callee: Registers,
    words: usize,
    address: usize,
    code: &mut impl LoadedCode,
    memory: &mut impl StackReader,
) -> Option<Registers> {
    let function = called_function(address)?;
    if !may_contain(function, callee.pc) || code.read_rule(function) != Rule::Undescribed {
        return None;
    }
    let executed = callee.pc - function;
    let prologue = Prologue::read(function, executed.min(MAX_PROLOGUE_SIZE))?;
    if prologue.words != words {
        return None;
    }
    let sp = callee.sp + (words + 1) * WORD;
    let bp = match prologue.bp_below_return_address {
        0 => callee.bp,
        below => memory.read_word(sp - (below + 1) * WORD)?,
    };
    Some(Registers {
        pc: address,
        sp,
        bp,
    })
}

/// First instructions of a function without a frame pointer of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Prologue {
    /// Words of the frame, without the return address.
    words: usize,
    /// Words from the return address down to the saved `rbp`; 0 if it was not pushed.
    bp_below_return_address: usize,
}

impl Prologue {
    /// Reads the first `size` bytes of a function. `None` if they are unreadable, or set a frame pointer.
    fn read(function: usize, size: usize) -> Option<Self> {
        debug_assert!(size < PAGE);
        if !is_readable(function) || !is_readable(function.checked_add(size)?) {
            return None;
        }
        // SAFETY: `is_readable`: the kernel has just read the pages of both ends, and `size` is less than one. The code
        // stays mapped, because a call on this thread's stack names it.
        Self::decode(unsafe { slice::from_raw_parts(function as *const u8, size) })
    }

    /// Decodes instructions up to the first that neither prepares a frame nor copies a register. `None` if they set a
    /// frame pointer.
    fn decode(mut code: &[u8]) -> Option<Self> {
        /// The operand is a register, not memory: both upper bits of `ModRM`.
        const REGISTER: u8 = 0xC0;
        let mut prologue = Self::default();
        loop {
            code = match code {
                // endbr64
                [0xF3, 0x0F, 0x1E, 0xFA, rest @ ..] => rest,
                // push rbp
                [0x55, rest @ ..] => {
                    prologue.words += 1;
                    prologue.bp_below_return_address = prologue.words;
                    rest
                }
                // push
                [0x50..=0x57, rest @ ..] | [0x41, 0x50..=0x57, rest @ ..] => {
                    prologue.words += 1;
                    rest
                }
                // sub rsp, 8 bits or 32
                [0x48, 0x83, 0xEC, bytes, rest @ ..] if *bytes < 128 => {
                    prologue.words += usize::from(*bytes) / WORD;
                    rest
                }
                [0x48, 0x81, 0xEC, b0, b1, b2, b3, rest @ ..] => {
                    let bytes = u32::from_le_bytes([*b0, *b1, *b2, *b3]);
                    prologue.words += bytes as usize / WORD;
                    rest
                }
                // mov rbp, rsp
                [0x48, 0x89, 0xE5, ..] | [0x48, 0x8B, 0xEC, ..] => return None,
                // mov, xor, test of registers other than rsp
                [
                    0x48..=0x4F,
                    0x89 | 0x8B | 0x31 | 0x33 | 0x85,
                    operand,
                    rest @ ..,
                ]
                | [0x89 | 0x8B | 0x31 | 0x33 | 0x85, operand, rest @ ..]
                    if *operand >= REGISTER && !names_rsp(*operand) =>
                {
                    rest
                }
                _ => return Some(prologue),
            }
        }
    }
}

/// Whether an operand, of two registers, names the stack pointer, or a register whose number ends like its.
fn names_rsp(operand: u8) -> bool {
    const RSP: u8 = 4;
    operand & 7 == RSP || operand >> 3 & 7 == RSP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prologue_is_decoded_to_words_and_saved_frame_pointer() {
        #[track_caller]
        fn check(code: &[u8], expected: Option<(usize, usize)>) {
            let expected = expected.map(|(words, bp_below_return_address)| Prologue {
                words,
                bp_below_return_address,
            });
            assert_eq!(Prologue::decode(code), expected, "{code:02x?}");
        }
        check(&[], Some((0, 0)));
        // push rbx; call rdi; pop rbx
        check(&[0x53, 0xFF, 0xD7, 0x5B], Some((1, 0)));
        // endbr64; push r15; push rbp; push rbx; mov rbx, rdi; sub rsp, 40; xor eax, eax; push rax
        let pushes = [
            0xF3, 0x0F, 0x1E, 0xFA, 0x41, 0x57, 0x55, 0x53, 0x48, 0x89, 0xFB, 0x48, 0x83, 0xEC, 40,
            0x31, 0xC0, 0x50,
        ];
        check(&pushes, Some((9, 2)));
        check(&pushes[..7], Some((2, 2)));
        // sub rsp, 0x1008; call
        check(&[0x48, 0x81, 0xEC, 8, 0x10, 0, 0, 0xE8], Some((0x201, 0)));
        // sub rsp, -128
        check(&[0x48, 0x83, 0xEC, 0x80], Some((0, 0)));
        // push rbp; mov rbp, rsp, in both encodings
        check(&[0x55, 0x48, 0x89, 0xE5], None);
        check(&[0x55, 0x48, 0x8B, 0xEC], None);
        // mov rax, rsp; push rbx
        check(&[0x48, 0x89, 0xE0, 0x53], Some((0, 0)));
        // mov [rbx], rax; push rbx
        check(&[0x48, 0x89, 0x03, 0x53], Some((0, 0)));
    }
}
